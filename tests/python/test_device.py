"""Tensors of a CUDA device, on an emulated one that reads the CPU's memory:
TRD_CUDA_EMU names the library that plays the CUDA half."""

import ctypes
import itertools
import os
import weakref
from collections import defaultdict

import pytest
import torch
from torch import nn

import tracerd
from tracerd import _tracerd, names

EMULATED = os.environ.get("TRD_CUDA_EMU") or os.path.join(
    os.environ.get("TRD_BUILD", ""), "tests/kernel/libtracerd_cuda_emu.so"
)
if not os.path.exists(EMULATED):
    pytest.skip("no emulated CUDA half", allow_module_level=True)


@pytest.fixture(scope="module")
def emu():
    # it is looked for once, when the first device is opened
    os.environ["TRACERD_CUDA_LIB"] = os.path.abspath(EMULATED)
    lib = ctypes.CDLL(os.path.abspath(EMULATED))
    for name in ("emu_stream_new", "emu_capture_end"):
        getattr(lib, name).restype = ctypes.c_void_p
    for name in (
        "emu_stream_free", "emu_capture_begin", "emu_capture_end",
        "emu_graph_run", "emu_graph_free",
    ):
        getattr(lib, name).argtypes = [ctypes.c_void_p]
    lib.emu_launches.restype = ctypes.c_size_t
    yield lib
    del os.environ["TRACERD_CUDA_LIB"]


@pytest.fixture
def stream(emu, here):
    """Tensors of the CPU are those of device 0, on this stream."""
    tracerd.tensors.setup()
    stream = emu.emu_stream_new()
    _tracerd.use_device(stream)
    yield stream
    _tracerd.use_device(None)
    tracerd.process.close_all()
    emu.emu_stream_free(stream)


@pytest.fixture(params=["exchange", "attributes"])
def way(request):
    tracerd.tensors.setup()
    _tracerd.use_exchange(request.param == "exchange")
    yield
    _tracerd.use_exchange(True)


def renumber(monkeypatch):
    monkeypatch.setattr(
        names, "_next_number", defaultdict(lambda: itertools.count(1))
    )
    monkeypatch.setattr(names, "_numbers", weakref.WeakKeyDictionary())


