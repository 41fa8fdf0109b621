"""A stored run as a table: pandas or Arrow, without rows in Python."""

import os
import pathlib


def load(
    run, where=None, *, names=False, samples=False, arrow=False, data=None
):
    """The records of a stored run, one a row; a pandas.DataFrame.

    run: a run's name, or the path of its file, which may grow meanwhile.
    where: an SQL condition on the columns of v_record, such as
    "module = 'layers.0' AND nan > 0"; None: all records. names, samples:
    with the columns `name` and `samples` (a list of float64 each; of a
    complex tensor two numbers a sample). arrow: a pyarrow.Table instead.
    data: where named runs lie; None: TRACERD_DATA, else
    $XDG_STATE_HOME/tracerd, else ~/.local/state/tracerd.

    Columns are those of v_record, in the order of the JSON fields: figures
    float64, of all elements as numpy has them, null where numpy has NaN or
    where there is none; counts 64-bit, null where unknown; hash unsigned;
    words categorical. The order is not promised: sort by what you need.

    10 million records without names and samples take some 2 GB. Needs the
    packages pyarrow, adbc-driver-sqlite and (without arrow) pandas, else
    ImportError. Blocks until read; any thread. Raises FileNotFoundError
    where there is no such run and ValueError for a file that is no run, one
    of a newer tracerd, and a condition that SQLite refuses.
    """
    from . import database, table

    path = _file_of(run, data)
    with database.plain_memory():
        if arrow:
            return table.read(path, where, names, samples)
        return table.to_pandas(table.read(path, where, names, samples))


def _file_of(run, data):
    """The file of a run that is named, or given as a path."""
    text = os.fspath(run)
    if text.endswith(".db") or os.sep in text:
        path = pathlib.Path(text)
    else:
        path = pathlib.Path(data or _data_dir()) / (text + ".db")
    if not path.is_file():
        raise FileNotFoundError(f"no run is stored in '{path}'")
    return path


def _data_dir():
    if os.environ.get("TRACERD_DATA"):
        return os.environ["TRACERD_DATA"]
    state = os.environ.get("XDG_STATE_HOME")
    if not state:
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "tracerd")
