"""Modules that are called in unusual ways: often, never, by themselves, from
several threads, without gradients."""

import threading

import pytest
import torch
from torch import nn

import tracerd
from recording import Block, pick
from seen import batches, steps


def outputs(records, name):
    return pick(records, object=name, pass_="forward", io="output")


# ---- one module, several calls ----


def test_a_module_is_called_twice_in_one_forward(look):
    def train(model, optimizer):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()

    records = look(Block, train)
    assert [r.step for r in outputs(records, "ReLU-1")] == [1, 2, 3, 4]
    assert [r.microbatch for r in outputs(records, "ReLU-1")] == [1, 1, 2, 2]
    run = records[0].run
    for step, there in ((2, True), (3, True), (5, False)):
        found = look.daemon.query(run, f"forward-ReLU-1-{step}")
        assert bool(found) == there
        assert {r.step for r in found} == ({step} if there else set())


class Recursive(nn.Module):
    """Calls itself."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)

    def forward(self, x, depth=3):
        x = self.l(x).tanh()
        return self(x, depth - 1) if depth else x


def test_a_module_calls_itself(look):
    records = look(Recursive, lambda m, o: steps(m, o, batches(2)))
    # the outer call begins first and ends last
    inputs = pick(records, object="Recursive-1", io="input", pass_="forward")
    assert [r.step for r in inputs] == list(range(1, 9))
    assert [r.step for r in outputs(records, "Recursive-1")] == [
        4, 3, 2, 1, 8, 7, 6, 5,
    ]
    assert [r.microbatch for r in inputs] == [1] * 4 + [1] * 4
    assert [r.iteration for r in inputs] == [1] * 4 + [2] * 4


class Loop(nn.Module):
    """As a recurrent network: calls a cell as often as there is data."""

    def __init__(self):
        super().__init__()
        self.cell = nn.GRUCell(2, 2)

    def forward(self, x):
        h = torch.zeros(1, 2)
        for i in range(x.shape[0]):
            h = self.cell(x[i : i + 1], h)
        return h


def test_a_cell_is_called_as_often_as_there_is_data(look):
    def train(model, optimizer):
        return steps(model, optimizer, [torch.randn(n, 2) for n in (3, 1, 5)])

    records = look(Loop, train)
    cells = outputs(records, "GRUCell-1")
    assert [r.step for r in cells] == list(range(1, 10))
    assert [r.iteration for r in cells] == [1] * 3 + [2] + [3] * 5


def test_a_closure_runs_forward_many_times_in_one_step(look):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    x = torch.randn(8, 2)
    calls = []

    def closure():
        calls.append(1)
        optimizer.zero_grad()
        loss = (model(x) - 1).pow(2).sum()
        loss.backward()
        return loss

    with look.trace(model, optimizer) as t:
        for _ in range(2):
            optimizer.step(closure)
    seen = outputs(t.records, "Linear-1")
    assert [r.step for r in seen] == list(range(1, len(calls) + 1))
    assert {r.iteration for r in seen} == {1, 2} and len(calls) > 4
    gradients = pick(t.records, pass_="grad", path="weight")
    assert [r.iteration for r in gradients] == [1, 2]


def test_a_module_under_two_names_is_one_object(look):
    def build():
        shared = nn.Linear(2, 2)
        return nn.ModuleDict({"a": shared, "b": nn.ReLU(), "c": shared})

    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = build()

        def forward(self, x):
            return self.parts["c"](self.parts["b"](self.parts["a"](x)))

    records = look(Both, lambda m, o: steps(m, o, batches(2)))
    linear = outputs(records, "Linear-1")
    assert [(r.module, r.step) for r in linear] == [
        ("parts.a", i) for i in (1, 2, 3, 4)
    ]
    assert {r.path for r in pick(records, pass_="grad")} == {
        "parts.a.weight", "parts.a.bias",
    }


# ---- gradients of several forward passes ----


def test_one_backward_for_two_forwards(look):
    def build():
        model = nn.Linear(2, 1, bias=False)
        nn.init.ones_(model.weight)
        return model

    def train(model, optimizer):
        for i in range(2):
            loss = model(torch.full((1, 2), 1.0 + i)).sum()
            loss = loss + model(torch.full((1, 2), 2.0 + i)).sum()
            loss.backward()
        return model.weight.grad.clone()

    records = look(build, train)
    assert [r.step for r in outputs(records, "Linear-1")] == [1, 2, 3, 4]
    # autograd runs the last forward pass first
    backward = pick(records, pass_="backward", io="input")
    assert [r.step for r in backward] == [2, 1, 4, 3]


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1], [1, 0, 2]])
def test_backward_passes_come_in_another_order(look, order):
    inputs = batches(3)

    def train(model, optimizer):
        losses = [model(x).pow(2).sum() for x in inputs]
        for i in order:
            losses[i].backward()
        optimizer.step()
        return losses

    records = look(Block, train)
    backward = pick(records, object="Block-1", pass_="backward", io="input")
    assert [r.step for r in backward] == [i + 1 for i in order]
    assert [r.microbatch for r in backward] == [i + 1 for i in order]


def test_a_graph_is_gone_through_twice(look):
    def train(model, optimizer):
        loss = model(torch.ones(1, 2)).sum()
        loss.backward(retain_graph=True)
        loss.backward()
        return loss

    records = look(Block, train)
    backward = pick(records, object="Linear-1", pass_="backward", io="input")
    assert [r.step for r in backward] == [1, 1]


def test_a_gradient_of_a_gradient(look):
    def train(model, optimizer):
        x = torch.randn(3, 2, requires_grad=True)
        y = model(x * 1).pow(3).sum()
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        (g.pow(2).sum() + y).backward()
        return x.grad

    records = look(Block, train, see=False)
    hashes = [
        r.hash
        for r in pick(records, object="Block-1", pass_="backward", io="input")
    ]
    assert len(hashes) == 2  # one for each pass through the graph


# ---- without gradients ----


def test_evaluation_then_training(look):
    def train(model, optimizer):
        found = []
        for x in batches(2):
            model.eval()
            with torch.no_grad():
                found.append(model(x))
            with torch.inference_mode():
                found.append(model(x).sum().item())
            model.train()
            found += steps(model, optimizer, [x])
        return found

    records = look(Block, train)
    seen = outputs(records, "Block-1")
    assert [(r.step, r.labels) for r in seen] == [
        (1, ["eval"]), (2, ["eval"]), (3, []),
        (4, ["eval"]), (5, ["eval"]), (6, []),
    ]
    backward = pick(records, object="Block-1", pass_="backward")
    assert [r.step for r in backward] == [3, 6]


def test_a_part_of_a_forward_has_no_gradient(look):
    class Half(Block):
        def forward(self, x):
            with torch.no_grad():
                first = self.act(self.a(x))
            with torch.enable_grad():
                return self.act(self.b(first))

    records = look(Half, lambda m, o: steps(m, o, batches(2)))
    backward = pick(records, pass_="backward")
    assert {(r.object, r.step) for r in backward} == {
        ("Half-1", 1), ("Half-1", 2), ("Linear-2", 1), ("Linear-2", 2),
        ("ReLU-1", 2), ("ReLU-1", 4),
    }


def frozen():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    model[0].requires_grad_(False)
    return model


def test_a_frozen_layer_in_three_modes(look):
    def train(model, optimizer):
        with torch.no_grad():
            model(torch.ones(1, 2))
        with torch.inference_mode():
            model(torch.ones(1, 2))
        return steps(model, optimizer, [torch.ones(1, 2)])

    records = look(frozen, train)
    for name in ("Linear-1", "Linear-2", "Sequential-1"):
        assert [r.step for r in outputs(records, name)] == [1, 2, 3]
    backward = pick(records, pass_="backward")
    assert {(r.object, r.step) for r in backward} == {
        ("Linear-2", 3), ("Sequential-1", 3),
    }
    assert [r.path for r in pick(records, pass_="grad")] == [
        "1.weight", "1.bias",
    ]


def test_a_layer_is_frozen_and_thawed_between_steps(look):
    def build():
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def train(model, optimizer):
        losses = []
        for i, x in enumerate(batches(4)):
            model[0].requires_grad_(i % 2 == 1)
            losses += steps(model, optimizer, [x])
        return losses

    records = look(build, train)
    backward = pick(records, object="Linear-1", pass_="backward")
    assert [r.step for r in backward] == [2, 4]
    grads = pick(records, pass_="grad", path="0.weight")
    assert [r.iteration for r in grads] == [2, 4]


def test_data_without_gradient_has_none(look):
    def build():
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def train(model, optimizer):
        model(torch.ones(1, 2)).sum().backward()

    records = look(build, train)
    backward = {(r.object, r.io) for r in pick(records, pass_="backward")}
    assert backward == {
        ("Linear-1", "input"), ("Linear-2", "input"),
        ("Linear-2", "output"), ("Sequential-1", "input"),
    }


# ---- arguments ----


class Named(nn.Module):
    def forward(self, *, hidden_states, scale=None, mask=None):
        return hidden_states * scale


def test_arguments_by_name_only(look):
    def train(model, optimizer):
        x = torch.ones(2, 3, requires_grad=True)
        model(
            hidden_states=x, scale=torch.tensor(3.0), mask=None
        ).sum().backward()
        return x.grad

    records = look(Named, train)
    inputs = pick(records, pass_="forward", io="input")
    assert [(r.position, r.path, r.shape) for r in inputs] == [
        (0, "hidden_states", [2, 3]), (1, "scale", []),
    ]
    (gradient,) = pick(records, pass_="backward", io="output")
    assert gradient.path == "hidden_states"


def test_arguments_by_place_and_name_nested_and_in_changing_order(look):
    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(2, 2)

        def forward(self, x, *more, bias=None, cache=None):
            x = self.l(x) + sum(more)
            if bias is not None:
                x = x + bias
            return x + (cache["kv"][1] if cache else 0)

    def train(model, optimizer):
        x, y, z = batches(3)
        losses = [
            model(x), model(x, y, z), model(x, bias=y),
            model(x, cache={"kv": [z, y], "n": 3}, bias=z),
            model(x, bias=z, cache={"n": 3, "kv": [z, y]}),
            model(x, cache=None, bias=None),
        ]
        sum(loss.pow(2).sum() for loss in losses).backward()
        optimizer.step()
        return losses

    records = look(Takes, train)
    inputs = pick(records, object="Takes-1", pass_="forward", io="input")
    paths = {}
    for r in inputs:
        paths.setdefault(r.step, []).append(r.path)
    assert paths == {
        1: ["0"], 2: ["0", "1", "2"], 3: ["0", "bias"],
        4: ["0", "cache.kv.0", "cache.kv.1", "bias"],
        5: ["0", "bias", "cache.kv.0", "cache.kv.1"],
        6: ["0"],
    }


def test_a_module_without_any_input(look):
    class Source(nn.Module):
        def __init__(self):
            super().__init__()
            self.value = nn.Parameter(torch.ones(2))

        def forward(self):
            return self.value * 2

    def train(model, optimizer):
        model().sum().backward()
        optimizer.step()

    records = look(Source, train)
    assert [(r["pass"], r.io) for r in records if r["pass"] != "grad"] == [
        ("forward", "output"), ("backward", "input"),
    ]


# ---- forward() itself ----


class Direct(nn.Module):
    """Calls the forward() of a layer, round its hooks."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Linear(2, 2)

    def forward(self, x):
        return self.b(self.a.forward(x))


