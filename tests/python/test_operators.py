"""The figures that a framework's operators compute, on the CPU, against those
of tracerd.stats()."""

import struct

import pytest
import torch
from torch import nn

import recording
import tracerd
from tracerd import _tracerd, hooks, operators

NAN, INF = float("nan"), float("inf")
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
SMALL = [
    torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
    torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
]
WHOLE = [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8,
    torch.uint16, torch.uint32, torch.uint64, torch.bool,
]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
NAMES = (
    "n", "has", "nan", "pinf", "ninf", "zero", "subnormal", "max", "min",
    "absmax", "absmin", "mean", "std", "l2", "hash",
)
COUNTS = NAMES[2:7]


def measured(tensor, k=16, sampling=(0, 0)):
    with tracerd.tensors.quiet(torch):
        result = operators.measure(tensor, k, sampling)
    data = b"" if result.packed is None else result.packed.numpy().tobytes()
    figures, samples = operators.read(result, data)
    return dict(zip(NAMES, figures, strict=True)), samples


def finite(figures, name):
    return figures.get(f"finite_{name}", figures[name])


def check(tensor, error=1e-12):
    """error: of mean, std and l2, by what numbers of that size can have."""
    got, _ = measured(tensor)
    want = tracerd.stats(tensor)
    assert got["n"] == want["n"]
    assert {n: got[n] for n in COUNTS} == {n: want[n] for n in COUNTS}
    if want["hash"] is not None:
        assert got["hash"] == int(want["hash"], 16)
    else:
        assert not got["has"] & operators.HAS_HASH
    if finite(want, "max") is None:
        assert got["has"] in (1, 33)
        return
    assert got["has"] == 63
    ulp = 4e-16 if tensor.is_complex() else 0
    for name in ("max", "min", "absmax", "absmin"):
        exact = finite(want, name) if name in ("max", "min") else want[name]
        assert abs(got[name] - (exact or 0)) <= ulp * abs(exact or 0)
    if tensor.numel() > 65536 and tensor.dtype is not torch.float64:
        error = max(error, 4e-8)
    size = finite(want, "l2") / want["n"] ** 0.5
    assert abs(got["mean"] - finite(want, "mean")) <= error * size
    assert abs(got["std"] - finite(want, "std")) <= error * size
    l2 = finite(want, "l2")
    assert got["l2"] == l2 or abs(got["l2"] - l2) <= error * l2


@pytest.fixture(params=["fp64", "fp32"])
def error(request, monkeypatch):
    """Once for devices without fp64."""
    if request.param == "fp32":
        monkeypatch.setattr(operators, "_no_fp64", {"cpu"})
        return 1e-5
    return 1e-12


@pytest.fixture(params=["whole", "pieces"])
def pieces(request, monkeypatch):
    """Once for tensors that are larger than a piece."""
    if request.param == "pieces":
        monkeypatch.setattr(operators, "PIECE", 4096)


@pytest.mark.parametrize("dtype", FLOATS + SMALL + WHOLE, ids=str)
def test_figures_of_every_dtype(dtype, error, pieces):
    torch.manual_seed(0)
    for n in (0, 1, 2, 15, 1000, 1023, 1024, 5000, 70_001):
        if dtype in WHOLE:
            x = torch.randint(0, 120, (n,)).to(dtype)
        else:
            x = torch.randn(n, dtype=torch.float64).mul(3).to(dtype)
        check(x, error)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", COMPLEX, ids=str)
def test_complex_is_about_magnitudes(dtype, pieces):
    torch.manual_seed(0)
    for n in (0, 1, 5000):
        parts = [torch.randn(n, dtype=torch.float64) for _ in range(2)]
        check(torch.complex(*parts).to(dtype))
    if dtype is not torch.complex32:
        check(torch.tensor([3 + 4j, complex(NAN, INF), complex(0, NAN)],
                           dtype=dtype))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "values",
    [
        [NAN, 1, 2], [NAN] * 4, [INF, 1, -2], [INF, -INF, 3], [-INF] * 3,
        [0.0, -0.0], [-0.0, -1], [],
    ],
    ids=str,
)
def test_what_is_not_finite(dtype, values):
    check(torch.tensor(values, dtype=dtype))


