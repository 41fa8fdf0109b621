"""Modules inside of compiled code, traced on request (inside_compile=True).

With aot_eager compiled code computes what eager code computes, to the bit.
So records from inside are compared with what an independent recorder, of
plain torch, saw of the same training run eagerly.
"""

import copy
import dataclasses
import io
import pickle
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracerd
from recording import pick
from seen import batches, bits, compare, figures_agree, steps

counters = torch._dynamo.utils.counters


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


@dataclasses.dataclass
class Pair:
    first: torch.Tensor
    second: torch.Tensor


class Split(nn.Module):
    """Several results, in containers of all kinds."""

    def forward(self, x, *, scale):
        return {"a": x * scale, "b": [x + 1, (x - 1, None)]}


class Join(nn.Module):
    def forward(self, parts):
        return Pair(parts["a"], parts["b"][0] + parts["b"][1][0])


class Part(nn.Module):
    def __init__(self, stop=False):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.a = nn.Linear(4, 6)
        self.act = nn.ReLU(inplace=True)
        self.b = nn.Linear(6, 4)
        self.stop = stop

    def forward(self, x):
        y = self.act(self.a(self.norm(x)))
        if self.stop:
            torch._dynamo.graph_break()
        return x + self.b(y)


class Model(nn.Module):
    """how: how its parts are called."""

    def __init__(self, parts=2, stop=False, how=None):
        super().__init__()
        self.parts = nn.ModuleList(Part(stop) for _ in range(parts))
        self.split = Split()
        self.join = Join()
        self.head = nn.Linear(4, 3)
        self.how = how or (lambda part, x: part(x))

    def forward(self, x):
        for part in self.parts:
            x = self.how(part, x)
        pair = self.join(self.split(x, scale=2.0))
        return self.head(pair.first) + self.head(pair.second)


def loss_of(y):
    return y.pow(2).mean() / 8


def train(model, optimizer):
    return steps(model, optimizer, batches(3, 5, 4), loss_of)


def different_shapes(model, optimizer):
    inputs = [torch.randn(n, 4) for n in (2, 3, 4, 7)]
    return steps(model, optimizer, inputs, loss_of)


def eager_events(look, build, train):
    events = []
    look._run(build, train, events=events)
    return events


def compiled(train, **options):
    options.setdefault("backend", "aot_eager")

    def run(model, optimizer):
        torch._dynamo.reset()  # the untraced training has filled its caches
        return train(torch.compile(model, **options), optimizer)

    return run


def in_place(train, **options):
    def run(model, optimizer):
        torch._dynamo.reset()
        model.compile(**options)
        return train(model, optimizer)

    return run


def round_it(train, **options):
    def run(model, optimizer):
        torch._dynamo.reset()

        @torch.compile(**options)
        def call(x):
            return model(x) * 1

        return train(call, optimizer)

    return run


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("how", [compiled, in_place, round_it])
def test_what_is_inside_is_seen_as_if_it_were_not_compiled(
    look, how, backend
):
    events = eager_events(look, Model, train)
    records = look(
        Model, how(train, backend=backend), see=False, inside_compile=True
    )
    compare(records, events)
    inside = [r for r in records if r.module not in ("", "parts")]
    assert all(
        ("materialized" in r.labels) == (r["pass"] in ("forward", "backward"))
        for r in inside
    )


def test_a_model_that_was_compiled_before_attach(look):
    events = eager_events(look, Model, train)

    def build():
        torch._dynamo.reset()
        return torch.compile(Model(), backend="aot_eager")

    records = look(build, train, see=False, inside_compile=True)
    compare(records, events)
    # the boundary is the real thing, what is inside is materialized
    for r in pick(records, object="Model-1"):
        assert "materialized" not in r.labels
    assert {
        label
        for r in pick(records, object="Linear-1", pass_="backward")
        for label in r.labels
    } == {"materialized", "total"}


def test_one_whole_graph_stays_one(look):
    look(
        Model, compiled(train, fullgraph=True), see=False, inside_compile=True
    )
    # plain and traced, one each
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]


def test_code_with_breaks_in_it(look):
    events = eager_events(look, lambda: Model(stop=True), train)
    records = look(
        lambda: Model(stop=True), compiled(train), see=False,
        inside_compile=True,
    )

    def comes_through_one_graph(kind, name, io):
        # the input of a part goes round it in the other graph
        return not (
            kind == "backward" and name[:9] == "LayerNorm" and io == "output"
        )

    compare(
        [
            r for r in records
            if comes_through_one_graph(r["pass"], r.object, r.io)
        ],
        [
            e for e in events
            if comes_through_one_graph(e.kind, e.object, e.io)
        ],
    )


@pytest.mark.parametrize("dynamic", [None, False])
def test_shapes_change_and_code_is_compiled_again(look, dynamic):
    events = eager_events(look, Model, different_shapes)
    records = look(
        Model, compiled(different_shapes, dynamic=dynamic), see=False,
        inside_compile=True,
    )
    compare(records, events)
    r = pick(records, object="Linear-1", pass_="forward", io="output")
    assert [x.shape for x in r] == [[2, 6], [3, 6], [4, 6], [7, 6]]


