"""What a Parquet file would take is known before it is decoded, whatever its footer says."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from earl.runs.parquet import _examine, read_table

COUNT = 20_000_000
"""Numbers that are all alike: 320 MB at 16 bytes each, of which 256 MiB are allowed."""


def varint(number: int, length: int) -> bytes:
    """A zigzag number of Thrift's compact protocol in so many bytes, more than it needs where it is small."""
    parts = [(2 * number >> 7 * place) & 127 for place in range(length)]
    return bytes([part | 128 for part in parts[:-1]] + parts[-1:])


def bomb(path: Path, **options: object) -> bytes:
    lists = pa.ListArray.from_arrays(pa.array([0, COUNT], pa.int32()), pa.array(np.zeros(COUNT, np.int32)))
    pq.write_table(pa.table({"tokens": lists}), path, compression="zstd", **options)
    data = path.read_bytes()
    assert len(data) < 200_000
    return data


def read(path: Path, *arrays: str) -> pa.Table:
    with path.open("rb") as file:
        return read_table(file, frozenset(arrays))


def test_a_small_file_that_is_large_once_decoded_is_refused(tmp_path: Path) -> None:
    bomb(tmp_path / "bomb.parquet")
    with pytest.raises(ValueError, match="far more memory than its size allows"):
        read(tmp_path / "bomb.parquet", "tokens")


def test_a_footer_that_understates_the_values_is_not_believed(tmp_path: Path) -> None:
    data = bomb(tmp_path / "bomb.parquet", data_page_size=1 << 30, write_batch_size=1 << 30)
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")  # of the footer
    told = varint(COUNT, 4)
    assert told in data[start:]
    (tmp_path / "bomb.parquet").write_bytes(data[:start] + data[start:].replace(told, varint(10, 4)))
    assert pq.ParquetFile(tmp_path / "bomb.parquet").metadata.row_group(0).column(0).num_values == 10
    with pytest.raises(ValueError, match="far more memory than its size allows"):
        read(tmp_path / "bomb.parquet", "tokens")


def test_one_long_text_that_many_rows_share_is_counted_as_often(tmp_path: Path) -> None:
    pq.write_table(pa.table({"env": ["x" * 100_000] * 4000}), tmp_path / "texts.parquet", compression="zstd")
    assert (tmp_path / "texts.parquet").stat().st_size < 10_000  # 400 MB of text
    with pytest.raises(ValueError, match="far more memory than its size allows"):
        read(tmp_path / "texts.parquet")


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_an_honest_file_is_read_as_arrow_reads_it(tmp_path: Path, version: str) -> None:
    rows = range(30_000)
    turns = [[{"action": str(row), "end": row}] * (row % 3) for row in rows]
    table = pa.table({"env": [None if row % 7 == 0 else "e" for row in rows], "turns": turns, "seed": [*rows]})
    pq.write_table(
        table, tmp_path / "honest.parquet", data_page_version=version, compression="zstd", data_page_size=10_000,
        row_group_size=10_000,
    )  # fmt: skip
    assert read(tmp_path / "honest.parquet").equals(table)


def test_an_encoding_whose_texts_share_their_beginnings_is_refused(tmp_path: Path) -> None:
    table = pa.table({"env": [f"{'x' * 1000}{row}" for row in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")
    with pytest.raises(ValueError, match="is not as earl writes it"):
        read(tmp_path / "a.parquet")


def test_a_large_file_is_no_leave_to_take_a_hundred_times_as_much() -> None:
    _examine(64 << 20, [1279 << 20])  # 256 MiB and 16 times its size: 1,280 MiB
    with pytest.raises(ValueError, match="far more memory than its size allows"):
        _examine(64 << 20, [1279 << 20, 2 << 20])
