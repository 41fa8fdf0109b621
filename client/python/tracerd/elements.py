"""Samples as stored, into lists of numbers."""

import numpy as np
import pyarrow as pa

# IEEE-like dtypes that numpy lacks: bits, mantissa bits, exponent bits, bias,
# and which patterns are no number: 1 as IEEE says, 2 all ones, 3 the sign
# alone. As the table dtype of a stored run has them.
_SMALL = {
    "bfloat16": (16, 7, 8, 127, 1),
    "float8_e4m3fn": (8, 3, 4, 7, 2),
    "float8_e5m2": (8, 2, 5, 15, 1),
    "float8_e4m3fnuz": (8, 3, 4, 8, 3),
    "float8_e5m2fnuz": (8, 2, 5, 16, 3),
}
_PLAIN = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "text": "<f8",
    "int8": "<i1", "int16": "<i2", "int32": "<i4", "int64": "<i8",
    "uint8": "<u1", "uint16": "<u2", "uint32": "<u4", "uint64": "<u8",
    "bool": "<u1", "complex32": "<f2", "complex64": "<f4",
    "complex128": "<f8", "float4_e2m1fn_x2": "<u1", "opaque": "<u1",
}
_tables = {}


def lists(column, dtypes):
    """Lists of float64, one for each value of a binary Arrow array; dtypes:
    the name of each one's dtype. NaN stays NaN; null where there is none."""
    n = len(column)
    names = np.array(dtypes)
    sizes = np.zeros(n, np.int64)
    parts = []
    for name in np.unique(names):
        rows = np.flatnonzero(names == name)
        values, counts = _decoded(column.take(pa.array(rows)), name)
        sizes[rows] = counts
        parts.append((rows, values, counts))
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    flat = np.empty(offsets[-1], np.float64)
    for rows, values, counts in parts:
        flat[_places(offsets[rows], counts)] = values
    return pa.ListArray.from_arrays(
        offsets, flat, mask=None if not column.null_count else column.is_null()
    )


def _places(starts, counts):
    """The indices of runs that start there and are so long, one after the
    other."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(
        starts - (ends - counts), counts
    )


def _decoded(column, name):
    """All values of a dtype's samples, and how many each has."""
    _, offsets, data = column.buffers()
    offsets = np.frombuffer(offsets, np.int32)[
        column.offset:column.offset + len(column) + 1
    ]
    raw = np.frombuffer(data or b"", np.uint8)[offsets[0]:offsets[-1]]
    if name in _PLAIN:
        values = raw.view(_PLAIN[name]).astype(np.float64)
    else:
        table = _table(name)
        values = table[raw.view("<u2" if len(table) > 256 else "<u1")]
    size = len(raw) // max(len(values), 1)
    return values, np.diff(offsets) // max(size, 1)


def _table(name):
    """The value of every bit pattern of a small dtype."""
    if name not in _tables:
        _tables[name] = (
            _scales() if name == "float8_e8m0fnu" else _floats(*_SMALL[name])
        )
    return _tables[name]


def _scales():
    values = np.ldexp(1.0, np.arange(256) - 127)
    values[255] = np.nan
    return values


def _floats(width, man, exp, bias, special):
    bits = np.arange(1 << width)
    sign = np.where(bits >> (width - 1) & 1, -1.0, 1.0)
    e = bits >> man & ((1 << exp) - 1)
    m = bits & ((1 << man) - 1)
    whole = m + np.where(e > 0, 1 << man, 0)
    values = sign * np.ldexp(whole.astype(float), np.maximum(e, 1) - bias - man)
    if special == 1:
        top = e == (1 << exp) - 1
        values[top] = np.where(m[top], np.nan, sign[top] * np.inf)
    elif special == 2:
        values[(bits & 127) == 127] = np.nan
    else:
        values[bits == 128] = np.nan
    return values