def test_every_bit_pattern_of_small_dtypes():
    every = torch.arange(256, dtype=torch.uint8)
    for dtype in SMALL:
        check(every.view(dtype))
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    check(every.view(torch.float16))
    check(every.view(torch.bfloat16))


def test_extremes_of_the_range():
    for x in (
        torch.tensor([2**63 - 1, -(2**63), 5]), torch.tensor([-(2**63)]),
        torch.tensor([0, 2**64 - 1, 2**63], dtype=torch.uint64),
        torch.tensor([-128, 127], dtype=torch.int8),
        torch.tensor([1e-40, -1e-45, 1.0]), torch.full((4096,), 3e38),
        torch.tensor([1e308, -1e308, 1.7e308], dtype=torch.float64),
        torch.tensor([5e-324, 0], dtype=torch.float64),
        torch.tensor([1e200, 1e-200], dtype=torch.float64),
        torch.tensor([1e-40, 3e-40], dtype=torch.bfloat16),
        torch.tensor(2.5), torch.empty(5, 0, 3),
    ):
        check(x)
    x = torch.arange(7, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    got, samples = measured(x)
    assert got["hash"] == int(tracerd.stats(x)["hash"], 16)
    assert (got["n"], got["has"], samples) == (7, 32, b"")


def test_order_is_logical_not_that_of_memory(error, pieces):
    torch.manual_seed(0)
    for x in (
        torch.randn(70, 3, 50).permute(2, 0, 1)[::2],
        torch.randn(300, 400).t(), torch.tensor([1.5]).expand(70_000),
        torch.randn(200, 301)[:, 1:], torch.randn(3, 5000, 7).transpose(0, 2),
        torch.randn(1, 9000, 2).transpose(1, 2), torch.randn(100)[3:],
    ):
        check(x, error)
        check(x.half(), error)
        check(x.to(torch.float8_e5m2), error)


@pytest.mark.parametrize("rule", ["equidistant", ("every", 7), ("random", 9)])
def test_samples_are_the_bits_at_the_same_places(rule):
    sampling = tracerd.tensors.sampling_of(rule)
    for x in (
        torch.randn(100, 333).t(), torch.randn(5)[1:], torch.randn(4000),
        torch.tensor([1.5]).expand(70), torch.randn(8, 8, 8)[:, ::2, 1],
    ):
        want = tracerd.stats(x, 16, rule)["samples"]
        _, bits = measured(x, 16, sampling)
        assert list(struct.unpack(f"<{len(want)}f", bits)) == want
    z = torch.complex(torch.arange(40.0), torch.ones(40))
    want = tracerd.stats(z, 4, rule)["samples"]
    _, bits = measured(z, 4, sampling)
    numbers = struct.unpack("<8f", bits)
    assert [list(numbers[i : i + 2]) for i in range(0, 8, 2)] == want


def test_modes_of_the_processor_change_no_count():
    if not torch.set_flush_denormal(True):
        pytest.skip("no such mode here")
    try:
        check(torch.tensor([1e-40, -1e-45, 1.0]))
        check(torch.tensor([1e-40, 3e-40], dtype=torch.bfloat16))
        assert (torch.tensor([1e-40]) * 1).item() == 0  # still on
    finally:
        torch.set_flush_denormal(False)


def test_a_dtype_without_figures():
    with pytest.raises(operators.Unsupported):
        operators.measure(torch.zeros(3, dtype=torch.bits8), 4)


def test_a_device_without_the_operators_of_the_hash(monkeypatch):
    def missing(*args):
        raise NotImplementedError

    monkeypatch.setattr(operators, "_hash", missing)
    monkeypatch.setattr(operators, "_no_hash", set())
    got, _ = measured(torch.ones(3000))
    assert (got["has"], got["hash"], got["max"]) == (31, 0, 1.0)
    assert operators._no_hash == {"cpu"}


# ---- from the hook to the record ----


@pytest.fixture
def routed(monkeypatch):
    """Tensors of the CPU go the way of those on other devices."""
    monkeypatch.setattr(hooks, "ROUTE_ALL", True)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.drop = nn.Dropout(0.5)
        self.ids = nn.Embedding(5, 8)

    def forward(self, ids, x):
        return self.drop(self.a(x).relu()) + self.ids(ids), ids > 1


def train(run=None):
    torch.manual_seed(3)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    t = tracerd.attach(model, optimizer, run=run) if run else None
    for _ in range(3):
        optimizer.zero_grad()
        y, _ = model(torch.tensor([1, 2, 4]), torch.randn(3, 8))
        loss = y.square().sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if t:
        assert t.flush()
        assert not any(t.counters["lost"].values())
        t.close()
    return losses, [p.detach().clone() for p in model.parameters()]


EXACT = (
    "shape", "dtype", "n", "max", "min", "absmax", "absmin", "nan", "zero",
    "subnormal", "hash", "samples",
)


def test_what_is_stored_is_what_the_cpu_says(here, monkeypatch):
    import itertools
    import weakref
    from collections import defaultdict

    from tracerd import names

    plain = train()
    stored = {}
    for route in (False, True):
        monkeypatch.setattr(hooks, "ROUTE_ALL", route)
        monkeypatch.setattr(
            names, "_next_number", defaultdict(lambda: itertools.count(1))
        )
        monkeypatch.setattr(names, "_numbers", weakref.WeakKeyDictionary())
        losses, weights = train(f"routed-{route}")
        assert losses == plain[0]
        for a, b in zip(weights, plain[1], strict=True):
            assert torch.equal(a, b)
        found = here.query(f"routed-{route}")
        found.sort(key=lambda r: (r.name, r.iteration, r.position))
        stored[route] = found
    assert len(stored[True]) == len(stored[False]) > 30
    for a, b in zip(stored[True], stored[False], strict=True):
        assert a.name == b.name
        assert [a[n] for n in EXACT] == [b[n] for n in EXACT], a.name
        assert a["l2"] == pytest.approx(b["l2"], rel=1e-12)
        assert a["std"] == pytest.approx(b["std"], rel=1e-12, abs=1e-14)
        assert "operators" in a.labels and "operators" not in b.labels


class Late:
    """An event that comes when it is told to."""

    def __init__(self):
        self.there = False

    def query(self):
        return self.there


def test_no_hook_waits_and_what_comes_late_is_counted(recorded, monkeypatch):
    client = recording.Client(recorded)
    client.site(5, 0, 0, 0, "", "", "x")
    event = Late()
    real = operators._to_host
    monkeypatch.setattr(
        operators, "_to_host", lambda packed: (real(packed)[0], event)
    )
    queue = operators.Queue(client, (0, 0))
    head = (1, 1, 1, 0, 0, 0)
    for i in range(3):
        assert queue.put(head, torch.full((4,), float(i)), 2, None)
    queue.poll()
    assert recorded == [] and not queue.wait(0)
    event.there = True
    queue.poll()
    assert [r["figures"][7] for r in recorded] == [0.0, 1.0, 2.0]
    assert all(r.labels == ["operators"] for r in recorded)
    event.there = False
    monkeypatch.setattr(operators, "PENDING", 2)
    lost = []
    client.lost = lambda n, cause="error": lost.append((n, cause))
    for _ in range(4):
        assert queue.put(head, torch.ones(4), 2, None)
    assert lost == [(1, "device")] * 2
    queue.close()
    assert lost == [(1, "device"), (1, "device"), (2, "device")]
    assert len(recorded) == 3


def test_a_missing_operator_leaves_the_shape(recorded, routed, monkeypatch):
    def missing(*args):
        raise NotImplementedError("not on this device")

    monkeypatch.setattr(operators, "_piece", missing)
    with tracerd.attach(nn.Linear(2, 2), run="m") as t:
        t.record("x", torch.ones(2, 3))
    assert recorded[-1].shape == [2, 3]
    assert recorded[-1].labels == ["unsupported"]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_odd_tensors_keep_their_labels(here, routed):
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[7, 1, 1]]), torch.ones(3, 3), (10, 3)
    )
    z = torch.tensor([3 + 4j, 1j])
    with tracerd.attach(nn.Linear(2, 2), run="odd") as t:
        t.record("sparse", sparse)
        t.record("conj", z.conj())
        t.record("meta", torch.empty(2, device="meta"))
        t.record("bits", torch.zeros(3, dtype=torch.bits8))
        t.record("empty", torch.empty(0, 2))
        t.record("ends", 2.5)
        assert t.flush()
    stored = {r.path: r for r in here.query("odd", "user-*")}
    assert stored["sparse"].labels == ["sparse", "operators", "nnz=2"]
    assert stored["sparse"].shape == [10, 3] and stored["sparse"].n == 6
    assert stored["sparse"].max == 2
    assert stored["conj"].labels == ["complex", "operators"]
    assert stored["conj"].samples and stored["conj"].max == 5
    assert stored["meta"].labels == ["nodata"]
    assert stored["bits"].labels == ["unsupported"]
    assert stored["empty"].n == 0 and stored["empty"].hash is None
    assert stored["ends"].max == stored["ends"].mean == 2.5


