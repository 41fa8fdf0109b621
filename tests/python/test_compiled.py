"""Code that Python does not run: compiled, scripted, traced, captured."""

import copy

import pytest
import torch
from torch import nn

import tracerd
from recording import pick
from seen import bits, runs


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.a(x)) + x


def train(call, model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for x in (torch.ones(1, 2), torch.full((1, 2), 2.0)):
        loss = call(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return bits([losses, dict(model.state_dict())])


def build():
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Net()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("when", ["before", "after", "late"])
def test_attached_before_and_after_compiling(look, backend, when):
    """Real values at the boundary; never silence."""
    model = build()
    plain = train(torch.compile(model, backend=backend), model)
    model = build()
    if when == "before":
        with look.trace(model, warns="compiled") as t:
            got = train(torch.compile(model, backend=backend), model)
    else:
        compiled = torch.compile(model, backend=backend)
        if when == "late":
            with torch.no_grad():
                compiled(torch.ones(1, 2))
        with look.trace(compiled, warns="compiled") as t:
            got = train(compiled, model)
    assert got == plain
    is_the_boundary(t.records)


def is_the_boundary(records):
    """Of the two steps of train()."""
    inside = [r for r in records if r["pass"] in ("forward", "backward")]
    assert [(r.step, r["pass"], r.io, r.shape) for r in inside] == [
        (step, *what, [1, 2])
        for step in (1, 2)
        for what in (
            ("forward", "input"), ("forward", "output"), ("backward", "input")
        )
    ]
    assert {r.object for r in inside} == {"Net-1"}
    model = build()
    assert inside[0].max == 1 and inside[3].max == 2
    assert inside[1].max == model(torch.ones(1, 2)).max().item()
    assert len(pick(records, pass_="grad")) == 4
    for r in records:
        assert not {"nodata", "unsupported", "materialized"} & set(r.labels)


def test_what_was_compiled_later_is_called_by_itself_too(look):
    """Both are seen, and nothing twice."""
    model = build()
    x = torch.ones(1, 2)
    with look.trace(model, warns="compiled") as t:
        compiled = torch.compile(model, backend="eager")
        compiled(x)
        model(x)
        compiled(x)
    outputs = pick(t.records, pass_="forward", io="output")
    assert [(r.object, r.step) for r in outputs] == [
        ("Net-1", 1), ("Linear-1", 1), ("ReLU-1", 1), ("Net-1", 2),
        ("Net-1", 3),
    ]


def test_a_part_is_compiled_and_put_in_its_place_later(look):
    model = nn.Sequential(nn.Linear(2, 2), build())
    x = torch.ones(1, 2)
    with look.trace(model, warns="compiled") as t:
        model(x)
        model[1] = torch.compile(model[1], backend="eager")
        model(x)
    assert [r.step for r in pick(
        t.records, object="Net-1", pass_="forward", io="output"
    )] == [1, 2]
    assert [r.step for r in pick(
        t.records, object="Linear-2", pass_="forward", io="output"
    )] == [1]


def test_the_inner_model_is_attached_after_the_first_compiled_call(look):
    """As PyTorch compiles it: hooks put on later never run. It is said."""
    model = build()
    compiled = torch.compile(model, backend="eager")
    with torch.no_grad():
        compiled(torch.ones(1, 2))
    with pytest.warns(RuntimeWarning, match="tracerd.*compile"):
        with tracerd.attach(model, run=f"run{next(runs)}") as t:
            for _ in range(3):
                compiled(torch.ones(1, 2)).sum().backward()
                t.step()


def test_a_compiled_part_of_a_model(look):
    def make():
        torch._dynamo.reset()
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(2, 2), torch.compile(Net(), backend="aot_eager"),
            nn.Linear(2, 1),
        )

    model = make()
    plain = train(model, model)
    model = make()
    with look.trace(model, warns="compiled") as t:
        assert train(model, model) == plain
    for name in ("Sequential-1", "Linear-1", "Net-1"):
        out = pick(t.records, object=name, pass_="forward", io="output")
        assert [r.step for r in out] == [1, 2]
    assert {r.path for r in pick(t.records, pass_="grad")} == {
        "0.weight", "0.bias", "1.a.weight", "1.a.bias", "2.weight", "2.bias",
    }


def test_a_function_round_the_model_is_compiled(look):
    model = build()

    @torch.compile(backend="eager")
    def call(x):
        return model(x) * 1

    plain = train(call, model)
    torch._dynamo.reset()
    model = build()
    with look.trace(model, warns=any):
        assert train(call, model) == plain


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("when", ["before", "after", "late"])
def test_compiled_in_place_of_itself(look, backend, when):
    """model.compile() instead of torch.compile(model)."""
    model = build()
    model.compile(backend=backend)
    plain = train(model, model)
    model = build()
    if when != "before":
        model.compile(backend=backend)
    if when == "late":
        with torch.no_grad():
            model(torch.ones(1, 2))
    call = model._compiled_call_impl
    with look.trace(model, warns="compiled") as t:
        if when == "before":
            model.compile(backend=backend)
        assert train(model, model) == plain
        copied = copy.deepcopy(model)
        copied(torch.ones(1, 2))
    is_the_boundary(t.records)
    if when != "before":
        assert model._compiled_call_impl is call
    assert "tracerd" not in str(type(model._compiled_call_impl))
    assert nn.Module.compile.__module__ == "torch.nn.modules.module"
    assert not hasattr(nn.Module.compile, "__wrapped__")


def test_layers_are_compiled_in_place(look):
    def make():
        torch._dynamo.reset()
        torch.manual_seed(0)
        model = nn.Sequential(Net(), Net())
        for layer in model:
            layer.compile(backend="aot_eager")
        return model

    model = make()
    plain = train(model, model)
    model = make()
    with look.trace(model, warns="compiled") as t:
        assert train(model, model) == plain
    out = pick(t.records, pass_="forward", io="output")
    assert [(r.object, r.step) for r in out] == [
        (name, step) for step in (1, 2)
        for name in ("Net-1", "Net-2", "Sequential-1")
    ]
    grads = pick(t.records, pass_="backward", io="output")
    assert {r.object for r in grads} == {"Net-2"}


def test_what_is_compiled_in_place_raises(look):
    class Raises(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    model = Raises()
    with look.trace(model, warns="compiled") as t:
        model.compile(backend="eager")
        with pytest.raises(KeyError, match="mine"):
            model(torch.ones(1, 2))
    [out] = pick(t.records, io="output")
    assert "raised=KeyError" in out.labels


# ---- torch.jit ----


class Scripted(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.s = torch.jit.script(nn.Linear(2, 2))
        self.b = nn.Linear(2, 1)

    def forward(self, x):
        return self.b(self.s(self.a(x)))


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_a_scripted_part_is_left_out_and_named_once(look):
    torch.manual_seed(0)
    model = Scripted()
    for register in (
        model.s.register_forward_hook, model.s.register_forward_pre_hook,
    ):
        with pytest.raises(RuntimeError):
            register(lambda *a: None)
    plain = train(model, model)
    torch.manual_seed(0)
    model = Scripted()
    with look.trace(model, warns="not traced: s") as t:
        assert train(model, model) == plain
    seen = {
        (r.object, r.module) for r in pick(t.records, pass_="forward")
    }
    assert {m for _, m in seen} == {"", "a", "b"}
    # its gradients are parameters like others
    assert {r.path for r in pick(t.records, pass_="grad")} == {
        f"{m}.{p}" for m in "asb" for p in ("weight", "bias")
    }


@pytest.mark.filterwarnings("ignore:.torch.jit")
@pytest.mark.parametrize("how", ["script", "trace", "freeze"])
def test_a_whole_model_is_scripted(look, how):
    def make():
        torch.manual_seed(0)
        model = Net()
        if how == "script":
            return torch.jit.script(model)
        if how == "trace":
            return torch.jit.trace(model, torch.ones(1, 2))
        return torch.jit.freeze(torch.jit.script(model.eval()))

    model = make()
    plain = bits(model(torch.ones(1, 2)))
    model = make()
    with look.trace(model, warns=any):
        assert bits(model(torch.ones(1, 2))) == plain


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["trace", "unchecked", "fx", "export"])
def test_a_traced_model_is_made_into_a_graph(look, how):
    """No hook is baked into the graph, and its shape-only pass adds no
    record with made-up figures."""
    torch.manual_seed(0)
    model = Net()
    x = torch.ones(1, 2)
    plain = bits(model(x))
    with look.trace(model, warns=any) as t:
        if how == "trace":
            made = torch.jit.trace(model, x)
        elif how == "fx":
            made = torch.fx.symbolic_trace(model)
        elif how == "export":
            made = torch.export.export(model, (x,)).module()
        else:
            made = torch.jit.trace(model, x, check_trace=False)
        n = t.counters["submitted"]
        assert bits(made(x)) == plain
        if how != "fx":
            assert t.counters["submitted"] == n
        assert "tracerd" not in str(getattr(made, "code", ""))
        assert bits(model(x)) == plain
    for r in t.records:
        assert r.max is not None and "nodata" not in r.labels


@pytest.mark.filterwarnings("ignore")
def test_transforms_of_functions(look):
    """vmap, grad, jvp and functional_call through a traced model."""
    torch.manual_seed(0)
    model = Net()
    parameters = dict(model.named_parameters())
    x = torch.randn(3, 2)

    def loss(p, x):
        return torch.func.functional_call(model, p, (x,)).pow(2).sum()

    def run():
        return bits([
            torch.func.grad(loss)(parameters, x),
            torch.vmap(torch.func.grad(loss), (None, 0))(parameters, x),
            torch.func.jacrev(lambda x: model(x))(x),
            torch.func.jvp(lambda x: model(x), (x,), (x,)),
            torch.vmap(model)(x),
        ])

    plain = run()
    with look.trace(model) as t:
        assert run() == plain
        model(x).sum().backward()
    out = pick(t.records, object="Net-1", pass_="forward", io="output")
    assert out[-1].max == torch.relu(model.a(x)).add(x).max().item()


def test_a_captured_graph_of_a_device(look):
    """Replays run no Python; tests/python/test_device.py shows with an
    emulated device that each replay is recorded, this one is for a real
    one."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU here: graphs are captured on CUDA only")
    model = nn.Sequential(nn.Linear(4, 4), nn.GELU()).cuda()
    x = torch.ones(2, 4, device="cuda")
    side = torch.cuda.Stream()
    with look.trace(model) as t, torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(3):
                model(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = model(x)
        want = model(x)
        for _ in range(10):
            graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, want)
    replayed = [r for r in t.records if "graph" in r.labels]
    out = [r for r in replayed if r.object == "GELU-1" and r.io == "output"]
    assert len(out) == 10 and {r.max for r in out} == {want.max().item()}