def test_a_graph_that_serves_many_modules_knows_them_apart(look):
    """Compiled by layer: one graph for all of a class, traced or not, so
    that the compiler's limit of graphs is not reached either."""

    def build():
        model = Model(parts=10)
        for part in model.parts:
            part.compile(backend="aot_eager")
        return model

    def graphs(model, optimizer):
        torch._dynamo.reset()
        counters.clear()
        losses = train(model, optimizer)
        return losses, counters["stats"]["unique_graphs"]

    def once(model, optimizer):
        return train(model, optimizer), 0

    events = []
    look._run(lambda: Model(parts=10), once, events=events)
    plain = look._run(build, graphs)
    records = []
    look._renumber()
    traced = look._run(
        build, graphs, records=records, options={"inside_compile": True}
    )
    assert traced == plain
    compare(records, events)


def test_a_filter_leaves_the_others_of_a_class_out(look):
    records = look(
        Model, compiled(train), see=False, inside_compile=True,
        match="parts.1.a",
    )
    for pass_ in ("forward", "backward"):
        assert {r.module for r in pick(records, pass_=pass_)} == {"parts.1.a"}
    out = pick(records, object="Linear-3", io="output", pass_="forward")
    assert [r.step for r in out] == [1, 2, 3]


def test_only_some_iterations(look):
    events = eager_events(look, Model, train)
    records = look(
        Model, compiled(train), see=False, inside_compile=True, iterations=2
    )
    assert {r.iteration for r in records} == {2}
    compare(records, [e for e in events if (
        e.step if e.object not in ("Linear-5",) else (e.step + 1) // 2
    ) == 2])


@pytest.mark.parametrize("how", [compiled, round_it])
def test_passes_without_gradients_are_labelled(look, how):
    def both(model, optimizer):
        losses = []
        for x in batches(2, 5, 4):
            losses += steps(model, optimizer, [x], loss_of)
            with torch.no_grad():
                losses.append(model(x).sum().item())
        return losses

    records = look(
        Model, how(both, backend="aot_eager"), see=False, inside_compile=True
    )
    forward = pick(records, pass_="forward", object="LayerNorm-1")
    assert len(forward) == 8
    for r in forward:
        assert ("eval" in r.labels) == (r.step % 2 == 0)
        assert r.microbatch == r.step % 2


@pytest.mark.parametrize("how", [compiled, round_it])
def test_several_passes_before_a_step_are_micro_batches(look, how):
    def accumulate(model, optimizer):
        for x in batches(4, 5, 4):
            loss_of(model(x)).backward()
        optimizer.step()

    records = look(
        Model, how(accumulate, backend="aot_eager"), see=False,
        inside_compile=True,
    )
    out = pick(records, object="LayerNorm-1", io="output", pass_="forward")
    assert [(r.step, r.microbatch) for r in out] == [
        (1, 1), (2, 2), (3, 3), (4, 4)
    ]


def test_gradients_belong_to_their_own_forward_pass(look):
    """As pipelines have it: two passes forward, then both back."""

    def crossed(model, optimizer):
        first, second = (loss_of(model(x)) for x in batches(2, 5, 4))
        first.backward()
        second.backward()
        optimizer.step()

    events = eager_events(look, Model, crossed)
    records = look(Model, compiled(crossed), see=False, inside_compile=True)
    compare(records, events)


# ---- checkpoints ----


def reruns(part, x):
    return checkpoint(part, x, use_reentrant=False)


def test_a_checkpoint_round_compiled_layers(look):
    """A repetition has the step and the bits of what it repeats."""

    def build():
        torch._dynamo.reset()
        model = Model(how=reruns)
        for part in model.parts:
            part.compile(backend="aot_eager")
        return model

    events = eager_events(look, lambda: Model(how=reruns), train)
    records = look(build, train, see=False, inside_compile=True)
    again = [r for r in records if "recompute" in r.labels]
    assert {r.module for r in again} >= {"parts.0.norm", "parts.1.a"}
    # the last of a part need not run again: eager code stops before it
    compare(
        [r for r in records if "recompute" not in r.labels],
        [e for e in events if e.kind != "recompute"],
    )
    first = {
        (r.object, r.step, r.io): r.hash
        for r in records
        if r["pass"] == "forward" and "recompute" not in r.labels
    }
    for r in again:
        assert first[r.object, r.step, r.io] == r.hash


