"""The columns of all records of a stored run, from its tables.

Words are numbers there: they are kept as numbers while the records are read,
and each is spelled out once at the end. Threads share the steps between them,
each with a connection of its own; the work is done outside of the GIL.
"""

import concurrent.futures
import os

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import elements
from .database import COUNTS, batches, opened, rows

_PAGE = 1 << 17  # records of one snapshot, so that a live run's file need
#                  not keep what changes while all are read
_THREADS = min(4, os.cpu_count() or 1)
_SPANS = 8  # of steps, for each thread
_KEY = ("step", "object", "pass", "stream", "io", "position", "seq")
_REAL = ("max", "min", "absmin", "mean", "std", "l2")
_TYPES = {
    **dict.fromkeys(_KEY, pa.int64()),
    "object": pa.int32(), "pass": pa.int8(), "io": pa.int8(),
    "position": pa.int32(), "t_ns": pa.int64(), "iteration": pa.int64(),
    "microbatch": pa.int32(), "labels": pa.int64(), "note": pa.int64(),
    "path": pa.int32(), "dtype": pa.int8(), "shape": pa.int32(),
    "n": pa.int64(), **dict.fromkeys(COUNTS, pa.int64()),
    **dict.fromkeys(_REAL, pa.float64()), "hash": pa.int64(),
    "given": pa.int64(),
}
_LABELS = 32  # bits of them; a note's number stands above


def columns(path, db, wanted):
    """The chunks of each wanted column of TYPES."""
    dtypes = _dtypes(db)
    with_samples = "samples" in wanted
    read = {}
    with concurrent.futures.ThreadPoolExecutor(_THREADS) as pool:
        for pages in pool.map(
            lambda span: list(_pages(path, span, with_samples, dtypes)),
            _spans(db),
        ):
            for page in pages:
                for name, column in page.items():
                    read.setdefault(name, []).append(column)
    if not read:
        return {name: [] for name in wanted}
    pa.default_memory_pool().release_unused()  # what the threads had
    return _finished(db, read, wanted)


def pages(path, db, wanted):
    """The same of some records, then of the next ones, in the order of their
    key; of one page at a time is memory taken."""
    [[first, last]] = rows(db, "SELECT min(step), max(step) FROM record")
    if first is None:
        return
    with_samples = "samples" in wanted
    for page in _pages(path, (first, last), with_samples, _dtypes(db)):
        read = {name: [column] for name, column in page.items()}
        yield _finished(db, read, wanted)


def _finished(db, read, wanted):
    _spell_all(db, read)
    if "name" in wanted:
        read["name"] = _names(read)
    return {name: read.pop(name) for name in wanted}


def _dtypes(db):
    return {
        i: (name, signed)
        for i, name, signed in rows(db, "SELECT id, name, signed FROM dtype")
    }


