"""What the statistics cost and how exact they are, beside numpy and torch.

    bench_stats.py MODULE [speed] [histogram] [strides] [small] [accuracy]

MODULE is the library of bench_stats.c; without more words, everything. All
that stands in one line was measured in turn, again and again, in one run; what
one thread does by its CPU time, so that a busy machine disturbs it less.
Prints figures and aims; judges nothing. TRACERD_KERNEL chooses the kernel.
"""

import ctypes
import itertools
import math
import statistics
import sys
import time

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"cannot import: {error}")
    sys.exit(77)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
PART = 64 * MIB  # what numpy and torch get of more
FILLED = 4 * MIB  # bytes of data before it repeats

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int32": torch.int32,
}
AIMS = {  # of the plain read: one thread, two threads
    "float32": (0.75, 0.9),
    "bfloat16": (0.55, 0.85),
    "float16": (0.45, 0.75),
}
RECIPE_AIM = 10


# ---- the library ----


class Library:
    """bench_stats.c; each call returns seconds."""

    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        self.c.bench_memory.restype = ctypes.c_void_p
        self.c.bench_memory.argtypes = ctypes.c_size_t, ctypes.c_int
        self.c.bench_repeat.argtypes = ctypes.c_void_p, *[ctypes.c_size_t] * 2
        self.c.bench_read.restype = ctypes.c_double
        self.c.bench_read.argtypes = (
            ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint,
        )
        self.c.bench_stats.restype = ctypes.c_double
        self.c.bench_stats.argtypes = (
            ctypes.c_void_p, ctypes.c_int, ctypes.c_int, ctypes.c_void_p,
            ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint,
            ctypes.c_uint,
        )
        self.c.bench_figures.argtypes = (
            ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_void_p,
        )
        self.c.bench_kernel.restype = ctypes.c_char_p
        self.c.bench_read_width.restype = ctypes.c_char_p

    def memory(self, size, huge):
        at = self.c.bench_memory(size, huge)
        if not at:
            sys.exit(f"no memory: {size} bytes")
        return at

    def fill(self, at, size, dtype):
        """Normal numbers, or integers of all 32 bits."""
        n = FILLED // dtype.itemsize
        torch.manual_seed(1)
        if dtype == torch.int32:
            few = torch.randint(-(1 << 31), 1 << 31, (n,)).to(dtype)
        else:
            few = torch.randn(n).to(dtype)
        ctypes.memmove(at, few.view(torch.uint8).numpy().ctypes.data, FILLED)
        self.c.bench_repeat(at, FILLED, size)

    def read(self, at, size, threads=1):
        return self.c.bench_read(at, size, threads)

    def stats(
        self, at, dtype, shape, strides=None, histogram=0, threads=1, calls=1
    ):
        axes = ctypes.c_int64 * len(shape)
        took = self.c.bench_stats(
            at, self.code(dtype), len(shape), axes(*shape),
            axes(*strides) if strides else None, 16, histogram, threads, calls,
        )
        if took < 0:
            sys.exit(f"trd_stats_cpu_as(): {int(took)}")
        return took

    def figures(self, tensor):
        out = (ctypes.c_double * 3)()
        code = self.code(tensor.dtype)
        if self.c.bench_figures(tensor.data_ptr(), code, tensor.numel(), out):
            sys.exit("trd_stats_cpu() failed")
        return out[0], out[1]

    def code(self, dtype):
        return self.c.bench_dtype(str(dtype).split(".")[1].encode())


def tensor_at(at, size, dtype):
    memory = (ctypes.c_uint8 * size).from_address(at)
    return torch.frombuffer(memory, dtype=dtype)


# ---- what it is compared with ----


def recipe(tensor):
    """What the script this project grew from does to a tensor."""
    values = tensor.cpu().float().detach().numpy().ravel()
    places = np.linspace(0, len(values) - 1, min(16, len(values)), dtype=int)
    figures = np.max(values), np.min(values), np.mean(values), np.std(values)
    return figures, values[places]


