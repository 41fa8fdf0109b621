"""Figures of tensors on devices that no kernel of ours reads.

The framework's own operators compute them on the device, a piece of the
tensor at a time. What they give is packed into one small tensor that is
copied to pinned memory behind the computation; some later hook finds that it
has arrived and makes the record. No hook waits for a device.

Counts, extremes, hash and samples come from integer operators on the element
bits and are exact; but the magnitudes of complex numbers are the device's,
within a unit or two in the last place. mean, std and l2 are sums in the
device's own order: in fp64 within 1e-12, on a device without fp64 within 1e-5
(the mean by the measure of the root of the mean square). A histogram is not
made. Nothing here takes part in autograd, draws a random number or writes to
a tensor of the training.
"""

import contextlib
import math
import struct
import threading
import time
from collections import deque

import torch

from . import _tracerd
from .tensors import LABEL, is_capturing, quiet

PIECE = 1 << 22  # elements; temporary memory is some 50 bytes for each
TILE = 1024  # elements that the hash takes together
PENDING = 4096  # results that may be under way
CLOSE_S = 0.1

INT64_MAX = (1 << 63) - 1
INT64_MIN = -(1 << 63)

# (bits as, infinity, smallest normal)
_FLOATS = {
    torch.float64: (torch.int64, 0x7FF0 << 48, 1 << 52),
    torch.float32: (torch.int32, 0x7F800000, 0x00800000),
    torch.float16: (torch.int16, 0x7C00, 0x0400),
    torch.bfloat16: (torch.int16, 0x7F80, 0x0080),
}
# dtypes of one byte: smallest normal, as float32
_SMALL = {
    "float8_e4m3fn": 2.0**-6,
    "float8_e5m2": 2.0**-14,
    "float8_e4m3fnuz": 2.0**-7,
    "float8_e5m2fnuz": 2.0**-15,
    "float8_e8m0fnu": 0.0,
}
# of the parts of complex numbers
_PARTS = {"complex32": 2.0**-14, "complex64": 2.0**-126, "complex128": 0.0}
_WHOLE = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
     "uint64")
)

# What is packed for each piece: so many numbers of 8 bytes
_WIDTH = 14

_no_fp64 = {"mps"}  # types of devices
_no_hash = set()


class Unsupported(Exception):
    """No figures: shape only."""


# ---- pieces ----