def test_forward_called_directly_leaves_the_numbers_of_the_others(look):
    """Objects are numbered as they stand in the model, not as they are
    called first, so a layer that is never seen shifts no other one."""
    records = look(
        Direct, lambda m, o: steps(m, o, batches(2)), warns="no call was seen"
    )
    objects = {(r.object, r.module) for r in records if r.object}
    assert objects >= {("Direct-1", ""), ("Linear-2", "b")}
    assert {r.object for r in pick(records, module="a", pass_="forward")} <= {
        "Linear-1"
    }
    # its parameters' gradients are seen nevertheless
    assert {r.path for r in pick(records, pass_="grad")} == {
        "a.weight", "a.bias", "b.weight", "b.bias",
    }


def test_the_models_own_forward_is_called_directly(look):
    """As by a framework that replaces it; its layers are seen."""

    def train(model, optimizer):
        losses = []
        for x in batches(3):
            loss = model.forward(x).pow(2).sum()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return losses

    records = look(Block, train)
    assert {r.object for r in pick(records, pass_="forward")} == {
        "Linear-1", "Linear-2", "ReLU-1",
    }
    assert {r.iteration for r in outputs(records, "Linear-1")} == {1, 2, 3}


def test_forward_is_replaced_on_the_instance(look):
    def build():
        model = Block()
        inner = model.a.forward
        model.a.forward = lambda x: inner(x) * 2
        return model

    records = look(build, lambda m, o: steps(m, o, batches(2)))
    assert [r.step for r in outputs(records, "Linear-1")] == [1, 2]


