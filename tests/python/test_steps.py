"""Iterations, micro-batches and the steps of recomputed calls."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracerd
from recording import Block, pick


def names_of(records):
    return [(r.path, r.iteration, *r.labels) for r in records]


def test_an_optimizer_counts(recorded):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tracerd.attach(model, optimizer, start=7):
        for _ in range(2):
            for _ in range(2):
                model(torch.ones(1, 2)).sum().backward()
            kept = model.weight.grad.clone()
            optimizer.step()
            optimizer.zero_grad()
    forward = pick(recorded, pass_="forward", io="output")
    assert [(r.step, r.iteration, r.microbatch) for r in forward] == [
        (1, 7, 1), (2, 7, 2), (3, 8, 1), (4, 8, 2),
    ]
    grads = pick(recorded, pass_="grad")
    assert names_of(grads) == [
        ("weight", 7, "final"), ("bias", 7, "final"),
        ("weight", 8, "final"), ("bias", 8, "final"),
    ]
    for r in grads:
        assert (r.object, r.module, r.io) == ("Linear-1", "", "")
        assert r.step == r.iteration and r.microbatch == 0
    assert grads[2].samples == kept.flatten().tolist()


def test_any_optimizer_with_a_parameter_of_the_model_counts(recorded):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    ours = torch.optim.SGD(model.parameters(), lr=0.1)
    theirs = torch.optim.SGD(other.parameters(), lr=0.1)
    late = torch.optim.Adam(model.parameters())
    with tracerd.attach(model) as t:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            theirs.step()
            ours.step()
            late.step()
            ours.zero_grad()
        assert t.iteration == 3
    grads = pick(recorded, pass_="grad", path="weight")
    assert [r.iteration for r in grads] == [1, 2]


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = nn.Linear(2, 2), nn.Linear(2, 1)

    def forward(self, x):
        return self.judge(self.maker(x))


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("given", ["none", "the first", "both"])
def test_the_second_optimizer_has_its_own_gradients_from_the_first_on(
    recorded, given, anew
):
    """They are changed between the two steps, as by clipping, or made anew
    by a pass that begins the next iteration, as of two adversaries."""
    model = Pair()
    first, second = (
        torch.optim.SGD(part.parameters(), lr=0.1)
        for part in (model.maker, model.judge)
    )
    wanted = []
    optimizer = {"none": None, "the first": first, "both": [first, second]}
    with tracerd.attach(model, optimizer[given]):
        for value in (1.0, 2.0, 3.0):
            model(torch.full((1, 2), value)).sum().backward()
            first.step()
            if anew:
                second.zero_grad()
                model.judge(torch.full((1, 2), -value)).sum().backward()
            model.judge.weight.grad.mul_(0.5)
            wanted.append(model.judge.weight.grad.flatten().tolist())
            second.step()
            model.zero_grad()
    for layer in ("maker", "judge"):
        grads = pick(recorded, pass_="grad", path=f"{layer}.weight")
        assert names_of(grads) == [
            (f"{layer}.weight", i + (anew and layer == "judge"), "final")
            for i in (1, 2, 3)
        ]
    assert [r.samples for r in grads] == wanted


def test_an_optimizer_of_copies_is_told_of_once(recorded):
    """As of distributed optimizers: nothing says that its steps are ours."""
    model = nn.Linear(2, 1)
    copies = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(copies, lr=0.1)
    with pytest.warns(RuntimeWarning, match="no iteration has ended") as told:
        with tracerd.attach(model) as t:
            for _ in range(9):
                model(torch.ones(1, 2)).sum().backward()
                optimizer.step()
            assert t.iteration == 1
    assert len(told) == 1


def test_optimizers_of_others_are_not_told_of(recorded, recwarn):
    model, other = nn.Linear(2, 1), nn.Linear(2, 1)
    ours, theirs = (
        torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)
    )
    with tracerd.attach(model):
        for _ in range(9):
            theirs.step()
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            ours.step()
            for _ in range(9):
                theirs.step()
    assert not recwarn


class Sharded:
    """As DeepSpeed's optimizers: no hooks, and a torch optimizer inside that
    a step does not reach where a gradient is not finite."""

    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.param_groups = optimizer.param_groups
        self.loss_scale = 1
        self.scales = []

    def _update_scale(self, has_overflow=False):
        self.scales.append(has_overflow)

    def step(self):
        grads = [p.grad for g in self.param_groups for p in g["params"]]
        overflow = not all(g.isfinite().all() for g in grads)
        self._update_scale(overflow)
        if not overflow:
            self.optimizer.step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("tells", [True, False])
def test_a_step_that_deepspeed_leaves_out(recorded, monkeypatch, tells):
    home = "deepspeed.runtime.zero.stage" if tells else "deepspeed.runtime"
    monkeypatch.setattr(Sharded, "__module__", home)
    model = nn.Linear(2, 1)
    optimizer = Sharded(torch.optim.SGD(model.parameters(), lr=0.1))
    before = dict(vars(optimizer))
    with tracerd.attach(model, optimizer) as t:
        for value in (1.0, float("inf"), 2.0):
            model(torch.full((1, 2), value)).sum().backward()
            optimizer.step()
        assert t.iteration == 4
    assert vars(optimizer) == before
    assert optimizer.scales == [False, True, False]
    grads = pick(recorded, pass_="grad", path="weight")
    second = "skipped" if tells else "final"
    assert [(r.iteration, r.labels) for r in grads] == [
        (1, ["final"]), (2, [second]), (3, ["final"]),
    ]
    assert grads[1].pinf == 2 and grads[2].samples == [2.0, 2.0]


@pytest.mark.parametrize("order", ["step first", "step last", "no optimizer"])
def test_counted_by_hand(recorded, order):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with tracerd.attach(model) as t:
        for i in range(1, 4):
            assert t.iteration == i
            model(torch.ones(1, 2)).sum().backward()
            if order == "step first":
                t.step()
            if order != "no optimizer":
                optimizer.step()
                optimizer.zero_grad()
            if order != "step first":
                t.step()
    grads = pick(recorded, pass_="grad", path="weight")
    assert [r.iteration for r in grads] == [1, 2, 3]


def test_a_closure(recorded):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(1, 2)).pow(2).sum()
        loss.backward()
        return loss

    with tracerd.attach(model, optimizer):
        for _ in range(2):
            optimizer.step(closure)
    grads = pick(recorded, pass_="grad", path="bias")
    assert [r.iteration for r in grads] == [1, 2]
    first = pick(recorded, pass_="forward", io="output", iteration=1)
    assert [r.microbatch for r in first] == [*range(1, len(first) + 1)]


def test_a_step_that_the_scaler_skips(recorded):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with tracerd.attach(model, optimizer):
        for value in (1.0, float("inf"), 1.0):
            optimizer.zero_grad()
            scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
            scaler.step(optimizer)
            scaler.update()
    grads = pick(recorded, pass_="grad", path="weight")
    assert [(r.iteration, r.labels) for r in grads] == [
        (1, ["final"]), (2, ["skipped"]), (3, ["final"]),
    ]
    assert grads[0].samples == [1.0, 1.0] and grads[1].pinf == 2
    backward = pick(recorded, pass_="backward", io="input")
    assert [r.labels for r in backward] == [["scaled"]] * 3
    assert backward[0].samples == [4.0]


def test_gradient_scalers_are_left_as_found():
    before = dict(vars(torch.amp.GradScaler))
    with tracerd.attach(nn.Linear(1, 1)):
        assert torch.amp.GradScaler.step is not before["step"]
    assert dict(vars(torch.amp.GradScaler)) == before


def test_tied_weights_have_one_gradient(recorded):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(4, 2)
            self.head = nn.Linear(2, 4, bias=False)
            self.head.weight = self.emb.weight

        def forward(self, i):
            return self.head(self.emb(i))

    model = Tied()
    with tracerd.attach(model, passes=["grad", "param"]) as t:
        model(torch.tensor([0, 3])).sum().backward()
        t.step()
    found = [(r["pass"], r.path, r.object, r.module) for r in recorded]
    assert found == [
        ("grad", "emb.weight", "Embedding-1", "emb"),
        ("param", "emb.weight", "Embedding-1", "emb"),
    ]
    assert recorded[0].hash == tracerd.stats(model.emb.weight.grad)["hash"]


# ---- recomputation ----


class Stack(nn.Module):
    def __init__(self, mode, n=2):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(n))
        self.mode = mode

    def forward(self, x):
        for block in self.blocks:
            if self.mode is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.mode)
        return x


def run_micro_batches(model, n, order):
    """Forward and backward of n micro-batches in the order of a schedule:
    positive numbers run a forward pass, negative ones its backward."""
    torch.manual_seed(0)
    inputs = [torch.randn(3, 2, requires_grad=True) for _ in range(n)]
    losses = {}
    for k in order:
        if k > 0:
            losses[k] = model(inputs[k - 1] * k).pow(2).sum()
        else:
            losses.pop(-k).backward()


def figures(records, *fields):
    return sorted(tuple(str(r[f]) for f in fields) for r in records)


SCHEDULES = {
    "one by one": [1, -1, 2, -2, 3, -3],
    "pipeline": [1, 2, -1, 3, -2, -3],
    "all first": [1, 2, 3, -3, -2, -1],
}


@pytest.mark.parametrize("mode", [True, False], ids=["reentrant", "not"])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_recomputation_repeats_its_own_forward(recorded, mode, schedule):
    key = ("pass", "object", "step", "microbatch", "io", "hash")
    seen = []
    for m in (None, mode):
        torch.manual_seed(1)
        model = Stack(m)
        with tracerd.attach(model, name="x"):
            run_micro_batches(model, 3, SCHEDULES[schedule])
        seen.append(list(recorded))
        recorded.clear()
    plain, again = seen
    for r in again:  # the second model's objects are numbered on
        name, _, n = r["object"].rpartition("-")
        per = {"Stack": 1, "Block": 2, "Linear": 4, "ReLU": 2}[name]
        r["object"] = f"{name}-{int(n) - per}"
    fresh = [r for r in again if "recompute" not in r["labels"]]
    assert figures(fresh, *key) == figures(plain, *key)
    repeated = [r for r in again if "recompute" in r["labels"]]
    known = set(figures(plain, *key))
    assert repeated and set(figures(repeated, *key)) <= known
    blocks = [r for r in repeated if r.object == "Block-1"]
    assert sorted({r.microbatch for r in blocks}) == [1, 2, 3]


def test_a_region_of_several_modules(recorded):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        def forward(self, x):
            return checkpoint(
                lambda y: self.b(self.a(y).tanh()), x, use_reentrant=False
            )

    with tracerd.attach(m := Two()):
        run_micro_batches(m, 3, SCHEDULES["pipeline"])
    key = ("object", "step", "io", "hash")
    forward = pick(recorded, pass_="forward")
    repeated = [r for r in forward if "recompute" in r["labels"]]
    first = [r for r in forward if "recompute" not in r["labels"]]
    assert {r.object for r in repeated} == {"Linear-1", "Linear-2"}
    assert set(figures(repeated, *key)) <= set(figures(first, *key))


def test_local_gradients_are_those_of_each_backward_pass(recorded):
    model = nn.Linear(2, 1, bias=False)
    nn.init.ones_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    passes = ("grad", "local")
    with tracerd.attach(model, optimizer, passes=passes):
        for value in (1.0, 2.0):
            model(torch.full((1, 2), value)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(torch.full((1, 2), 5.0)).sum().backward()
        optimizer.step()
    seen = [(r.labels, r.step, r.microbatch, r.samples) for r in recorded]
    assert seen == [
        (["local"], 1, 1, [1.0, 1.0]),
        (["local"], 1, 2, [2.0, 2.0]),
        (["final"], 1, 0, [3.0, 3.0]),
        (["local"], 2, 1, [5.0, 5.0]),
        (["final"], 2, 0, [5.0, 5.0]),
    ]
    assert not model.weight._backward_hooks


def test_a_model_with_local_hooks_is_saved_and_copied_without(recorded):
    model = nn.Linear(2, 1)
    with tracerd.attach(model, passes=("local",)):
        other = copy.deepcopy(model)
        kept = pickle.loads(pickle.dumps(model))
        for m in (model, other, kept):
            m(torch.ones(1, 2)).sum().backward()
    assert len(recorded) == 2  # weight and bias of the first one


def test_local_gradients_of_lazy_modules(recorded):
    """They are hooked when the first pass has given them a shape."""
    model = nn.Sequential(
        nn.LazyLinear(2, bias=False), nn.Linear(2, 1, bias=False)
    )
    with tracerd.attach(model, passes="local") as t:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            t.step()
    assert [(r.iteration, r.path) for r in recorded] == [
        (1, "1.weight"), (2, "1.weight"), (2, "0.weight"),
    ]
