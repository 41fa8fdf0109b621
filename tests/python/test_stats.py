"""tracerd.stats() against numpy in float64, for every kind of tensor."""

import math

import numpy as np
import pytest
import torch

import tracerd
from tracerd import _tracerd

KEYS = [
    "dtype", "shape", "n", "max", "min", "mean", "std", "l2", "absmax",
    "absmin", "nan", "pinf", "ninf", "zero", "subnormal", "hash", "samples",
]
FINITE = ["finite_max", "finite_min", "finite_mean", "finite_std", "finite_l2"]

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL = [
    getattr(torch, name)
    for name in (
        "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"
    )
    if hasattr(torch, name)
]
WHOLE = [
    getattr(torch, name)
    for name in (
        "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
        "uint64",
    )
    if hasattr(torch, name)
]


def numbers(tensor):
    """The elements in row-major order, exact, as a numpy array."""
    flat = tensor.detach().contiguous().reshape(-1)
    if flat.dtype in (torch.bfloat16, torch.float16, *SMALL):
        flat = flat.float()
    return flat.numpy()


def close(got, exact, scale, dtype):
    """Accuracy of numerics: relative to what is summed up."""
    if math.isnan(exact):
        return math.isnan(got)
    if math.isinf(exact):
        return got == exact
    tolerance = 1e-13 if dtype in (torch.float64, *WHOLE) else 4e-8
    return abs(got - exact) <= tolerance * scale + 1e-300


def check(tensor, samples=16):
    got = tracerd.stats(tensor, samples)
    a = numbers(tensor)
    wide = a.astype(np.float64)
    finite = wide[np.isfinite(wide)]
    broken = finite.size < wide.size
    assert list(got) == KEYS + (FINITE if broken else [])
    assert got["dtype"] == str(tensor.dtype).split(".")[1]
    assert got["shape"] == list(tensor.shape)
    assert got["n"] == a.size
    assert got["nan"] == np.isnan(wide).sum()
    assert got["pinf"] == np.isposinf(wide).sum()
    assert got["ninf"] == np.isneginf(wide).sum()
    assert got["zero"] == (wide == 0).sum()
    place = np.linspace(0, a.size - 1, min(samples, a.size), dtype=int)
    np.testing.assert_array_equal(got["samples"], a[place] if a.size else [])
    if not a.size:
        assert got["max"] is got["mean"] is got["hash"] is None
        return got
    with np.errstate(all="ignore"):
        spread = wide.std()
        for name, exact in (("max", a.max()), ("min", a.min())):
            np.testing.assert_array_equal(got[name], exact)
            if tensor.dtype in WHOLE:
                assert type(got[name]) is int
        assert close(
            got["mean"], wide.mean(), np.abs(finite).max(initial=0) / 8,
            tensor.dtype,
        )
        assert close(got["std"], spread, spread, tensor.dtype)
        l2 = np.sqrt((wide * wide).sum())
        assert close(got["l2"], l2, l2, tensor.dtype)
    size = np.abs(finite)
    if finite.size:
        assert got["absmax"] == size.max()
        least = size[size > 0].min() if size.any() else None
        assert got["absmin"] == least
    if broken:
        if finite.size:
            assert got["finite_max"] == finite.max()
            assert got["finite_min"] == finite.min()
            assert close(
                got["finite_mean"], finite.mean(), size.max(), tensor.dtype
            )
            assert close(
                got["finite_std"], finite.std(), finite.std(), tensor.dtype
            )
        else:
            assert all(got[name] is None for name in FINITE)
    return got


@pytest.fixture(params=["exchange", "attributes"], autouse=True)
def way(request):
    """Each test once for both ways into a tensor."""
    tracerd.tensors.setup()
    there = _tracerd.use_exchange(request.param == "exchange")
    if request.param == "exchange" and not there:
        pytest.skip("this torch has no exchange functions")
    yield request.param
    _tracerd.use_exchange(True)