def test_a_weight_is_used_without_its_module(look):
    """As in nn.MultiheadAttention."""

    class Uses(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            return self.attention(x, x, x)[0]

    records = look(Uses, lambda m, o: steps(m, o, batches(2, 1, 3, 4)))
    assert "attention.out_proj.weight" in {
        r.path for r in pick(records, pass_="grad")
    }
    assert not outputs(records, "NonDynamicallyQuantizableLinear-1")


# ---- threads ----


def start(*functions):
    threads = [threading.Thread(target=f) for f in functions]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def test_backward_in_another_thread(look):
    def train(model, optimizer):
        y = model(torch.ones(1, 2, requires_grad=True)).sum()
        start(y.backward)
        start(*[
            lambda i=i: model(torch.full((1, 2), float(i))) for i in range(8)
        ])

    records = look(lambda: nn.Linear(2, 1), train, see=False)
    backward = pick(records, pass_="backward")
    assert [(r.step, r.rank, r.iteration) for r in backward] == [(1, 0, 1)] * 2
    ins = pick(records, pass_="forward", io="input")
    outs = outputs(records, "Linear-1")
    assert sorted(r.step for r in ins) == list(range(1, 10))
    assert sorted(r.step for r in outs) == list(range(1, 10))
    # input and output of one call bear one step
    model = nn.Linear(2, 1)
    torch.manual_seed(7)
    model = nn.Linear(2, 1)
    by_step = {r.step: r for r in ins}
    for r in outs:
        x = torch.tensor([by_step[r.step].samples])
        assert model(x).reshape(-1).tolist() == r.samples


def test_forward_and_backward_in_several_threads(look):
    """Each thread trains on its own data; the sum of gradients is exact."""

    def build():
        model = Block()
        with torch.no_grad():
            for p in model.parameters():
                p.copy_(torch.ones_like(p))
        return model

    def train(model, optimizer):
        def one(k):
            for i in range(5):
                x = torch.full((1, 2), float(k * 8 + i + 1))
                model(x).sum().backward()

        start(*[lambda k=k: one(k) for k in range(4)])

    records = look(build, train, see=False)
    ins = pick(records, object="Block-1", pass_="forward", io="input")
    assert sorted(r.step for r in ins) == list(range(1, 21))
    assert sorted(r.samples[0] for r in ins) == sorted(
        float(k * 8 + i + 1) for k in range(4) for i in range(5)
    )
    back = pick(records, object="Block-1", pass_="backward", io="input")
    assert sorted(r.step for r in back) == list(range(1, 21))
    first = pick(records, object="Linear-1", pass_="forward", io="input")
    relu = pick(records, object="ReLU-1", pass_="forward", io="output")
    assert len(first) == 20 and len(relu) == 40


def test_a_part_of_the_forward_runs_in_a_thread(look):
    class Threaded(Block):
        def forward(self, x):
            found = []
            start(lambda: found.append(self.act(self.a(x))))
            return self.act(self.b(found[0]))

    records = look(Threaded, lambda m, o: steps(m, o, batches(3)))
    assert [r.step for r in outputs(records, "ReLU-1")] == list(range(1, 7))


def test_iterations_end_in_another_thread(look):
    def train(model, optimizer):
        for x in batches(3):
            model(x).sum().backward()
            start(optimizer.step)
            optimizer.zero_grad()

    records = look(Block, train)
    assert [r.iteration for r in outputs(records, "Block-1")] == [1, 2, 3]


# ---- replicas ----


def replica(model):
    copy = model._replicate_for_data_parallel()
    copy.weight, copy.bias = model.weight, model.bias
    return copy


@pytest.mark.parametrize("threads", [False, True], ids=["in turn", "at once"])
def test_replicas_are_one_object(look, threads):
    def train(model, optimizer):
        for i in range(2):
            calls = [
                lambda x=x: replica(model)(torch.full((1, 2), float(x)))
                for x in (10 * i, 10 * i + 1)
            ]
            if threads:
                start(*calls)
            else:
                for call in calls:
                    call()

    records = look(lambda: nn.Linear(2, 2), train, see=False)
    inputs = pick(records, io="input")
    assert {r.object for r in records} == {"Linear-1"}
    assert sorted(r.step for r in inputs) == [1, 2, 3, 4]
    assert sorted(r.samples[0] for r in inputs) == [0, 1, 10, 11]


def test_data_parallel_without_devices_passes_the_call_on(look):
    def build():
        return nn.DataParallel(Block())

    records = look(
        build, lambda m, o: steps(m, o, batches(2)), see=False
    )
    assert [r.step for r in outputs(records, "Block-1")] == [1, 2]
    assert {r.path for r in pick(records, pass_="grad")} == {
        "a.weight", "a.bias", "b.weight", "b.bias",
    }
    assert "DataParallel-1" not in {r.object for r in records}


# ---- two traces ----


def test_a_part_of_a_traced_model_is_traced_again(look):
    model = Block()
    with look.trace(model) as outer:
        with look.trace(model.a, name="part") as inner:
            model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()
    assert [r.step for r in outputs(inner.records, "Linear-1")] == [1]
    assert [r.step for r in outputs(outer.records, "Linear-1")] == [1, 2]
    assert [r.step for r in outputs(outer.records, "Block-1")] == [1, 2]


def test_attached_inside_a_forward(look):
    class Late(Block):
        trace = None

        def forward(self, x):
            if self.trace is None:
                x = self.a(x)
                self.trace = tracerd.attach(self, run="late")
                return self.act(self.b(x))
            return super().forward(x)

    model = Late()
    model(torch.ones(1, 2)).sum().backward()
    model(torch.ones(1, 2)).sum().backward()
    assert model.trace.flush() and model.trace.counters["lost"] == {}
    model.trace.close()
    records = look.daemon.query("late")
    assert [r.step for r in outputs(records, "Linear-2")] == [1, 2]
    assert [r.step for r in outputs(records, "Late-1")] == [1]


def test_closed_inside_a_forward(look):
    model = Block()
    with look.trace(model) as t:
        model(torch.ones(1, 2)).sum().backward()
        handle = model.b.register_forward_pre_hook(lambda *a: t.close())
        assert t.flush()
        model(torch.ones(1, 2)).sum().backward()
        handle.remove()
        model(torch.ones(1, 2)).sum().backward()
        t.flush()
    assert not model.a._forward_hooks
    assert {r.step for r in outputs(t.records, "Block-1")} == {1}