def wide(tensor):
    """The tensor, where torch's operators take its dtype."""
    small = tensor.dtype.itemsize == 1 or not tensor.is_floating_point()
    return tensor.float() if small else tensor


def operators(tensor):
    values = wide(tensor)
    return torch.aminmax(values), torch.std_mean(values, correction=0)


def more_operators(tensor):
    values = wide(tensor)
    return (
        torch.aminmax(values),
        torch.std_mean(values, correction=0),
        torch.linalg.vector_norm(values),
        torch.isnan(values).sum(),
        torch.isinf(values).sum(),
        (values == 0).sum(),
    )


def seconds(function, *args):
    start = time.thread_time()
    function(*args)
    return time.thread_time() - start


# ---- measuring in turn ----


class Row:
    """Ways to do one thing, each a function of the round that returns seconds
    and the bytes it was for; a way is done in every `each`-th round."""

    def __init__(self):
        self.ways = {}
        self.rates = {}

    def add(self, name, size, function, each=1):
        self.ways[name] = size, function, each
        self.rates[name] = []

    def run(self, budget, most=25):
        start = time.perf_counter()
        done = 0
        while done < 3 or (
            time.perf_counter() - start < budget and done < most
        ):
            for name, (size, function, each) in self.ways.items():
                if done % each == 0:
                    self.rates[name].append(size / function(done) / 1e9)
            done += 1
            if done == 2 and time.perf_counter() - start > 2 * budget:
                break
        return self

    def best(self, name):
        return max(self.rates[name])

    def median(self, name):
        return statistics.median(self.rates[name])

    def both(self, name):
        if name not in self.rates:
            return "-"
        return f"{self.best(name):.2f} {self.median(name):.2f}"

    def ratio(self, name, to):
        """The median of the ratios in one round."""
        if name not in self.rates:
            return "-"
        pairs = zip(self.rates[name], self.rates[to], strict=False)
        return f"{statistics.median(a / b for a, b in pairs):.2f}"


def table(title, heads, rows):
    cells = [heads, *[[str(c) for c in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(heads))]
    print(f"\n{title}")
    for row in cells:
        first = row[0].ljust(widths[0])
        rest = [c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True)]
        print("  " + "  ".join([first, *rest]), flush=True)


def size_name(size):
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} bytes"


# ---- speed ----


def speed_row(library, at, whole, size, dtype, budget):
    """`size` bytes at a time, somewhere else each time, so that they come from
    memory and from no cache."""
    part = min(size, PART)
    count = size // dtype.itemsize
    step = max(size, 8 * MIB)
    places = itertools.cycle(range(at, at + whole - size + 1, step))
    next(places)  # what was filled from here is in the cache still

    def read(threads):
        return library.read(next(places), size, threads)

    def stats(threads):
        return library.stats(next(places), dtype, [count], threads=threads)

    row = Row()
    row.add("read", size, lambda _: read(1))
    row.add("tracerd", size, lambda _: stats(1))
    if size > 4 * MIB:
        row.add("read 2", size, lambda _: read(2))
        row.add("tracerd 2", size, lambda _: stats(2))
    each = 1 if size == MIB else 3
    for name, way in (
        ("recipe", recipe),
        ("torch", operators),
        ("torch all", more_operators),
    ):
        row.add(
            name,
            part,
            lambda _, w=way: seconds(w, tensor_at(next(places), part, dtype)),
            each,
        )
    return row.run(budget)