@pytest.mark.parametrize("dtype", FLOATS + SMALL, ids=str)
@pytest.mark.parametrize("n", [0, 1, 2, 15, 16, 17, 1000, 5000, 150_000])
def test_floats(dtype, n):
    torch.manual_seed(n)
    check(torch.randn(n, dtype=torch.float64).mul(3).to(dtype))


@pytest.mark.parametrize("dtype", WHOLE, ids=str)
@pytest.mark.parametrize("n", [0, 1, 3, 300, 70_000])
def test_whole_numbers(dtype, n):
    torch.manual_seed(n)
    check(torch.randint(0, 120, (n,)).to(dtype))


def test_whole_numbers_stay_exact():
    got = check(torch.tensor([2**62, -(2**62), 1]))
    assert got["max"] == 2**62 and got["min"] == -(2**62)
    assert got["samples"] == [2**62, -(2**62), 1]
    got = check(torch.tensor([16777217, 16777216, 0]))
    assert got["max"] == 16777217 and got["absmin"] == 16777216
    got = tracerd.stats(torch.tensor([-128, 127], dtype=torch.int8))
    assert got["absmax"] == 128


def test_bool():
    got = tracerd.stats(torch.tensor([True, False, True, True]))
    assert (got["max"], got["min"], got["zero"]) == (1, 0, 1)
    assert got["mean"] == 0.75 and got["samples"] == [1, 0, 1, 1]
    assert got["std"] == pytest.approx(0.4330127018922193, rel=1e-15)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "values",
    [
        [NAN, 1, 2], [1, NAN, 2], [1, 2, NAN], [NAN] * 4,
        [INF, 1, -2], [INF, -INF, 3], [NAN, INF, -1, 2], [-INF] * 3,
        [0.0, -0.0], [-0.0, -1],
    ],
    ids=str,
)
def test_what_is_not_finite(dtype, values):
    got = check(torch.tensor(values, dtype=dtype))
    for name in ("max", "min"):
        if got[name] == 0:
            assert math.copysign(1, got[name]) == 1


def test_sign_of_nan_does_not_matter():
    bits = torch.tensor([0x7FC00000, -0x400000], dtype=torch.int32)
    got = check(torch.cat([bits.view(torch.float32), torch.tensor([5.0])]))
    assert got["nan"] == 2 and got["finite_max"] == 5


def test_subnormals_are_counted_and_kept():
    half = torch.tensor([3e-5, 1.0, 0.0], dtype=torch.float16)
    assert check(half)["subnormal"] == 1
    single = torch.tensor([1e-40, -1e-45, 1.0])
    assert check(single)["subnormal"] == 2


def test_extremes_of_the_range():
    got = check(torch.full((4096,), 3e38))
    assert got["l2"] == pytest.approx(3e38 * 64, rel=1e-6)
    check(torch.full((4096,), 1e-30))
    check(torch.full((100_000,), 65504.0, dtype=torch.float16))


def test_a_large_offset_does_not_eat_the_spread():
    torch.manual_seed(0)
    x = (torch.randn(300_000, dtype=torch.float64) * 0.01 + 1000).float()
    exact = numbers(x).astype(np.float64)
    got = tracerd.stats(x)
    assert abs(got["std"] - exact.std()) <= 4e-8 * exact.std()
    assert abs(got["mean"] - exact.mean()) <= 5e-9 * exact.std()


def test_nothing_and_one():
    got = check(torch.empty(5, 5, 0, dtype=torch.bfloat16))
    assert got["shape"] == [5, 5, 0] and got["nan"] == 0
    got = check(torch.tensor(2.5))
    assert got["shape"] == [] and got["std"] == 0 and got["samples"] == [2.5]
    assert check(torch.tensor([[-3.0]]))["l2"] == 3


@pytest.mark.parametrize("k", [0, 1, 2, 3, 7, 15, 16, 19, 23, 31, 50, 64])
def test_places_of_the_samples(k):
    for n in (1, 2, 3, 5, 10, 16, 17, 50, 100, 999, 4097):
        place = np.linspace(0, n - 1, min(k, n), dtype=int)
        got = tracerd.stats(torch.arange(n), k)["samples"]
        assert got == list(place), (n, k)


