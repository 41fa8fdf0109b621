"""Records of a stored run as Arrow tables.

All of a run comes from the table of records (stored.py), which is several
times faster than the view v_record, from which comes what a condition
chooses. Both give the same table.
"""

import pyarrow as pa
import pyarrow.compute as pc

from . import elements, stored
from .database import FIGURES, TYPES, WORD, batches, opened


def read(path, where, names, samples):
    """The records of the run in the file path, as load() promises."""
    wanted = _wanted(names, samples)
    with opened(path) as db:
        if where is None:
            return _table(stored.columns(path, db, wanted))
        return _table(_chosen(db, where, wanted))


def parts(path, names, samples):
    """The same, a table of some records after the other, in memory that does
    not grow with the run."""
    wanted = _wanted(names, samples)
    with opened(path) as db:
        for chunks in stored.pages(path, db, wanted):
            yield _table(chunks)


def schema(names, samples):
    """Of these tables."""
    return pa.schema([(n, TYPES[n]) for n in _wanted(names, samples)])


def _wanted(names, samples):
    return [
        name for name in TYPES
        if (name != "name" or names) and (name != "samples" or samples)
    ]


def to_pandas(table):
    """The same as pandas has it. Each column is given back before the next
    one is made: hand over the only reference, as both would be too much."""
    import pandas as pd

    whole = {pa.uint64(): pd.UInt64Dtype()}
    columns = {}
    for name in table.column_names:
        columns[name] = table.column(0).to_pandas(types_mapper=whole.get)
        table = table.remove_column(0)
        pa.default_memory_pool().release_unused()
    return pd.DataFrame(columns, copy=False)


def _table(chunks):
    """A table of each column's chunks."""
    columns = {}
    for name in list(chunks):
        column = pa.chunked_array(chunks.pop(name), TYPES[name])
        if TYPES[name] == WORD:
            column = column.unify_dictionaries()
        columns[name] = column
    return pa.table(columns)


def _chosen(db, where, wanted):
    columns = ", ".join(_from_view(name) for name in wanted)
    chunks = {name: [] for name in wanted}
    if "samples" in wanted:
        columns += ", dtype AS of_samples"
    query = f"SELECT {columns} FROM v_record WHERE ({where}\n)"
    for batch in batches(db, query):
        for name in wanted:
            chunks[name].append(_viewed(batch, name))
    return chunks


def _from_view(name):
    if name in FIGURES:  # else the first batch says which type it is
        return f"CAST({name} AS REAL) AS {name}"
    return f'"{name}"'


def _viewed(batch, name):
    column = batch.column(name)
    kind = TYPES[name]
    if name == "samples":
        dtypes = batch.column("of_samples").to_pylist()
        return elements.lists(column.cast(pa.binary()), dtypes)
    if name == "hash":
        return pa.array(
            (x and int(x, 16) for x in column.to_pylist()), pa.uint64()
        )
    if name == "labels":
        column = pc.utf8_trim(column.cast(pa.string()), " ")
    if kind == WORD:
        return column.cast(pa.string()).dictionary_encode()
    return column.cast(kind)