def speed(library):
    rows = []

    def add(at, whole, size, name, dtype, note=""):
        row = speed_row(library, at, whole, size, dtype, budget=4)
        times = row.median("tracerd") / row.median("recipe")
        rows.append([
            name + note, size_name(size), row.both("read"),
            row.both("tracerd"), row.ratio("tracerd", "read"),
            row.both("read 2"), row.both("tracerd 2"),
            row.ratio("tracerd 2", "read 2"), f"{row.median('recipe'):.2f}",
            f"{times:.1f}", f"{row.median('torch'):.2f}",
            f"{row.median('torch all'):.2f}",
        ])

    at = library.memory(GIB, True)
    for name, dtype in DTYPES.items():
        library.fill(at, GIB, dtype)
        for size in (MIB, 64 * MIB, GIB):
            add(at, GIB, size, name, dtype)
    small = library.memory(256 * MIB, False)
    library.fill(small, 256 * MIB, torch.float32)
    add(small, 256 * MIB, 64 * MIB, "float32", torch.float32, ", 4 KiB pages")
    table(
        "Speed, GB/s, best and median, from memory that is in no cache; on"
        " huge pages\nbut where noted; recipe and torch with one thread, on"
        f" {size_name(PART)} of what is larger",
        [
            "dtype", "size", "plain read", "tracerd", "ratio", "2 threads",
            "tracerd", "ratio", "recipe", "times", "torch", "torch all",
        ],
        rows,
    )
    print(
        "  torch: aminmax, std_mean; torch all: and norm, nan, inf, zero; fp8"
        " and integers\n  through float(), as in the recipe"
    )
    for name, (one, two) in AIMS.items():
        print(f"  aim {name}: {one} of the plain read, {two} by two threads")
    print(f"  aim: {RECIPE_AIM} times the recipe")


# ---- histograms and strides ----


