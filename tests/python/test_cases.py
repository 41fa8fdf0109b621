"""Cases from public reports, with tests/cases/*.json as the right answers,
and further ones of their kind."""

import json
import math

import pytest
import torch
from torch import nn

import recording
import tracerd
from programs import TOP, python

CASES = TOP / "tests/cases"


def case(name):
    return json.loads((CASES / f"{name}.json").read_text())["tensors"]


def number(value):
    return float(value) if isinstance(value, str) else value


def agrees(record, right):
    """Figures of a record with those of a case."""
    for name in ("shape", "n", "nan"):
        assert record[name] == right[name], name
    assert record["zero"] == right["zeros"]
    assert record["pinf"] + record["ninf"] == right["inf"]
    for name in ("max", "min", "mean", "std", "l2"):
        got, want = record[name], number(right[name])
        if math.isnan(want):
            assert math.isnan(got), name
        else:
            assert got == pytest.approx(want, rel=1e-12), name
    samples = [number(v) for v in right["samples"]]
    for got, want in zip(record["samples"], samples, strict=True):
        assert got == want or (math.isnan(got) and math.isnan(want))


# ---- H13: a sparse gradient whose entries repeat ----


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_gradient_is_coalesced_and_says_so(here):  # case H13
    model = nn.Embedding(10, 3, sparse=True)
    with tracerd.attach(model, run="h13") as t:
        for ids in ([7, 1, 3], [8, 1, 3]):
            model(torch.tensor(ids)).sum().backward()
        raw = model.weight.grad
        assert not raw.is_coalesced() and raw._nnz() == 6
        t.step()
        assert t.flush() and not any(t.counters["lost"].values())
        assert not raw.is_coalesced()  # it is the training's, as it was
    (r,) = here.query("h13", "grad-*")
    right = case("H13")["dense_equivalent"]
    assert "sparse" in r.labels and "nnz=4" in r.labels
    assert r.shape == right["shape"] and r.n == 12
    assert (r.max, r.min) == (right["max"], 1)
    assert r["l2"] == pytest.approx(right["l2"], rel=1e-12)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_of_every_layout(here):
    dense = torch.tensor([[0.0, 2, 0, 0], [0, 0, float("nan"), -1]] * 2)
    layouts = {
        "coo": dense.to_sparse(), "csr": dense.to_sparse_csr(),
        "csc": dense.to_sparse_csc(), "bsr": dense.to_sparse_bsr((2, 2)),
        "bsc": dense.to_sparse_bsc((2, 2)),
        "empty": torch.zeros(4, 4).to_sparse(),
        "half": dense.half().to_sparse(),
    }
    with tracerd.attach(nn.Linear(1, 1), run="layouts") as t:
        for name, x in layouts.items():
            t.record(name, x)
        assert t.flush() and not any(t.counters["lost"].values())
    stored = {r.path: r for r in here.query("layouts", "user-*")}
    for name in layouts:
        r = stored[name]
        assert r.shape == [4, 4] and "sparse" in r.labels
        if name != "empty":
            assert r.nan == 2 and r.finite_max == 2 and r.finite_min <= -1
    assert stored["empty"].n == 0


# ---- H14: a gradient that is NaN ----


class Log(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2, bias=False)
        nn.init.ones_(self.l.weight)

    def forward(self, x):
        return torch.log(self.l(x))


def test_a_gradient_of_nan_is_recorded_and_nobody_is_told(here):  # case H14
    model = Log()
    witness = recording.Witness(model)
    with tracerd.attach(model, run="h14") as t:
        model(torch.ones(2, 2)).sum().backward()
        t.step()
        model.zero_grad()
        model(torch.tensor([[0.0, 0.0], [1.0, -3.0]])).sum().backward()
        t.step()
        assert t.flush() and not any(t.counters["lost"].values())
    stored = here.query("h14")
    (gradient,) = [
        r for r in stored if r["pass"] == "grad" and r.iteration == 2
    ]
    agrees(gradient, case("H14")["grad"])
    assert recording.keys_of(stored) == witness.keys()
    out = [r for r in stored if r.name == "forward-Log-1-2-output"]
    assert (out[0].ninf, out[0].nan) == (2, 2)
    first = [r for r in stored if r.iteration == 1]
    assert first and all(r.nan == r.pinf == r.ninf == 0 for r in first)