def test_order_is_logical_not_that_of_memory():
    b = torch.arange(12.0).view(3, 4)
    image = torch.arange(24.0).view(1, 2, 3, 4)
    for x in (
        b[:, 1:3],
        b.t(),
        torch.arange(20.0)[3::4],
        image.contiguous(memory_format=torch.channels_last),
        torch.arange(100.0)[37:53],
        torch.tensor([1.5]).expand(7),
        torch.arange(400_000).view(400, 1000).t().float(),
        torch.randn(70, 3, 50).permute(2, 0, 1)[::2],
    ):
        got = check(x)
        assert got == {**tracerd.stats(x.contiguous())}


def test_hash_tells_tensors_apart():
    x = torch.randn(999)
    same = tracerd.stats(x.clone())["hash"]
    assert tracerd.stats(x)["hash"] == same and len(same) == 16
    y = x.clone()
    y[500] = torch.nextafter(y[500], torch.tensor(9.0))
    others = [y, x.flip(0), torch.cat([x, x]), -x, x[:-1]]
    assert same not in [tracerd.stats(o)["hash"] for o in others]
    zeros = {tracerd.stats(torch.zeros(n))["hash"] for n in range(1, 40)}
    assert len(zeros) == 39


def test_complex_is_about_magnitudes():
    z = torch.tensor([3 + 4j, 0, 1 - 1j], dtype=torch.complex64)
    for x in (z, z.conj(), z.to(torch.complex128)):
        got = tracerd.stats(x)
        assert (got["max"], got["min"], got["zero"]) == (5, 0, 1)
        assert got["l2"] == pytest.approx(27**0.5, rel=1e-12)
    assert tracerd.stats(z)["samples"] == [[3, 4], [0, 0], [1, -1]]
    assert tracerd.stats(z.conj())["samples"] == [[3, -4], [0, 0], [1, 1]]
    assert tracerd.stats(z.conj().imag)["samples"] == [-4, 0, 1]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_is_about_coalesced_values():
    g = torch.sparse_coo_tensor(
        torch.tensor([[7, 1, 3, 8, 1, 3]]), torch.ones(6, 3), (10, 3)
    )
    got = tracerd.stats(g)
    assert got["shape"] == [10, 3] and got["n"] == 12
    assert (got["max"], got["min"], got["zero"]) == (2, 1, 0)
    assert tracerd.stats(torch.eye(4).to_sparse_csr())["n"] == 4


@pytest.mark.filterwarnings("ignore")
def test_quantized_is_about_the_values_it_stands_for():
    q = torch.quantize_per_tensor(
        torch.tensor([0.0, 1.0, 2.0]), 0.5, 0, torch.quint8
    )
    assert tracerd.stats(q)["max"] == 2


class Tagged(torch.Tensor):
    """A subclass with memory of its own, as libraries define them."""


def test_subclasses():
    x = torch.arange(4.0)
    plain = tracerd.stats(x)
    assert tracerd.stats(x.as_subclass(Tagged)) == plain
    assert tracerd.stats(torch.nn.Parameter(x)) == plain
    assert tracerd.stats(torch.nn.Buffer(x)) == plain


@pytest.mark.filterwarnings("ignore")
def test_without_memory_there_is_a_shape_and_nothing_else():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 3)
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    freed = torch.ones(5)
    freed.untyped_storage().resize_(0)
    for x, shape in (
        (torch.empty(2, 3, device="meta"), [2, 3]),
        (fake, [2, 3]),
        (freed, [5]),
        (nested, None),
        (torch.nn.parameter.UninitializedParameter(), []),
    ):
        got = tracerd.stats(x)
        assert list(got) == [*KEYS, "labels"] and got["shape"] == shape
        assert {"nodata", "unsupported"} & set(got["labels"])
        assert got["max"] is got["hash"] is got["nan"] is None
        assert got["samples"] == []


