"""Optimizers as trainings have them: several, scaled, wrapped, stepping
within the backward pass; and what they keep for each parameter."""

import pytest
import torch
from torch import nn

import tracerd
from recording import pick


def grads(records):
    found = pick(records, pass_="grad")
    return [(r.path, r.iteration, *r.labels) for r in found]


def two():
    model = nn.Sequential(
        nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
    )
    return model, [
        torch.optim.SGD([model[i].weight], lr=0.1) for i in range(2)
    ]


@pytest.mark.parametrize("given", [True, False])
def test_each_optimizer_finds_its_own(recorded, given):
    """As with Muon for matrices and Adam for the rest."""
    model, (first, second) = two()
    with tracerd.attach(model, first if given else None) as t:
        for _ in range(3):
            model(torch.ones(1, 2)).sum().backward()
            first.step()
            # comes between: it must be seen
            model[1].weight.grad.mul_(0.5)
            halved = model[1].weight.grad.clone()
            second.step()
            model.zero_grad()
        assert t.iteration == 4
    assert sorted(grads(recorded)) == sorted(
        (f"{i}.weight", n, "final") for i in (0, 1) for n in (1, 2, 3)
    )
    last = pick(recorded, pass_="grad", path="1.weight", iteration=3)
    assert last[0].samples == halved.flatten().tolist()


def test_two_that_take_turns(recorded):
    """As those of a generator and its judge."""
    model, (first, second) = two()
    x = torch.ones(1, 2)
    with tracerd.attach(model, first):
        for _ in range(2):
            for optimizer in (first, second):
                model(x).sum().backward()
                optimizer.step()
                model.zero_grad()
    # an iteration ends with the first one's step
    found = grads(recorded)
    assert [f for f in found if f[0] == "0.weight"] == [
        ("0.weight", 1, "final"), ("0.weight", 2, "final")
    ]
    # the second one's is in the next, from the first on
    assert [f for f in found if f[0] == "1.weight"] == [
        ("1.weight", 2, "final"), ("1.weight", 3, "final"),
    ]


def test_a_list_of_optimizers(recorded):
    model, optimizers = two()
    with tracerd.attach(model, optimizers) as t:
        model(torch.ones(1, 2)).sum().backward()
        optimizers[1].step()
        assert t.iteration == 1
        optimizers[0].step()
        assert t.iteration == 2
    assert sorted(grads(recorded)) == [
        ("0.weight", 1, "final"), ("1.weight", 1, "final")
    ]


def test_iterations_that_are_not_traced_cost_no_record(recorded):
    model, (first, second) = two()
    with tracerd.attach(model, first, every=2):
        for _ in range(4):
            model(torch.ones(1, 2)).sum().backward()
            first.step()
            second.step()
    assert {r.iteration for r in recorded} == {1, 3}


def test_the_scale_and_who_is_still_scaled(recorded):
    model, (first, second) = two()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    with tracerd.attach(model, first):
        for _ in range(3):
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.step(first)
            scaler.step(second)
            scaler.update()
            model.zero_grad()
    scale = pick(recorded, pass_="user", path="grad_scale")
    assert [(r.step, r.iteration, r.samples) for r in scale] == [
        (1, 1, [8.0]), (2, 2, [8.0]), (3, 3, [16.0])
    ]
    by_path = {
        path: [(n, labels) for p, n, *labels in grads(recorded) if p == path]
        for path in ("0.weight", "1.weight")
    }
    # also the second one's are unscaled, though the first steps before it
    for path in by_path:
        assert by_path[path] == [(n, ["final"]) for n in (1, 2, 3)]


def test_unscaled_by_hand_before_clipping(recorded):
    model, (first, second) = two()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    with tracerd.attach(model, first):
        scaler.scale(model(torch.ones(1, 2)).sum()).backward()
        for optimizer in (first, second):
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        for optimizer in (first, second):
            scaler.step(optimizer)
        scaler.update()
    assert sorted(grads(recorded)) == [
        ("0.weight", 1, "final"), ("1.weight", 1, "final")
    ]
    norm = sum(r.l2**2 for r in pick(recorded, pass_="grad")) ** 0.5
    assert norm == pytest.approx(0.01, rel=1e-3)


def test_a_scaler_of_a_derived_class(recorded):
    class Own(torch.amp.GradScaler):
        def scale(self, outputs):
            return super().scale(outputs)

        def step(self, optimizer, *args):
            return super().step(optimizer, *args)

    before = dict(vars(Own))
    model, (first, _) = two()
    scaler = Own("cpu", init_scale=4.0)
    with tracerd.attach(model, first) as t:
        for value in (1.0, float("inf")):
            scaler.scale(model(torch.full((1, 2), value)).sum()).backward()
            scaler.step(first)
            scaler.update()
            model.zero_grad()
        assert t.iteration == 3  # the skipped step counts once
    assert dict(vars(Own)) == before
    assert [r.samples for r in pick(recorded, path="grad_scale")] == [
        [4.0], [4.0]
    ]


