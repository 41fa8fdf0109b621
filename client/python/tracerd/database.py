"""A stored run's file and the columns that are read from it."""

import contextlib
import threading
import urllib.parse

import adbc_driver_manager
import adbc_driver_sqlite.dbapi as sqlite
import pyarrow as pa

_APPLICATION = 0x54524344  # "TRCD"
_VERSION = 1  # the newest form of a stored run that is known
_BATCH = 1 << 16  # records of one Arrow batch

FIGURES = ("max", "min", "mean", "std", "l2", "absmax", "absmin")
COUNTS = ("nan", "pinf", "ninf", "zero", "subnormal")
WORD = pa.dictionary(pa.int32(), pa.string())
TYPES = {
    "attempt": pa.int32(), "rank": pa.int32(), "seq": pa.int64(),
    "ts_ns": pa.int64(), "pass": WORD, "class": WORD,
    "instance": pa.int32(), "object": WORD, "module": WORD,
    "step": pa.int64(), "iteration": pa.int64(), "microbatch": pa.int32(),
    "recompute": pa.bool_(), "io": WORD, "position": pa.int32(),
    "path": WORD, "dtype": WORD, "shape": WORD, "n": pa.int64(),
    **dict.fromkeys(FIGURES, pa.float64()),
    **dict.fromkeys(COUNTS, pa.uint64()), "hash": pa.uint64(),
    "samples": pa.list_(pa.float64()), "name": pa.string(), "labels": WORD,
}


_memory = threading.Lock()
_readers = 0
_pool = None  # the one that Arrow had before them


@contextlib.contextmanager
def plain_memory():
    """Meanwhile Arrow has its memory from the C library: of its own pools one
    asks for huge pages, and clearing those took longer than reading."""
    global _readers, _pool
    with _memory:
        if not _readers:
            _pool = pa.default_memory_pool()
            pa.set_memory_pool(pa.system_memory_pool())
        _readers += 1
    try:
        yield
    finally:
        with _memory:
            _readers -= 1
            if not _readers:
                pa.set_memory_pool(_pool)


@contextlib.contextmanager
def opened(path):
    """The run in the file path, to be read; what SQLite refuses meanwhile
    is a ValueError."""
    uri = "file:" + urllib.parse.quote(str(path)) + "?mode=ro"
    try:
        with contextlib.closing(sqlite.connect(uri)) as db:
            _check(db, path)
            yield db
    except adbc_driver_manager.Error as e:
        raise ValueError(f"'{path}': {e}") from None


def _check(db, path):
    [[application]] = rows(db, "PRAGMA application_id")
    [[version]] = rows(db, "PRAGMA user_version")
    if application != _APPLICATION:
        raise ValueError(f"'{path}' is not a stored run of tracerd")
    if version > _VERSION:
        raise ValueError(
            f"'{path}' is of form {version}, and this tracerd knows forms up"
            f" to {_VERSION}: read it with a newer one"
        )


def rows(db, query):
    """The few rows of a query, as tuples."""
    with contextlib.closing(db.cursor()) as cursor:
        cursor.execute(query)
        return cursor.fetchall()


def batches(db, query, values=None):
    """The rows of a query in Arrow batches; values for its `?`."""
    with contextlib.closing(db.cursor()) as cursor:
        cursor.adbc_statement.set_options(
            **{"adbc.sqlite.query.batch_rows": str(_BATCH)}
        )
        cursor.execute(query, values)
        yield from cursor.fetch_record_batch()
