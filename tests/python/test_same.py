"""Tensors that are seen again: read once while they are unchanged, and
always where they may have been written to."""

import gc
import os
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import tracerd
from programs import TOP, python
from tracerd import _tracerd

N = 40 * 1024


@pytest.fixture
def client(folder):
    tracerd.tensors.setup()
    c = _tracerd.open(
        "same", "", None, 0, 1, 0, 0, False, folder, 0, 0, 0, True
    )
    yield c
    c.close()


class Reader:
    """Records a tensor; says whether it was not read again."""

    def __init__(self, client):
        self.client = client
        self.site = client.site(1, 1, 0, 1, "A", "a", "0")

    def __call__(self, tensor, k=16, how="record"):
        before = self.client.saved()[0]
        record = getattr(self.client, how)
        assert record(self.site, 1, 1, 1, 0, 0, tensor, k)
        return self.client.saved()[0] > before


@pytest.fixture
def again(client):
    return Reader(client)


def test_an_unchanged_tensor_is_read_once(again, client):
    x = torch.randn(N)
    assert [again(x) for _ in range(4)] == [False, True, True, True]
    assert client.saved() == (3, 3 * 4 * N)
    assert not again(x, k=8) and again(x, k=8)


@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.int64, torch.bool, torch.complex64],
    ids=str,
)
def test_of_every_dtype(again, dtype):
    x = torch.ones(N).to(dtype)
    assert not again(x) and again(x)


def test_small_ones_are_not_worth_it(again):
    x = torch.randn(16)
    assert not again(x) and not again(x)


def test_another_object_is_another_tensor(again):
    x = torch.randn(N)
    assert not again(x)
    same = [x.clone(), x.view(N), x[:]]
    assert not any(again(y) for y in same)
    assert again(x) and all(again(y) for y in same)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.add_(1),
        lambda x: x.detach().mul_(2),
        lambda x: x[5].zero_(),
        lambda x: x.view(2, -1)[1].fill_(0),
        lambda x: x.data.add_(1),
        lambda x: x.set_(torch.zeros_like(x)),
        lambda x: x.resize_(N // 2),
        lambda x: x.t_() if x.dim() == 2 else x.unsqueeze_(0),
        lambda x: setattr(x, "data", torch.zeros(N)),
        lambda x: x.copy_(torch.zeros(N)),
        lambda x: np.copyto(x.numpy(), 0),
        lambda x: x.numpy().__setitem__(0, 9.0),
        lambda x: x.numpy().__setitem__(-1, 9.0),
    ],
    ids=[
        "add_", "detach", "item", "view", "data", "set_", "resize_",
        "unsqueeze_", "data=", "copy_", "numpy", "first", "last",
    ],
)
def test_a_write_is_seen(again, write):
    x = torch.randn(N)
    assert not again(x) and again(x)
    with torch.no_grad():
        write(x)
    assert not again(x)
    assert again(x)


def test_a_write_behind_torchs_back_to_a_sample_is_seen(again):
    x = torch.randn(N)
    places = np.linspace(0, N - 1, 16, dtype=int)
    for place in places:
        assert not again(x)
        x.numpy()[place] += 1
    assert not again(x)


def test_memory_that_was_freed_and_given_again(again):
    x = torch.zeros(N)
    storage = x.untyped_storage()
    assert not again(x)
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    x.data.fill_(3)
    assert not again(x)
    address = x.data_ptr()
    del x, storage
    for _ in range(50):
        y = torch.full((N,), 3.0)
        if y.data_ptr() == address:
            break
    assert not again(y)


def test_views_of_other_strides_are_other_tensors(again):
    x = torch.randn(128, 256)
    assert not again(x) and not again(x.t()) and not again(x[:, ::2])
    y = x.t()
    assert not again(y) and again(y)
    y.as_strided_((128, 256), (256, 1))
    assert not again(y) and again(y)
    z = x.permute(1, 0)[::2]
    assert not again(z) and again(z)
    x.numpy()[0, 0] = 7
    assert not again(z)


def test_it_keeps_no_tensor_alive(again):
    x = torch.randn(N)
    memory = weakref.ref(x)
    assert not again(x) and again(x)
    del x
    gc.collect()
    assert memory() is None


def test_a_tensor_that_comes_back_from_the_graph_is_still_the_same(again):
    """torch keeps the Python object of a tensor that C++ still holds."""
    a = torch.randn(N, requires_grad=True)
    b = a * 2
    c = b * a
    assert not again(b) and again(b)
    del b
    gc.collect()
    assert again(c.grad_fn._saved_self)


def test_what_may_bear_no_weak_reference_bears_none(client, again):
    p = nn.Parameter(torch.randn(N))
    p.grad = torch.randn(N)
    assert not again(p) and not again(p)
    for _ in range(2):
        assert not again(p.grad, how="record_once")
    client.record_all(
        [again.site], 1, 1, 1, 0, [("g", p.grad)], 16, False
    )
    assert not weakref.getweakrefs(p) and not weakref.getweakrefs(p.grad)
    other = nn.Parameter(torch.zeros(N))
    other.grad = torch.zeros(N)
    torch.utils.swap_tensors(p, other)


def test_an_iteration_ends_all_weak_references(client, again):
    x = torch.randn(N)
    assert not again(x) and weakref.getweakrefs(x)
    client.forget()
    assert not weakref.getweakrefs(x)
    assert not again(x)
    client.close()
    assert not weakref.getweakrefs(x)