def test_what_is_not_plain_is_named():
    assert tracerd.stats(torch.eye(4).to_sparse())["labels"] == [
        "sparse", "nnz=4"
    ]
    assert tracerd.stats(torch.ones(2) * 1j)["labels"] == ["complex"]
    assert "labels" not in tracerd.stats(torch.ones(2))


def test_it_takes_no_part_in_autograd():
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    version, node = y._version, y.grad_fn
    assert tracerd.stats(y)["max"] == 2
    assert y._version == version and y.grad_fn is node
    with torch.inference_mode():
        assert tracerd.stats(torch.ones(2) * 3)["max"] == 3


def test_inside_a_transform_nothing_is_read():
    seen = []

    def f(x):
        seen.append(tracerd.stats(x))
        return x.sum()

    torch.vmap(f)(torch.ones(2, 3))
    torch.func.grad(f)(torch.ones(3))
    assert [s["max"] for s in seen] == [None, None]


def test_modes_of_the_processor_are_left_alone():
    x = torch.tensor([1e-40, 1.0])
    if not torch.set_flush_denormal(True):
        pytest.skip("no such mode here")
    try:
        assert tracerd.stats(x)["subnormal"] == 1
        assert (x * 1).tolist()[0] == 0  # still on
    finally:
        torch.set_flush_denormal(False)


def test_modes_of_the_processor_change_no_figure(here):
    tensors = [
        torch.tensor([1e-40, -2e-40], dtype=torch.float32),
        torch.tensor([1.0, -2.0, 1e-40], dtype=torch.float32),
        torch.tensor([1e-40, 3e-40], dtype=torch.bfloat16),
        torch.tensor([6e-8, 1.0], dtype=torch.float16),
        torch.tensor([5e-324, -1e-310, 2.0], dtype=torch.float64),
    ]
    plain = [repr(tracerd.stats(x)) for x in tensors]
    with tracerd.attach(torch.nn.Linear(1, 1), run="modes") as t:
        if not torch.set_flush_denormal(True):
            pytest.skip("no such mode here")
        try:
            flushed = [tracerd.stats(x) for x in tensors]
            for x in tensors:
                t.record("x", x)
        finally:
            torch.set_flush_denormal(False)
        assert t.flush()
    assert [repr(s) for s in flushed] == plain
    stored = here.query("modes", "user-x")
    assert [
        repr({k: r[k] for k in s}) for r, s in zip(stored, flushed, strict=True)
    ] == plain


def test_other_threads_run_meanwhile():
    import threading

    x = torch.ones(30_000_000)
    count = [0]
    done = threading.Event()

    def run():
        while not done.is_set():
            count[0] += 1

    thread = threading.Thread(target=run)
    thread.start()
    tracerd.stats(x)
    before = count[0]
    tracerd.stats(x)
    after = count[0]
    done.set()
    thread.join()
    assert after > before


def test_misuse():
    for wrong in (None, 3.0, [1.0], np.ones(2)):
        with pytest.raises(TypeError):
            tracerd.stats(wrong)
    for wrong in (-1, 4097):
        with pytest.raises(ValueError):
            tracerd.stats(torch.ones(1), wrong)


def test_both_ways_agree():
    torch.manual_seed(3)
    shared = torch.randn(6, 5, 4)
    for x in (
        shared, shared[1:, ::2].transpose(0, 2), shared[0, 0, 0],
        shared[:0], shared.half(), shared.bfloat16(), shared.double(),
        shared.to(torch.float8_e4m3fn), shared > 0, shared.long(),
        torch.complex(shared, shared).permute(2, 0, 1),
        torch.nn.Parameter(shared),
    ):
        _tracerd.use_exchange(True)
        one = _tracerd.stats(x, 16)
        _tracerd.use_exchange(False)
        assert repr(_tracerd.stats(x, 16)) == repr(one) != "None"