def histogram(library):
    rows = []
    size = 64 * MIB
    at = library.memory(size, True)
    for name, dtype in {**DTYPES, "float64": torch.float64}.items():
        library.fill(at, size, dtype)
        row = Row()
        for kind, what in enumerate(("off", "rows", "exact")):
            row.add(
                what,
                size,
                lambda t, k=kind, d=dtype: library.stats(
                    at, d, [size // d.itemsize], histogram=k
                ),
            )
        row.run(0.8, most=7)
        rows.append([
            name, *[f"{row.median(w):.2f}" for w in row.ways],
            row.ratio("rows", "off"), row.ratio("exact", "off"),
        ])
    table(
        f"Exponent histogram, GB/s, median, {size_name(size)}, one thread",
        ["dtype", "off", "rows", "exact", "rows/off", "exact/off"],
        rows,
    )


def strides(library):
    rows = []
    size = 128 * MIB
    at = library.memory(size, True)
    for name in ("float32", "bfloat16", "float8_e4m3fn"):
        dtype = DTYPES[name]
        library.fill(at, size, dtype)
        n = size // dtype.itemsize // 2
        side = 1 << n.bit_length() // 2
        views = {
            "contiguous": (0, [n], [1]),
            "transposed": (0, [side, n // side], [1, side]),
            "every other": (0, [n], [2]),
            "expanded": (0, [n // 1024, 1024], [0, 1]),
            "backwards": (n - 1, [n], [-1]),
            "rows, gaps": (0, [n // 1000, 1000], [1024, 1]),
        }
        row = Row()
        for what, (first, shape, steps) in views.items():
            row.add(
                what,
                math.prod(shape) * dtype.itemsize,
                lambda t, d=dtype, f=first, sh=shape, st=steps: library.stats(
                    at + f * d.itemsize, d, sh, st
                ),
            )
        row.run(1.5, most=7)
        rows.append([name, *[f"{row.median(w):.2f}" for w in row.ways]])
    table(
        f"Strides, GB/s of elements, median, {size_name(size // 2)}, one"
        " thread",
        ["dtype", *row.ways],
        rows,
    )


# ---- small tensors ----


def small(library):
    rows = []
    at = library.memory(MIB, True)
    for name in ("float32", "bfloat16"):
        dtype = DTYPES[name]
        tensor = torch.randn(MIB // dtype.itemsize).to(dtype)
        ctypes.memmove(at, tensor.view(torch.uint8).numpy().ctypes.data, MIB)
        for size in (KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB):
            count = size // dtype.itemsize
            calls = max(2, 4 * MIB // size)
            part = tensor_at(at, size, dtype)
            row = Row()
            row.add(
                "tracerd",
                1,
                lambda t, c=count, m=calls, d=dtype: library.stats(
                    at, d, [c], calls=m
                ) / m,
            )
            for what, way in (("recipe", recipe), ("torch", operators)):
                row.add(what, 1, lambda t, w=way, p=part: seconds(w, p))
            row.run(0.15, most=15)
            rows.append([
                name, size_name(size),
                *[
                    f"{1e-3 / row.best(w):.2f} {1e-3 / row.median(w):.2f}"
                    for w in row.ways
                ],
            ])
    table(
        "Small tensors, us a call, best and median, in the cache, 16 samples",
        ["dtype", "size", "tracerd", "recipe", "torch"],
        rows,
    )


# ---- accuracy ----

ELEMENTS = 1 << 20


def distributions():
    rng = np.random.default_rng(7)

    def normal(mean=0.0, std=1.0):
        return mean + std * rng.standard_normal(ELEMENTS)

    spike = normal(1e4, 0.1)
    spike[0] = 1e7
    channel = normal()
    channel[5::1024] += 1000
    return {
        "N(0,1e-2)": normal(0, 1e-2),
        "N(1,1e-3)": normal(1, 1e-3),
        "N(1000,1e-2)": normal(1000, 1e-2),
        "x[0]=1e7": spike,
        "N(0,1e-9)": normal(0, 1e-9),
        "channel": channel,
        "lognormal": np.exp(normal(0, 4)),
        "ReLU": np.maximum(normal(), 0),
    }


class Exact:
    """Mean and standard deviation from exactly rounded sums."""

    def __init__(self, values):
        n = len(values)
        self.mean = math.fsum(values) / n
        off = values - self.mean
        self.rest = math.fsum(off) / n
        self.std = math.sqrt(math.fsum(off * off) / n - self.rest**2)

    def errors(self, mean, std):
        mean = abs((mean - self.mean) - self.rest) / self.std
        return f"{abs(std - self.std) / self.std:.0e}|{mean:.0e}"


def numpys(tensor):
    values = tensor if tensor.dtype == torch.float64 else tensor.float()
    values = values.numpy()
    return float(values.mean()), float(values.std())


def torchs(tensor):
    std, mean = torch.std_mean(tensor, correction=0)
    return float(mean), float(std)


def accuracy(library):
    cases = distributions()
    rows = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        name = str(dtype).split(".")[1]
        ways = {"numpy": numpys, "torch": torchs, "tracerd": library.figures}
        cells = {way: [] for way in ways}
        for values in cases.values():
            tensor = torch.from_numpy(values).to(dtype)
            held = tensor.double().numpy()
            plain = np.isfinite(held).all() and held.std() > 0
            exact = Exact(held) if plain else None
            for way, function in ways.items():
                cells[way].append(
                    exact.errors(*function(tensor)) if plain else "-"
                )
        rows += [[f"{name} {way}", *cells[way]] for way in ways]
    table(
        f"Accuracy, {ELEMENTS} elements: relative error of std | error of"
        " mean in std",
        ["", *cases],
        rows,
    )
    print(
        "  against math.fsum; bounds: float32 and narrower 4e-08|5e-09,"
        " float64 1e-13|1e-13\n  (and the rounding of the mean to fp64); -:"
        " the dtype does not hold it"
    )


PARTS = {
    "speed": speed,
    "histogram": histogram,
    "strides": strides,
    "small": small,
    "accuracy": accuracy,
}


def main(path, *wanted):
    library = Library(path)
    torch.set_num_threads(1)
    print(
        f"kernel {library.c.bench_kernel().decode()}, plain read by loads of"
        f" {library.c.bench_read_width().decode()}, torch {torch.__version__},"
        f" numpy {np.__version__}"
    )
    start = time.perf_counter()
    for name in wanted or PARTS:
        PARTS[name](library)
    print(f"\n{time.perf_counter() - start:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