def _runs(tensor):
    """The elements in row-major order, in one-dimensional pieces."""
    n = tensor.numel()
    if tensor.is_contiguous() or n <= PIECE:
        flat = tensor.reshape(-1).contiguous()
        for first in range(0, n, PIECE):
            yield flat[first : first + PIECE]
        return
    rows = tensor.shape[0]
    if rows == 1:
        yield from _runs(tensor[0])
        return
    some = max(1, PIECE // (n // rows))
    for first in range(0, rows, some):
        yield from _runs(tensor[first : first + some])


def _pieces(tensor):
    """The same, each but the last of whole tiles."""
    rest = None
    for run in _runs(tensor):
        if rest is not None:
            run = torch.cat((rest, run))
        whole = run.numel() // TILE * TILE
        if whole:
            yield run[:whole]
        rest = run[whole:] if whole < run.numel() else None
    if rest is not None:
        yield rest


# ---- figures of one piece, each a tensor of one number ----


def _bits(value, kind):
    return int.from_bytes(struct.pack(kind, value), "little")


def _float_figures(x, normal=None):
    as_int, infinity, smallest = _FLOATS[x.dtype]
    if normal is None:
        normal = smallest
    top = torch.iinfo(as_int).max
    bits = x.view(as_int)
    size = bits & top
    finite = size < infinity
    # in the order of the values
    key = bits ^ ((bits >> (as_int.itemsize * 8 - 1)) & top)
    return finite, [
        (size > infinity).sum(),
        (bits == infinity).sum(),
        (bits == infinity - top - 1).sum(),
        (size == 0).sum(),
        ((size != 0) & (size < normal)).sum(),
        torch.where(finite, key, -top - 1).amax(),
        torch.where(finite, key, top).amin(),
        torch.where(finite, size, 0).amax(),
        torch.where(finite & (size != 0), size, top).amin(),
    ]


def _whole_figures(x):
    """x is int64. The least magnitude is there as its negative, which every
    number has."""
    none = torch.zeros((), dtype=torch.int64, device=x.device)
    negative = torch.where(x < 0, x, -x)
    return [
        none, none, none, (x == 0).sum(), none, x.amax(), x.amin(), none,
        torch.where(x != 0, negative, INT64_MIN).amax(),
    ]


def _unsigned_figures(bits):
    """bits is uint64 as int64; all is there less 2^63."""
    x = bits ^ INT64_MIN
    none = torch.zeros((), dtype=torch.int64, device=x.device)
    return [
        none, none, none, (bits == 0).sum(), none, x.amax(), x.amin(), none,
        torch.where(bits != 0, x, INT64_MAX).amin(),
    ]


def _sum(x):
    """Two levels, so that an fp32 sum is as good as one of few numbers."""
    whole = x.numel() // TILE * TILE
    total = x[whole:].sum()
    if whole:
        total = total + x[:whole].view(-1, TILE).sum(1).sum()
    return total


def _moments(x, finite):
    """mean, what it is to be corrected by, sum of squares about it, scale."""
    if finite is not None:
        x = torch.where(finite, x, 0)
        count = finite.sum().clamp(min=1)
    else:
        count = x.numel()
    size = x.abs().amax()
    # near 1, so that no square overflows
    wide = 1000 if x.dtype is torch.float64 else 120
    power = torch.where(size > 0, size, 1).log2().floor().clamp(-wide, wide)
    scale = torch.exp2(-power)
    x = x * scale
    mean = _sum(x) / count
    x = x - mean
    if finite is not None:
        x = torch.where(finite, x, 0)
    return [mean, _sum(x) / count, _sum(x * x), scale]


def _magnitude(x, real):
    re, im = torch.view_as_real(x).to(real).unbind(-1)
    if x.dtype is torch.complex128 or real is torch.float32:
        size = torch.hypot(re, im)
    else:
        # fp64 holds the squares exactly
        size = (re * re + im * im).sqrt()
    return torch.where(torch.isinf(re) | torch.isinf(im), math.inf, size)


def _piece(x, name, real):
    """The numbers of one piece but its hash, as two lists: integers, and
    floats of type `real`."""
    if name in _WHOLE:
        if name == "uint64":
            bits = x.view(torch.int64)
            figures = _unsigned_figures(bits)
            high, low = (bits >> 32) & 0xFFFFFFFF, bits & 0xFFFFFFFF
            x = high.to(real) * 4294967296.0 + low.to(real)
        else:
            x = (x.view(torch.uint8) != 0 if name == "bool" else x).to(
                torch.int64
            )
            figures = _whole_figures(x)
            x = x.to(real)
        return figures, _moments(x, None)
    if name in _PARTS:
        x = _magnitude(x, real)
        finite, figures = _float_figures(
            x,
            _bits(_PARTS[name], "<d" if real is torch.float64 else "<f")
            or None,
        )
    elif name in _SMALL:
        x = x.to(torch.float32)
        finite, figures = _float_figures(x, _bits(_SMALL[name], "<f"))
    else:
        finite, figures = _float_figures(x)
        if x.dtype is torch.float32 and real is torch.float64:
            return figures, _moments(_widen(x), finite)
    return figures, _moments(x.to(real), finite)


def _widen(x):
    """fp32 to fp64, subnormals too where the processor flushes them."""
    bits = x.view(torch.int32)
    size = bits & 0x7FFFFFFF
    small = (size & 0x7F800000) == 0
    value = size.to(torch.float64) * 2.0**-149
    value = torch.where(bits < 0, -value, value)
    return torch.where(small, value, x.to(torch.float64))


# ---- the hash ----

_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_STEP = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_keys = {}  # (device, words of a tile) -> tensor


def _signed(v):
    return v - (1 << 64) if v >> 63 else v


def _mix_number(z):
    z = (z ^ z >> 30) * _M1 & _MASK
    z = (z ^ z >> 27) * _M2 & _MASK
    return z ^ z >> 31


def _shifted(z, by):
    return (z >> by) & ((1 << (64 - by)) - 1)


def _mix(z):
    z = (z ^ _shifted(z, 30)) * _signed(_M1)
    z = (z ^ _shifted(z, 27)) * _signed(_M2)
    return z ^ _shifted(z, 31)


def _keys_for(device, words):
    keys = _keys.get((device, words))
    if keys is None:
        k = [_mix_number((i + 1) * _STEP & _MASK) for i in range(144)]
        numbers = [
            _signed(k[j % 16] ^ k[16 + j // 16]) for j in range(words)
        ]
        keys = torch.tensor(numbers, dtype=torch.int64, device=device)
        _keys[device, words] = keys
    return keys


def _products(words, keys):
    x = words ^ keys
    low = (x & 0xFFFFFFFF) | 1 << 32
    return low * (((x >> 32) & 0xFFFFFFFF) | 1 << 32)


def _hash(x, first_tile):
    """A piece's part of the sum over all tiles."""
    raw = _bytes(x)
    if raw.numel() % 8:
        raw = torch.cat((raw, raw.new_zeros(8 - raw.numel() % 8)))
    elif raw.storage_offset() % 8:
        raw = raw.clone()
    words = raw.view(torch.int64)
    keys = _keys_for(x.device, TILE * x.itemsize // 8)
    whole = words.numel() // keys.numel() * keys.numel()
    sums = []
    if whole:
        table = words[:whole].view(-1, keys.numel())
        sums.append(_products(table, keys).sum(1))
    if whole < words.numel():
        rest = words[whole:]
        sums.append(_products(rest, keys[: rest.numel()]).sum()[None])
    sums = torch.cat(sums)
    tiles = torch.arange(
        first_tile, first_tile + sums.numel(), device=x.device
    )
    return _mix(sums + tiles * _signed(_STEP)).sum()


def _bytes(x):
    """The bytes of a contiguous one-dimensional tensor."""
    if x.is_complex():
        x = torch.view_as_real(x).view(-1)
    return x.view(torch.uint8)


# ---- samples ----

_places = {}  # (device, geometry, which) -> tensor


def _sample_bytes(tensor, k, sampling):
    n = tensor.numel()
    key = (
        tensor.device, tensor.shape, tensor.stride(), k, sampling,
        tensor.is_complex(),
    )
    places = _places.get(key)
    if places is None:
        if len(_places) >= 4096:
            _places.clear()
        offsets = [
            _offset(tensor, place)
            for place in _tracerd.places(n, k, *sampling)
        ]
        places = _places[key] = torch.tensor(
            offsets, dtype=torch.int64, device=tensor.device
        )
    extent = 1 + sum(
        (e - 1) * s
        for e, s in zip(tensor.shape, tensor.stride(), strict=True)
    )
    flat = tensor.as_strided((extent,), (1,), tensor.storage_offset())
    rows = _bytes(flat).view(extent, tensor.itemsize)
    return rows.index_select(0, places).view(-1)


def _offset(tensor, place):
    at = 0
    for extent, stride in zip(
        reversed(tensor.shape), reversed(tensor.stride()), strict=True
    ):
        place, index = divmod(place, extent)
        at += index * stride
    return at


# ---- a whole tensor ----


class Result:
    """What is needed to read the bytes that measure() packs."""

    __slots__ = (
        "dtype", "hashed", "n", "packed", "real", "sizes",
    )

    def __init__(self, tensor, real):
        self.dtype = str(tensor.dtype).rpartition(".")[2]
        self.n = tensor.numel()
        self.real = real
        self.hashed = True
        self.sizes = []  # elements of the pieces
        self.packed = None


def _whole_numbers(figures):
    return [f.to(torch.int64) for f in figures]


def measure(tensor, k, sampling=(0, 0)):
    """A Result, whose numbers are still on the device. Raises Unsupported
    for dtypes without figures, and what operators raise."""
    fp64 = tensor.device.type not in _no_fp64
    result = Result(tensor, torch.float64 if fp64 else torch.float32)
    name = result.dtype
    packed = name == "float4_e2m1fn_x2"
    if not packed and not (
        tensor.dtype in _FLOATS or name in _SMALL or name in _PARTS
        or name in _WHOLE
    ):
        raise Unsupported(name)
    rows, tile = [], 0
    if packed:
        tensor = tensor.view(torch.uint8)
    for x in _pieces(tensor):
        part = []
        if not packed:
            figures, moments = _piece(x, name, result.real)
            floats = torch.stack(moments)
            if fp64:
                floats = floats.view(torch.int64)
            else:
                floats = floats.view(torch.int32).to(torch.int64)
            part = [torch.stack(_whole_numbers(figures)), floats]
        part.append(_try_hash(result, x, tile))
        rows.extend(part)
        result.sizes.append(x.numel())
        tile += x.numel() // TILE
    if rows:
        out = [_bytes(torch.cat(rows))]
        if k and not packed:
            out.append(_sample_bytes(tensor, k, sampling))
        result.packed = torch.cat(out)
    return result


def _try_hash(result, x, tile):
    kind = x.device.type
    if kind not in _no_hash:
        try:
            return _hash(x, tile)[None]
        except (NotImplementedError, RuntimeError, TypeError):
            _no_hash.add(kind)
    result.hashed = False
    return torch.zeros(1, dtype=torch.int64, device=x.device)


# ---- reading what was packed ----

HAS_COUNTS, HAS_RANGE, HAS_ABS, HAS_MEAN, HAS_L2, HAS_HASH = (
    1 << i for i in range(6)
)
_NO_FIGURES = (0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, 0.0)


def read(result, data):
    """(figures, samples), as Client.record_figures() takes them."""
    if result.dtype == "float4_e2m1fn_x2":
        hashes = struct.unpack_from(f"<{len(result.sizes)}q", data)
        has = HAS_HASH if result.hashed and result.n else 0
        return (
            (result.n, has, *_NO_FIGURES[:5], 0, 0, 0, 0, 0.0, 0.0, 0.0,
             _hash_of(hashes, result) if has else 0),
            b"",
        )
    layout = "9q4dq" if result.real is torch.float64 else "9q4qq"
    rows = [
        struct.unpack_from(f"<{layout}", data, i * _WIDTH * 8)
        for i in range(len(result.sizes))
    ]
    return _figures(result, rows), data[len(rows) * _WIDTH * 8 :]


def _hash_of(hashes, result):
    return _mix_number((sum(hashes) + result.n) & _MASK)


def _figures(result, rows):
    whole = result.dtype in _WHOLE
    zero = 0 if whole else 0.0
    counts = [sum(row[i] for row in rows) for i in range(5)]
    finite = result.n - sum(counts[:3])
    has = HAS_COUNTS
    number = 0
    if result.n and result.hashed:
        has |= HAS_HASH
        number = _hash_of([row[13] for row in rows], result)
    if not finite:
        return (
            result.n, has, *counts, zero, zero, zero, zero, 0.0, 0.0, 0.0,
            number,
        )
    has |= HAS_RANGE | HAS_ABS | HAS_MEAN | HAS_L2
    extremes = _extremes(result, rows, counts[3] == finite)
    moments = _merged(result, rows)
    return result.n, has, *counts, *extremes, *moments, number


def _extremes(result, rows, all_zero):
    """max, min, absmax, absmin."""
    high = max(row[5] for row in rows)
    low = min(row[6] for row in rows)
    if result.dtype == "uint64":
        high, low = high + (1 << 63), low + (1 << 63)
        least = min(row[8] for row in rows) + (1 << 63)
        return high, low, high, 0 if all_zero else least
    if result.dtype in _WHOLE:
        least = -max(row[8] for row in rows)
        size = max(abs(high), abs(low))
        return high, low, size, 0 if all_zero else least
    top = max(row[7] for row in rows)
    least = min(row[8] for row in rows)
    value = _value_of(result)
    return (
        _from_key(high, value), _from_key(low, value), value(top),
        0.0 if all_zero else value(least),
    )


def _value_of(result):
    """What turns the bits of a magnitude into a number."""
    name = result.dtype
    if name in _SMALL:
        name = "float32"
    if name in _PARTS:
        name = "float64" if result.real is torch.float64 else "float32"
    pack, unpack, shift = {
        "float64": ("<Q", "<d", 0),
        "float32": ("<I", "<f", 0),
        "float16": ("<H", "<e", 0),
        "bfloat16": ("<I", "<f", 16),
    }[name]
    return lambda bits: struct.unpack(
        unpack, struct.pack(pack, bits << shift)
    )[0]


def _from_key(key, value):
    """-0 has the key -1."""
    return value(key) if key >= 0 else -value(-key - 1) + 0.0


def _float_of(row, i, real):
    if real is torch.float64:
        return row[i]
    return struct.unpack("<f", struct.pack("<i", row[i]))[0]


def _merged(result, rows):
    """mean, std, l2 from those of the pieces."""
    parts = []  # count, mean, std, scale of each
    for size, row in zip(result.sizes, rows, strict=True):
        count = size - sum(row[:3])
        if not count:
            continue
        mean, more, squares, scale = (
            _float_of(row, j, result.real) for j in range(9, 13)
        )
        spread = math.sqrt(max(0.0, squares / count - more * more))
        parts.append((count, mean + more, spread, scale))
    total = sum(p[0] for p in parts)
    unit = min(p[3] for p in parts)  # that of the largest numbers
    means = [p[1] * (unit / p[3]) for p in parts]
    spreads = [p[2] * (unit / p[3]) for p in parts]
    counts = [p[0] for p in parts]
    mean = _weighted(counts, means) / total
    squares = _weighted(
        counts,
        [s * s + (m - mean) ** 2 for m, s in zip(means, spreads, strict=True)],
    )
    spread = math.sqrt(squares / total)
    l2 = math.sqrt(squares + total * mean * mean)
    return mean / unit + 0.0, spread / unit, _divided(l2, unit)


def _weighted(counts, values):
    return math.fsum(c * v for c, v in zip(counts, values, strict=True))


def _divided(a, b):
    try:
        return a / b
    except OverflowError:
        return math.inf


# ---- from the hook to the record ----


class _Pending:
    """A result under way."""

    __slots__ = ("event", "head", "host", "result", "shape")


class Queue:
    """Results that are under way to one client. Used by any thread."""

    def __init__(self, client, sampling):
        self.client = client
        self.sampling = sampling
        self._pending = deque()
        self._lock = threading.Lock()

    def put(self, head, tensor, k, shape):
        """Queues the figures of a tensor, under another shape if that is not
        None. head is what a record begins with, the labels in head[4].

        Returns False for what has no figures: shape only, then."""
        if len(self._pending) >= PENDING:
            self.client.lost(1, "device")
            return True
        with quiet(torch):
            if tensor.device.type != "cpu" and is_capturing(torch, tensor):
                return False
            try:
                result = measure(tensor, k, self.sampling)
            except torch.OutOfMemoryError:
                self.client.lost(1, "oom")
                return True
            except (Unsupported, NotImplementedError, RuntimeError, TypeError):
                return False  # the device lacks an operator
            it = _Pending()
            it.head = (*head[:4], head[4] | LABEL["operators"], head[5])
            it.result = result
            it.shape = tuple(tensor.shape) if shape is None else shape
            it.host, it.event = _to_host(result.packed)
            result.packed = None
        self._pending.append(it)
        return True

    def poll(self):
        """Makes records of what has arrived. Waits for nothing."""
        if not self._pending or not self._lock.acquire(blocking=False):
            return
        try:
            while self._pending:
                it = self._pending[0]
                if it.event is not None and not it.event.query():
                    return
                self._pending.popleft()
                self._record(it)
        finally:
            self._lock.release()

    def _record(self, it):
        data = b"" if it.host is None else it.host.numpy().tobytes()
        figures, samples = read(it.result, data)
        self.client.record_figures(
            *it.head, it.result.dtype, it.shape, figures, samples
        )

    def wait(self, seconds):
        """True when all has arrived within the time."""
        end = time.monotonic() + seconds
        while True:
            self.poll()
            if not self._pending:
                return True
            if time.monotonic() >= end:
                return False
            time.sleep(0.001)

    def close(self):
        if not self.wait(CLOSE_S):
            self.client.lost(len(self._pending), "device")
            self._pending.clear()


def _to_host(packed):
    """(tensor on the host, event after which it is whole)."""
    if packed is None or packed.device.type == "cpu":
        return packed, None
    host = None
    with contextlib.suppress(RuntimeError):
        host = torch.empty(
            packed.shape, dtype=packed.dtype, device="cpu", pin_memory=True
        )
    if host is None:
        host = torch.empty(packed.shape, dtype=packed.dtype, device="cpu")
    host.copy_(packed, non_blocking=True)
    module = getattr(torch, packed.device.type)
    event = module.Event()
    stream = getattr(module, "current_stream", None)
    if stream is None:
        event.record()
    else:
        event.record(stream(packed.device))
    return host, event