def test_inference_tensors_have_no_version(again):
    with torch.inference_mode():
        x = torch.randn(N)
        assert not again(x) and not again(x)


def test_under_a_transform_nothing_is_known(again):
    x = torch.randn(N)
    seen = []

    def f(y):
        seen.append(again(x))
        return y.sum()

    torch.func.grad(f)(torch.ones(3))
    torch.vmap(f)(torch.ones(2, 3))
    assert seen == [False, False]
    assert not again(x)


def test_a_collective_may_have_written(client, again):
    count = [0]
    client.watch(lambda: count[0])
    x = torch.randn(N)
    assert not again(x) and again(x)
    count[0] += 1
    assert not again(x) and again(x)
    client.watch(lambda: -1)
    assert not again(x) and not again(x)

    def broken():
        raise RuntimeError

    client.watch(broken)
    assert not again(x) and not again(x)
    client.watch(None)
    assert not again(x) and again(x)


def test_more_tensors_than_there_is_room_for(again):
    many = [torch.randn(N // 4) for _ in range(400)]
    assert not any(again(x) for x in many)
    assert again(many[-1])
    assert sum(again(x) for x in many[:100]) <= 100


def test_switched_off(folder):
    tracerd.tensors.setup()
    c = _tracerd.open("off", "", None, 0, 1, 0, 0, False, folder)
    again = Reader(c)
    x = torch.randn(N)
    assert not again(x) and not again(x)
    assert not weakref.getweakrefs(x)
    c.close()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, width)
        self.act = nn.ReLU()
        self.down = nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


def train(folder_of, same, run):
    torch.manual_seed(5)
    model = nn.Sequential(Residual(96), Residual(96))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    t = tracerd.attach(model, optimizer, run=run, same=same) if run else None
    for i in range(3):
        optimizer.zero_grad()
        x = torch.randn(128, 96, generator=torch.Generator().manual_seed(i))
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    saved = None
    if t:
        saved = t.saved()
        assert t.flush()
        t.close()
        assert t.saved() == {"tensors": 0, "bytes": 0}
    return losses, [p.detach().clone() for p in model.parameters()], saved


FIGURES = (
    "name", "iteration", "shape", "n", "max", "min", "mean", "std", "l2",
    "hash", "samples", "zero", "absmax", "absmin",
)


def test_the_records_say_the_same(here, monkeypatch):
    import itertools
    import weakref as w
    from collections import defaultdict

    from tracerd import names

    stored = {}
    results = []
    for same in (True, False):
        monkeypatch.setattr(
            names, "_next_number", defaultdict(lambda: itertools.count(1))
        )
        monkeypatch.setattr(names, "_numbers", w.WeakKeyDictionary())
        results.append(train(here, same, f"same-{same}"))
        stored[same] = here.query(f"same-{same}")
    plain = train(None, None, None)
    for losses, weights, _ in results:
        assert losses == plain[0]
        assert all(
            torch.equal(a, b) for a, b in zip(weights, plain[1], strict=True)
        )
    labelled = [r for r in stored[True] if "same" in r.labels]
    assert not [r for r in stored[False] if "same" in r.labels]
    assert results[1][2] == {"tensors": 0, "bytes": 0}
    assert results[0][2]["tensors"] == len(labelled)
    assert results[0][2]["bytes"] == sum(4 * r.n for r in labelled)

    def key(r):
        return [r[name] for name in FIGURES]

    def order(r):
        return r.name, r.iteration, r.position

    assert [key(r) for r in sorted(stored[True], key=order)] == [
        key(r) for r in sorted(stored[False], key=order)
    ]
    # of the first iteration: the output of one is the input of the next,
    # the residual branch and the gradients that pass between hooks
    first = {r.name for r in labelled if r.iteration == 1}
    assert {
        "forward-Residual-1-1-input", "forward-Linear-1-1-input",
        "forward-ReLU-1-1-input", "forward-Linear-2-1-input",
        "forward-Residual-2-1-input", "forward-Sequential-1-1-output",
    } <= first
    assert {n for n in first if n.startswith("backward")}
    assert not {n for n in first if n.startswith("grad")}


def test_a_reduction_over_ranks_is_not_missed(folder):
    """An all-reduce writes to a tensor whose version stays as it was, here
    to a single element."""
    script = TOP / "tests/python/reduced_script.py"
    done = python(script, folder=folder, ranks=2, TMPDIR=folder)
    assert done.stdout.count("seen") == 2, done.stdout
    assert os.path.isdir(folder)


class Twice(nn.Module):
    """Its two children see one tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Identity(), nn.Identity()

    def forward(self, x):
        return self.a(x) + self.b(x)


def test_nothing_is_remembered_between_passes(folder, monkeypatch):
    monkeypatch.setenv("TRACERD_DIR", folder)
    model = Twice()
    t = tracerd.attach(model, run="passes")
    z = torch.randn(N, requires_grad=True)
    optimizer = torch.optim.SGD([z], lr=1.0, fused=True)
    with torch.no_grad():
        model(z)
    first = t.saved()["tensors"]
    assert first > 0  # within the pass
    z.grad = torch.zeros_like(z)
    z.grad[12345] = 5
    version = z._version
    optimizer.step()
    assert z._version == version  # a write that torch does not count
    with torch.no_grad():
        model(z)
    assert t.saved()["tensors"] == 2 * first
    x = torch.randn(N)
    with torch.no_grad():
        model(x)
    torch.utils.swap_tensors(x, torch.randn(N))  # has no weak reference
    t.close()
