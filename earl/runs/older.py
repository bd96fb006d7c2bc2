"""Trajectories that an earlier earl stored, brought to the columns of this one."""

import numpy as np
import pyarrow as pa


def upgraded(table: pa.Table, schema: pa.Schema, form: bytes) -> pa.Table:
    """A table of format 1 with the columns of `schema` and marked as format `form`; any other as it is.

    Format 1 knew neither summaries, so no turn is one, nor what the learner made of a trajectory, which stays unknown.
    """
    metadata = table.schema.metadata or {}
    if metadata.get(b"earl.format") != b"1" or not {*table.column_names} < {*schema.names}:
        return table
    columns = {name: table[name].combine_chunks() for name in table.column_names}
    turns, kind = columns["turns"], schema.field("turns").type
    known = [turns.values.field(place) for place in range(turns.values.type.num_fields)]
    values = pa.StructArray.from_arrays(
        [*known, pa.array(np.zeros(len(turns.values), bool))], fields=list(kind.value_type)
    )
    columns["turns"] = pa.ListArray.from_arrays(turns.offsets, values, type=kind)
    arrays = [columns.get(field.name, pa.nulls(len(table), field.type)) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema.with_metadata({**metadata, b"earl.format": form}))