def test_a_checkpoint_inside_is_left_alone_and_that_is_said(look):
    model = Model(how=reruns)
    plain = look._run(lambda: Model(how=reruns), compiled(train))
    torch.manual_seed(7)
    model = Model(how=reruns)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    torch.manual_seed(11)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tracerd.attach(model, optimizer, inside_compile=True) as t:
            losses = compiled(train)(model, optimizer)
            assert t.flush(30)
    assert bits(losses) == plain[0]
    assert bits(dict(model.state_dict())) == plain[1]
    said = [str(w.message) for w in told if "tracerd" in str(w.message)]
    assert "modules within a checkpoint" in said[0]
    assert "parts.0.norm" in said[1]  # no call was seen
    assert len(said) == 2


# ---- inductor ----


def test_inductor_writes_out_what_it_would_have_fused(look):
    """Values near those of eager code; the bits in fp32 are the untraced
    training's on what this was run on, and nobody promises that."""
    events = eager_events(look, Model, train)
    look._renumber()
    records = []
    plain = look._run(Model, compiled(train, backend="inductor"))
    traced = look._run(
        Model, compiled(train, backend="inductor"), records=records,
        options={"inside_compile": True},
    )
    for (_, a), (_, b) in zip(
        torch_of(plain[1]), torch_of(traced[1]), strict=True
    ):
        torch.testing.assert_close(a, b)
    left = {}
    for r in records:
        key = r["pass"], r.object, r.step, r.io or "", r.path
        left.setdefault(key, []).append(r)
    for e in events:
        name = "" if e.kind == "grad" else e.object
        key = e.kind, name, e.step, e.io, e.path
        if e.kind == "grad":
            continue
        r = left[key].pop()
        assert r.shape == list(e.tensor.shape)
        assert r.max == pytest.approx(e.tensor.max().item(), rel=1e-4,
                                      abs=1e-5)
    assert not [
        k for k, rs in left.items()
        if k[0] in ("forward", "backward") and rs
    ]


def torch_of(value):
    """What bits() made of a state_dict, as tensors again."""
    return [
        (name, torch.frombuffer(bytearray(raw), dtype=torch.float32))
        for name, (_, _, raw) in value[1]
    ]


# ---- before and after ----


def test_nothing_is_left_when_it_ends(look):
    model = Model()
    call = torch.compile(model, backend="aot_eager")
    before = [set(vars(m)) for m in model.modules()]
    dump = pickle.dumps(model.state_dict())
    with look.trace(model, inside_compile=True) as t:
        call(torch.ones(2, 4)).sum().backward()
        submitted = t.counters["submitted"]
        copied = copy.deepcopy(model)
        buffer = io.BytesIO()
        torch.save(model.head, buffer)
        copied(torch.ones(2, 4))
        assert t.counters["submitted"] == submitted
    assert [set(vars(m)) for m in model.modules()] == before
    assert not any(m._forward_hooks for m in model.modules())
    assert pickle.dumps(model.state_dict()) == dump
    x = torch.ones(2, 4)
    want = model(x)
    assert bits(call(x)) == bits(want)
    assert bits(copied(x)) == bits(want)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        buffer.seek(0)
        loaded = torch.load(buffer, weights_only=False)
    assert bits(loaded(x)) == bits(model.head(x))


def test_attached_after_the_first_compiled_call_it_is_said(look):
    model = Model()
    call = torch.compile(model, backend="aot_eager")
    call(torch.ones(2, 4)).sum().backward()
    with pytest.warns(RuntimeWarning, match="no call was seen"):
        with pytest.warns(RuntimeWarning, match="nothing inside of the"):
            with tracerd.attach(call, inside_compile=True) as t:
                for _ in range(3):
                    call(torch.ones(2, 4)).sum().backward()
                    t.step()


def test_an_exported_model_has_none_of_it(look):
    model = Model()
    x = torch.ones(2, 4)
    with look.trace(model, warns=any, inside_compile=True):
        for strict in (False, True):
            made = torch.export.export(model, (x,), strict=strict)
            assert "tracerd" not in str(made.graph)
        model(x)


def test_an_error_in_recording_stays_inside(look, monkeypatch):
    from tracerd.hooks import Recorder

    def fails(*args):
        raise ValueError("on purpose")

    plain = look._run(Model, compiled(train))
    monkeypatch.setattr(Recorder, "put_list", fails)
    records = []
    traced = look._run(
        Model, compiled(train), records=records, warns=any,
        options={"inside_compile": True, "passes": ("forward", "backward")},
    )
    assert traced == plain


def test_modules_are_called_without_being_compiled(look):
    """As without inside_compile, exact shares and all."""
    records = look(Model, train, inside_compile=True)
    assert not any("materialized" in r.labels for r in records)
    assert any("exact" in r.labels for r in records)


def test_figures_of_a_value_in_bfloat16(look):
    def build():
        return nn.Sequential(nn.Linear(4, 4), nn.GELU()).bfloat16()

    x = torch.randn(3, 4).bfloat16()
    model = build()
    want = model[0](x)
    with look.trace(model, inside_compile=True) as t:
        torch.compile(model, backend="aot_eager")(x)
    [r] = pick(t.records, object="Linear-1", io="output")
    figures_agree(r, want)