@pytest.mark.parametrize(
    "values", [[math.nan], [math.inf, -math.inf], [math.nan, math.inf, 0.0]]
)
def test_what_is_not_finite_with_every_way_to_look(here, values):
    x = torch.tensor(values * 30_000)
    ways = [{}, {"histogram": "exact"}, {"sampling": ("every", 3)}]
    for i, options in enumerate(ways):
        with tracerd.attach(nn.Linear(1, 1), run=f"n{i}", **options) as t:
            t.record("x", x)
            t.record("x", x.to(torch.float8_e5m2))
            t.record("x", x.to(torch.complex64))
            assert t.flush() and not any(t.counters["lost"].values())
        for r in here.query(f"n{i}", "user-*"):
            assert r.n == x.numel()
            assert r.nan + r.pinf + r.ninf > 0


# ---- H16: a shard is not the whole ----


def test_a_shard_is_not_taken_for_the_whole(daemon):  # case H16
    script = TOP / "tests/python/sharded_script.py"
    python(script, folder=daemon.dir, ranks=2)
    stored = {
        (r.path, r.rank): r for r in daemon.query("sharded", "user-*")
    }
    right = case("H16")
    squares = 0
    for rank in range(2):
        r = stored["shard", rank]
        agrees(r, right[f"rank{rank}_local"])
        assert "shard" in r.labels
        (note,) = [text for text in r.labels if "placements" in text]
        assert "shape=[8]" in note and "S" in note
        squares += r["l2"] ** 2
        agrees(stored["copy", rank], right["full"])
        assert stored["large", rank].shape == [64, 512]
    assert squares == pytest.approx(right["full"]["l2"] ** 2, rel=1e-12)
    assert [stored["uneven", i].n for i in range(2)] == [2, 1]
    assert [stored["empty", i].n for i in range(2)] == [1, 0]


# ---- mistakes ----


class Dispatching(torch.Tensor):
    """A subclass that computes by itself; it may not be read."""

    @staticmethod
    def __new__(cls, shape):
        return torch.Tensor._make_wrapper_subclass(cls, shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError("nobody asked for this")


@pytest.mark.filterwarnings("ignore")
def test_nothing_odd_ends_the_training(here):
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = torch.empty(2, 3)
    freed = torch.ones(30_000)
    with tracerd.attach(nn.Linear(1, 1), run="odd") as t:
        t.record("freed", freed)
        t.record("freed", freed)
        freed.untyped_storage().resize_(0)
        t.record("freed", freed)
        t.record("fake", fake)
        t.record("meta", torch.empty(4, device="meta"))
        t.record("nested", torch.nested.nested_tensor([torch.ones(2)]))
        t.record(
            "quantized",
            torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8),
        )
        t.record("own", Dispatching((2, 2)))
        t.record("uninitialized", nn.parameter.UninitializedParameter())
        t.record("bits", torch.zeros(3, dtype=torch.bits16))
        torch.vmap(lambda x: (t.record("inside", x), x)[1])(torch.ones(2, 3))
        assert t.flush() and not any(t.counters["lost"].values())
    stored = {}
    for r in here.query("odd", "user-*"):
        stored.setdefault(r.path, []).append(r)
    assert [r.labels for r in stored["freed"]][2] == ["nodata"]
    assert [r.max for r in stored["freed"]] == [1, 1, None]
    assert stored["fake"][0].labels[0] == "nodata"
    assert stored["meta"][0].labels == ["nodata"]
    assert stored["quantized"][0].max == 1
    for name in ("nested", "own", "uninitialized", "bits", "inside"):
        assert stored[name][0].labels[0] == "unsupported", name


def test_the_processors_modes_are_left_to_the_training(here):
    if not torch.set_flush_denormal(True):
        pytest.skip("no such mode here")
    try:
        model = nn.Linear(4, 4)
        tiny = torch.full((300, 4), 71362, dtype=torch.int32)
        tiny = tiny.view(torch.float32)  # 1e-40
        with tracerd.attach(model, run="ftz", histogram=True) as t:
            model(tiny).sum().backward()
            t.step()
            assert (tiny * 1)[0, 0].item() == 0  # still on
            assert t.flush()
        (r,) = here.query("ftz", "forward-Linear-1-1-input")
        assert r.subnormal == 1200 and r.zero == 0
        assert r.absmin == r.max > 0
    finally:
        torch.set_flush_denormal(False)