def _spans(db):
    """Ranges of steps, (first, last), that hold all there are."""
    [[first, last]] = rows(db, "SELECT min(step), max(step) FROM record")
    if first is None:
        return []
    size = -(-(last - first + 1) // (_SPANS * _THREADS))
    return [
        (at, min(at + size - 1, last)) for at in range(first, last + 1, size)
    ]


def _pages(path, span, with_samples, dtypes):
    """The columns of the records of these steps, by their key, in pages.
    Each is put together of its batches, whose buffers would leave holes
    between what is kept."""
    key = ", ".join(f'"{name}"' for name in _KEY)
    chosen = ", ".join(
        f"CAST({name} AS REAL) AS {name}" if name in _REAL else f'"{name}"'
        for name in _TYPES
    ) + (", samples" if with_samples else "")
    after, bounds = "", list(span)
    with opened(path) as db:
        while True:
            query = (
                f"SELECT {chosen} FROM record WHERE step BETWEEN ? AND ?"
                f" {after} ORDER BY {key} LIMIT {_PAGE}"
            )
            parts = [
                _of_batch(batch, dtypes)
                for batch in batches(db, query, bounds) if batch.num_rows
            ]
            if not parts:
                return
            page = {
                name: pa.concat_arrays([part.pop(name) for part in parts])
                for name in list(parts[0])
            }
            yield page
            if len(page["step"]) < _PAGE:
                return
            bounds = [*span, *(page[name][-1].as_py() for name in _KEY)]
            after = f"AND ({key}) > ({', '.join('?' * len(_KEY))})"


def _of_batch(batch, dtypes):
    """What a batch's columns are at the end, or are spelled from."""
    c = {name: batch.column(name).cast(_TYPES[name]) for name in _TYPES}
    if "samples" in batch.schema.names:
        names = [dtypes[code][0] for code in c["dtype"].to_pylist()]
        c["samples"] = elements.lists(
            batch.column("samples").cast(pa.binary()), names
        )
    _as_numpy(c, dtypes)
    note = pc.shift_left(pc.fill_null(c.pop("note"), 0), _LABELS)
    c["recompute"] = pc.equal(pc.bit_wise_and(c["labels"], 1), 1)
    c["labels"] = pc.bit_wise_or(c["labels"], note)
    c["hash"] = c["hash"].view(pa.uint64())
    for name in COUNTS:
        c[name] = c[name].cast(pa.uint64())
    return c


def _as_numpy(c, dtypes):
    """Figures over finite elements become numpy's over all, as in v_record."""
    known = [dtypes.get(i, ("", 1)) for i in range(128)]
    signed = np.array([signed for _, signed in known], bool)
    wraps = np.array([name == "uint64" for name, _ in known], bool)
    got = {name: _real(c[name]) for name in _REAL}
    wraps = wraps[c["dtype"].to_numpy()]
    if wraps.any():
        for name in ("max", "min", "absmin"):
            got[name][wraps & (got[name] < 0)] += 2.0**64
    absmin = got.pop("absmin")
    nan, pinf, ninf = (
        pc.fill_null(c[name], 0).to_numpy() > 0
        for name in ("nan", "pinf", "ninf")
    )
    given = c.pop("given")
    absmax = np.where(
        signed[c["dtype"].to_numpy()],
        np.maximum(got["max"], -got["min"]), got["max"],
    )
    if (nan | pinf | ninf).any():
        low, high = -np.inf, np.inf
        none = np.isnan(got["max"])
        got["max"][ninf & none] = low
        got["max"][pinf] = high
        none = np.isnan(got["min"])
        got["min"][pinf & none] = high
        got["min"][ninf] = low
        got["mean"][pinf] = high
        got["mean"][ninf] = low
        got["mean"][pinf & ninf] = np.nan
        got["std"][pinf | ninf] = np.nan
        got["l2"][pinf | ninf] = high
        for figure in got.values():
            figure[nan] = np.nan
    if given.null_count < len(given):
        absmax = np.where(given.is_valid().to_numpy(False), np.nan, absmax)
        _as_given(got, pc.fill_null(given, 0).to_numpy())
    got.update(absmax=absmax, absmin=absmin)
    for name, figure in got.items():
        c[name] = pa.array(figure, from_pandas=True)


def _as_given(got, given):
    """Figures that a text log spelled nan, inf or -inf."""
    for i, name in enumerate(("max", "min", "mean", "std")):
        how = given >> 2 * i & 3
        got[name][how == 1] = np.nan
        got[name][how == 2] = np.inf
        got[name][how == 3] = -np.inf


def _real(column):
    """A copy for numpy, null as NaN."""
    return np.array(column.to_numpy(zero_copy_only=False), np.float64)


# ---- numbers into words ----


def _spell_all(db, read):
    """Replaces the numbers in read by what they stand for."""
    def words(query):
        return dict(rows(db, query))

    things = rows(db, "SELECT id, class, instance, module FROM object")
    streams = rows(db, "SELECT id, attempt, rank, real_ns FROM stream")
    shapes = rows(db, "SELECT id, dims, n FROM shape")
    code, stream, shape = (
        read.pop(name) for name in ("object", "stream", "shape")
    )
    read["class"] = _spell(code, {i: c for i, c, _, _ in things})
    read["object"] = _spell(code, {i: f"{c}-{n}" for i, c, n, _ in things})
    read["module"] = _spell(code, {i: m for i, _, _, m in things})
    read["instance"] = _look_up(
        code, {i: n for i, _, n, _ in things}, pa.int32()
    )
    for at, name in ((1, "attempt"), (2, "rank")):
        read[name] = _look_up(stream, {s[0]: s[at] for s in streams},
                              pa.int32())
    start = _look_up(stream, {s[0]: s[3] for s in streams}, pa.int64())
    read["ts_ns"] = [
        pc.add(a, b) for a, b in zip(start, read.pop("t_ns"), strict=True)
    ]
    n = _look_up(shape, {i: n for i, _, n in shapes}, pa.int64())
    read["n"] = [
        pc.coalesce(a, b) for a, b in zip(read["n"], n, strict=True)
    ]
    read["shape"] = _spell(shape, {i: dims for i, dims, _ in shapes})
    read["path"] = _spell(read["path"], words("SELECT id, text FROM path"))
    for name in ("pass", "io", "dtype"):
        read[name] = _spell(read[name], words(f"SELECT id, name FROM {name}"))
    read["labels"] = _spell(
        read["labels"],
        _labels(
            read["labels"], words("SELECT bit, name FROM label"),
            words("SELECT id, text FROM note"),
        ),
    )


def _labels(chunks, names, notes):
    words = {}
    for code in pc.unique(pa.chunked_array(chunks)).to_pylist():
        said = [names[bit] for bit in sorted(names) if code >> bit & 1]
        if code >> _LABELS:
            said.append(notes[code >> _LABELS])
        words[code] = " ".join(said)
    return words


def _look_up(chunks, values, kind):
    """The value of each number."""
    found = []
    for chunk in chunks:
        coded = chunk.dictionary_encode()
        known = pa.array(map(values.get, coded.dictionary.to_pylist()), kind)
        found.append(known.take(coded.indices))
    return found


def _spell(chunks, words):
    """The word of each number, in Arrow's dictionary form."""
    texts = list(dict.fromkeys(words.values()))
    place = {text: i for i, text in enumerate(texts)}
    texts = pa.array(texts, pa.string())
    return [
        pa.DictionaryArray.from_arrays(indices, texts)
        for indices in _look_up(
            chunks, {i: place[text] for i, text in words.items()}, pa.int32()
        )
    ]


def _names(read):
    """What v_record has as a record's name."""
    return [
        _name(*chunk) for chunk in zip(
            *(read[name] for name in
              ("pass", "object", "path", "step", "io", "position")),
            strict=True,
        )
    ]


def _name(of_pass, thing, path, step, io, position):
    text = pa.string()
    of_pass, thing, path, step, io, place = (
        x.cast(text) for x in (of_pass, thing, path, step, io, position)
    )
    call = pc.binary_join_element_wise(of_pass, thing, step, io, "-")
    several = pc.binary_join_element_wise(call, place, ".")
    call = pc.if_else(pc.greater(position, 0), several, call)
    own = pc.binary_join_element_wise(of_pass, path, step, "-")
    is_call = pc.is_in(of_pass, pa.array(["forward", "backward"]))
    return pc.if_else(is_call, call, own)