class Two(nn.Module):
    """Several tensors in and out, of several dtypes."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 3)

    def forward(self, x, ids):
        y = self.a(x).relu()
        return self.b(y), y.bfloat16(), ids + 1, y.t()[::2]


def train(run=None, **options):
    torch.manual_seed(3)
    model = Two()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    t = None
    if run:
        t = tracerd.attach(model, optimizer, run=run, **options)
    for _ in range(3):
        optimizer.zero_grad()
        y, z, _, w = model(torch.randn(300, 6), torch.arange(70_000))
        loss = y.square().sum() + z.float().sum() + w.sum()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if t:
        assert t.flush()
        assert not any(t.counters["lost"].values())
        t.close()
    return losses, [p.detach().clone() for p in model.parameters()]


def stored_of(daemon, run, *names):
    found = daemon.query(run, *names)
    found.sort(key=lambda r: (r.name, r.iteration, r.position))
    return [
        {
            k: v
            for k, v in r.items()
            if k not in ("run", "time", "t", "t_ns", "seq", "client", "epoch")
        }
        for r in found
    ]


def bits(record):
    """What must agree to the bit."""
    return {
        k: repr(record[k])
        for k in (
            "name", "iteration", "step", "position", "shape", "dtype", "n",
            "max", "min", "mean", "std", "l2", "absmax", "absmin", "nan",
            "zero", "subnormal", "hash", "samples",
        )
    }


@pytest.mark.parametrize(
    "options",
    [{}, {"sampling": ("random", 7), "samples": 5}, {"samples": 0}],
    ids=str,
)
def test_records_have_the_bits_of_the_cpus(
    emu, stream, here, way, monkeypatch, options
):
    plain = train()
    stored = {}
    for device in (False, True):
        _tracerd.use_device(stream if device else None)
        renumber(monkeypatch)
        before = emu.emu_launches()
        losses, weights = train(f"d-{device}", same=False, **options)
        assert (emu.emu_launches() > before) == device
        assert losses == plain[0]
        for a, b in zip(weights, plain[1], strict=True):
            assert torch.equal(a, b)
        stored[device] = [bits(r) for r in stored_of(here, f"d-{device}")]
    assert stored[True] == stored[False]
    assert len(stored[True]) > 40


def test_the_tensors_of_one_call_go_in_one_launch(emu, stream, here):
    class Many(nn.Module):
        def forward(self, *x):
            return x

    x = [torch.ones(5) for _ in range(9)]
    model = Many()
    with tracerd.attach(model, run="one") as t:
        t.record("first", x[0])  # opens the device
        before = emu.emu_launches()
        model(*x)
        assert emu.emu_launches() - before == 2
        assert t.flush()
    assert len(here.query("one", "forward-*")) == 18


def test_a_captured_graph_makes_records_with_each_replay(emu, stream, here):
    model = nn.Linear(4, 4)
    x = torch.ones(2, 4)
    with torch.no_grad(), tracerd.attach(model, run="graph") as t:
        emu.emu_capture_begin(stream)
        y = model(x)
        graph = emu.emu_capture_end(stream)
        assert t.flush() and here.query("graph") == []
        y.fill_(1)
        emu.emu_graph_run(graph)
        y.fill_(2)
        emu.emu_graph_run(graph)
        here.wait(lambda: len(here.query("graph")) == 4)
    emu.emu_graph_free(graph)
    out = here.query("graph", "forward-*-output")
    assert [r.max for r in out] == [1, 2]
    assert [r.step for r in out] == [1, 2]
    assert all("graph" in r.labels for r in out)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_odd_tensors_of_a_device(emu, stream, here):
    freed = torch.ones(5)
    freed.untyped_storage().resize_(0)
    z = torch.tensor([3 + 4j, 1j])
    many = torch.ones([1, 2] * 7).transpose(1, 3).transpose(5, 11)
    with tracerd.attach(nn.Linear(2, 2), run="odd") as t:
        t.record("freed", freed)
        t.record("conj", z.conj())
        t.record("empty", torch.empty(0, 3))
        t.record("meta", torch.empty(2, device="meta"))
        t.record("many", many)
        t.record("bits", torch.zeros(3, dtype=torch.bits8))
        t.record("nested", torch.nested.nested_tensor([torch.ones(2)]))
        t.record("sparse", torch.eye(3).to_sparse())
        assert t.flush()
        assert not any(t.counters["lost"].values())
    stored = {r.path: r for r in here.query("odd", "user-*")}
    assert stored["freed"].labels == ["nodata"]
    assert stored["conj"].samples and stored["conj"].max == 5
    assert stored["empty"].n == 0 and stored["meta"].labels == ["nodata"]
    assert stored["bits"].labels == ["unsupported"]
    assert stored["nested"].labels[0] == "unsupported"
    assert "operators" in stored["sparse"].labels
    assert stored["sparse"].shape == [3, 3] and stored["sparse"].n == 3
    assert stored["many"].shape == list(many.shape)


def test_more_samples_than_the_device_was_opened_for(emu, stream, here):
    model = nn.Linear(2, 2)
    few = tracerd.attach(model, run="k", samples=4)
    assert few._recorder.open_device(0)
    with tracerd.attach(nn.Linear(2, 2), run="k", samples=8) as t:
        t.record("x", torch.arange(100.0))
        assert t.flush()
    few.close()
    (found,) = here.query("k", "user-*")
    assert len(found.samples) == 8 and "operators" in found.labels


def test_a_device_that_is_not_there(here):
    c = _tracerd.open("no", "", None, 0, 1, 0, 0, False, here.dir)
    for index in (-1, 64, 1000):
        assert c.open_device(index, 4) is False
    assert c.open_device(0, 5000) is False
    c.close()
    assert c.open_device(0, 4) is False