def test_nothing_random_is_drawn_and_nothing_enters_autograd(routed):
    x = torch.ones(3, 4, requires_grad=True)
    y = x * 2
    state = torch.get_rng_state()
    version, node = y._version, y.grad_fn
    got, _ = measured(y)
    assert got["max"] == 2.0 and torch.equal(state, torch.get_rng_state())
    assert y._version == version and y.grad_fn is node


def test_places_are_those_of_the_library():
    for rule, arg, n, k in (
        (0, 0, 100, 7), (1, 9, 100, 20), (2, 5, 100, 7), (0, 0, 3, 16),
    ):
        got = _tracerd.places(n, k, rule, arg)
        assert got == sorted(set(got)) and all(0 <= i < n for i in got)
    assert _tracerd.places(100, 20, 1, 9) == list(range(0, 100, 9))
    for wrong in ((5, 4097, 0, 0), (5, 1, 1, 0), (5, 1, 9, 0)):
        with pytest.raises(ValueError):
            _tracerd.places(*wrong)


def test_wrong_arguments_are_refused(folder):
    tracerd.tensors.setup()
    c = _tracerd.open("w", "", None, 0, 1, 0, 0, False, folder)
    site = c.site(5, 0, 0, 0, "", "", "x")
    head = (site, 1, 1, 0, 0, 0)
    right = (1, 63, 0, 0, 0, 0, 0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 5)
    x = torch.ones(2)
    assert c.record_figures(*head, "float32", (1,), right, b"abcd")
    assert c.counters()["submitted"] == 1
    for call, wrong in (
        (c.record_figures, ()),
        (c.record_figures, (*head, "float32", (1,), right[:-1], b"")),
        (c.record_figures, (*head, "float32", (1,), list(right), b"")),
        (c.record_figures, (*head, "float32", (1,), right, "text")),
        (c.record_figures, (*head, 5, (1,), right, b"")),
        (c.record_figures, (*head, "int8", (1,), right, b"")),
        (c.record_figures, (*head, "float32", (1,), (-1, *right[1:]), b"")),
        (c.record_figures, (*head, "float32", (1,), (None, *right[1:]), b"")),
        (c.record, (*head, x)), (c.record, (*head, x, -1)),
        (c.record_once, (*head, x)),
        (c.record_all, ((site,), 1, 1, 0, 0, [("x", x)], 4, True)),
        (c.record_all, ([], 1, 1, 0, 0, [("x", x)], 4, True)),
        (c.record_all, ([site], 1, 1, 0, 0, [x], 4, True)),
        (c.record_all, (["x"], 1, 1, 0, 0, [("x", x)], 4, True)),
        (c.lost, (1, "no cause")), (c.open_device, ("x", 1)),
    ):
        with pytest.raises(
            (TypeError, ValueError, OverflowError, IndexError)
        ):
            call(*wrong)
    # what no reader would take is counted
    assert c.record_figures(*head, "float32", (1,), right, b"abc")
    assert c.record_figures(*head, "float32", (-1,), right, b"")
    assert c.record_figures(*head, "float32", (1,), right, b"abcd" * 9)
    assert c.record(*head, x, 4097) and c.record_once(99, *head[1:], x, 1)
    assert c.record_all([site], 1, 1, 0, 0, [("x", 5)], 4, True) == [0]
    assert c.counters()["lost"] == {"error": 5}
    c.close()
    assert c.record(*head, x, 4) and c.record_figures(
        *head, "float32", (1,), right, b""
    )
    assert c.record_all([site], 1, 1, 0, 0, [("x", x)], 4, True) is None
    c.forget()
    c.watch(None)
    assert c.saved() == (0, 0)
