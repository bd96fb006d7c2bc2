"""A seal holds for the same numbers, however a file cuts them up, and breaks for any other."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from earl.runs.trajectories import changed, sealed

LISTS = [[1, 2], [], None, [3]]


def table(lists=LISTS, **columns):
    return pa.table({"numbers": pa.array(lists, pa.list_(pa.int32())), "name": ["a", "b", "c", "d"], **columns})


def stored(folder, told, **options):
    pq.write_table(told, folder / "file.parquet", **options)
    return changed(pq.read_table(folder / "file.parquet"))


def test_a_file_is_as_it_was_sealed(tmp_path):
    assert stored(tmp_path, sealed(table())) == []
    assert stored(tmp_path, sealed(table()), row_group_size=1) == []  # 4 chunks when it is read


@pytest.mark.parametrize("lists", [[[1, 2], [], None, [4]], [[1], [2], None, [3]], [[1, 2], [], [], [3]]])
def test_another_number_length_or_absence_breaks_the_seal(tmp_path, lists):
    other = table(lists).replace_schema_metadata(sealed(table()).schema.metadata)
    assert stored(tmp_path, other) == ["numbers"]


def test_only_lists_of_numbers_are_sealed_and_a_file_without_a_seal_is_not_judged(tmp_path):
    assert [*json.loads(sealed(table()).schema.metadata[b"earl.seal"])] == ["numbers"]
    assert stored(tmp_path, table()) == []