def test_optimizers_that_step_within_the_backward_pass(recorded):
    from torch.distributed.optim import _apply_optimizer_in_backward as apply

    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    apply(torch.optim.SGD, model.parameters(), {"lr": 0.1})
    x = torch.ones(1, 2, requires_grad=True)
    with tracerd.attach(model, passes=("backward", "grad", "local")) as t:
        for _ in range(2):
            model(x).sum().backward()
        t.close()
    paths = [f"{i}.{name}" for i in (0, 1) for name in ("weight", "bias")]
    for label in ("final", "local"):
        found = [f for f in grads(recorded) if label in f]
        assert sorted(found) == sorted(
            (path, n, label) for path in paths for n in (1, 2)
        )
    outputs = pick(recorded, pass_="backward", io="output", object="Linear-1")
    assert [r.iteration for r in outputs] == [1, 2]


class Wrapper:
    """As frameworks wrap an optimizer: the class is torch's, the inside
    another's."""

    def __init__(self, inner, name):
        setattr(self, name, inner)


def wrapped(optimizer):
    class Accelerated(torch.optim.Optimizer):
        def __init__(self, inner):
            self.optimizer = inner

    class Chained:
        def __init__(self, inner):
            self.chained_optimizers = [Wrapper(inner, "optimizer")]

        @property
        def optimizer(self):
            raise AssertionError("there are several")

    return {
        "accelerate": Accelerated(optimizer),
        "lightning": Wrapper(optimizer, "_optimizer"),
        "twice": Wrapper(Accelerated(optimizer), "optimizer"),
        "megatron": Chained(optimizer),
    }


@pytest.mark.parametrize("how", wrapped(None))
def test_a_wrapped_optimizer(recorded, how):
    model, (first, second) = two()
    with tracerd.attach(model, wrapped(first)[how]) as t:
        model(torch.ones(1, 2)).sum().backward()
        second.step()
        assert t.iteration == 1
        first.step()
        assert t.iteration == 2


# ---- what optimizers keep ----


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (torch.optim.Adam, ["exp_avg", "exp_avg_sq"]),
        (lambda p: torch.optim.AdamW(p, amsgrad=True, foreach=True),
         ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"]),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
         ["momentum_buffer"]),
        (torch.optim.Adagrad, ["sum"]),
        (torch.optim.SGD, []),
    ],
    ids=["adam", "adamw", "momentum", "adagrad", "sgd"],
)
def test_the_state_after_the_step(recorded, make, names):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    optimizer = make(model.parameters())
    with tracerd.attach(
        model, optimizer, passes="optim", match="Linear-2", samples=2
    ):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
    assert [(r["pass"], r.path, r.step, r.object, r.module)
            for r in recorded] == [
        ("optim", f"2.{p}.{name}", i, "Linear-2", "2")
        for i in (1, 2) for p in ("weight", "bias") for name in names
    ]
    for r in recorded[-2 * len(names):] if names else ():
        _, p, name = r.path.split(".")
        state = optimizer.state[getattr(model[2], p)][name]
        assert r.samples == state.flatten()[:2].tolist()


def test_a_state_that_is_no_dict_is_left_out(recorded):
    class Own(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {})

        def step(self):
            self.state[model.weight] = [torch.ones(1)]
            self.state[model.bias] = {"sum": torch.ones(1)}

    model = nn.Linear(2, 1)
    optimizer = Own(model.parameters())
    with tracerd.attach(model, optimizer, passes="optim"):
        optimizer.step()
    assert [(r.path, r.samples) for r in recorded] == [("bias.sum", [1.0])]


def test_the_state_of_flat_pieces_is_named_by_place(recorded):
    model = nn.Linear(2, 1)
    flat = nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.Adam([flat])
    with tracerd.attach(model, optimizer, passes="optim"):
        model(torch.ones(1, 2)).sum().backward()
        flat.grad = torch.ones(3)
        optimizer.step()
    assert [(r.path, r.object) for r in recorded] == [
        ("0.0.exp_avg", ""), ("0.0.exp_avg_sq", "")
    ]


def test_the_state_is_found_by_name(here):
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.Adam(model.parameters())
    with tracerd.attach(
        model, optimizer, run="kept", passes=("grad", "optim")
    ) as t:
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        assert t.flush() and not t.counters["lost"]
    found = here.query("kept", "optim-0.weight.exp_avg-2")
    assert [(r.name, r.object, r.iteration) for r in found] == [
        ("optim-0.weight.exp_avg-2", "Linear-1", 2)
    ]
    state = optimizer.state[model[0].weight]["exp_avg"]
    assert found[0].hash == tracerd.stats(state)["hash"]
    assert len(here.query("kept", "optim-*")) == 8
