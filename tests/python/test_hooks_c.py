"""The hooks in C: their order among others, what surfaces, what is kept."""

import copy
import gc
import io
import pickle
import sys
import weakref
from pathlib import Path
from types import FunctionType

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracerd
from recording import Block, pick
from tracerd import _tracerd, hooks


class Hooked(nn.Module):
    """Has hooks of its own on its output, before and after the tracer's."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2, bias=False)
        nn.init.ones_(self.l.weight)
        self.seen = []

    def forward(self, x):
        y = self.l(x)
        y.register_hook(lambda g: g * 2)
        handle = y.register_hook(self.seen.append)
        y.register_hook(lambda g: g * 3)
        handle.remove()
        return y


@pytest.fixture(params=["shared", "register_hook"])
def way(request, monkeypatch):
    """Both ways to put a hook on a tensor."""
    _tracerd.hooks_setup({"shared": request.param == "shared"})
    yield request.param
    _tracerd.hooks_setup({"shared": hooks._shares_dict()})


def test_hooks_of_others_run_in_their_order(way, recorded):
    """The inner layer's hook came first, the outer module's last: they see
    the gradient before and after what the user's do to it."""
    model = Hooked()
    x = torch.ones(1, 2, requires_grad=True)
    with tracerd.attach(model):
        model(x * 1).sum().backward()
    assert model.seen == []
    for name, value in (("Linear-1", 1.0), ("Hooked-1", 6.0)):
        (r,) = pick(recorded, object=name, pass_="backward", io="input")
        assert r.samples == [value, value]
    assert x.grad.tolist() == [[12.0, 12.0]]


def test_a_later_hook_has_a_handle_that_works(way, recorded):
    model = nn.Linear(2, 2)
    seen = []
    with tracerd.attach(model):
        y = model(torch.ones(1, 2))
        first = y.register_hook(lambda g: seen.append("first"))
        y.register_hook(lambda g: seen.append("second"))
        first.remove()
        first.remove()
        y.sum().backward()
    assert seen == ["second"]
    assert len(pick(recorded, pass_="backward", io="input")) == 1


def test_both_ways_record_the_same(fresh, recorded):
    def run(shared):
        _tracerd.hooks_setup({"shared": shared})
        del recorded[:]
        fresh()
        torch.manual_seed(1)
        model = Block()
        with tracerd.attach(model):
            x = torch.ones(1, 2, requires_grad=True) * 1
            model(x).sum().backward()
        return sorted(
            (r["pass"], r["io"], r.object, r.step, r.samples, r.labels)
            for r in recorded
        )

    try:
        first = run(True)
        assert run(False) == first
    finally:
        _tracerd.hooks_setup({"shared": hooks._shares_dict()})
    assert len(first) == 4 * 5  # the activation is called twice


def test_an_interrupt_surfaces_and_leaves_the_calls_sane(
    monkeypatch, recorded
):
    def interrupt(*args):
        raise KeyboardInterrupt

    model = nn.Sequential(nn.Linear(2, 2))
    t = tracerd.attach(model)
    record = t._recorder.record
    for allowed in range(2):
        left = [allowed]

        def sometimes(*args):
            left[0] -= 1
            return record(*args) if left[0] >= 0 else interrupt()

        t._recorder.record = sometimes
        with pytest.raises(KeyboardInterrupt):
            model(torch.ones(1, 2))
        t._recorder.record = record
        del recorded[:]
        model(torch.ones(1, 2))
        found = pick(recorded, pass_="forward")
        assert len(found) == 4
        assert {r.microbatch for r in found} == {2 * allowed + 2}
    t.close()


def test_an_interrupt_in_a_gradient_hook_surfaces(recorded):
    model = nn.Linear(2, 2)
    t = tracerd.attach(model)
    loss = model(torch.ones(1, 2)).sum()

    def interrupt(*args):
        raise KeyboardInterrupt

    t._recorder.record = interrupt
    with pytest.raises(KeyboardInterrupt):
        loss.backward()
    t.close()


def counts():
    gc.collect()
    kinds = {}
    for o in gc.get_objects():
        name = type(o).__name__
        kinds[name] = kinds.get(name, 0) + 1
    return kinds


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


class Odd(nn.Module):
    """Tuples, dicts, keywords, leaves, several edges, repetitions."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def inner(self, x):
        return self.norm(self.l(x)) * x.pow(2).mean()

    def forward(self, x, *, more):
        x = checkpoint(self.inner, x * more[0]["a"], use_reentrant=False)
        return {"y": x, "all": (x, [x + 1])}


def test_nothing_is_kept_over_2000_iterations(fresh):
    # what is kept for each iteration grows in every 500 of them; a warning,
    # whenever it is told, takes its memory once
    model = Odd()
    x = torch.ones(2, 4, requires_grad=True)
    seen = []
    with pytest.warns(RuntimeWarning, match="no daemon|nobody"):
        t = tracerd.attach(model, run="leaks", journal_bytes=1 << 20)
        for i in range(2001):
            if i % 500 == 0 and i > 0:
                seen.append(counts())
            if i == 500:
                memory = resident()
            model(x, more=({"a": x},))["all"][1][0].sum().backward()
            model.zero_grad()
            x.grad = None
            t.step()
        grown = resident() - memory
        node = weakref.ref(model.l)
        t.close()
    more = {}
    for kind in seen[-1]:
        each = [n.get(kind, 0) for n in seen]
        if min(b - a for a, b in zip(each, each[1:])) > 32:
            more[kind] = each
    assert not more
    # the log of calls was full long before
    assert grown < 16 << 20
    del model
    gc.collect()
    assert node() is None


def test_the_log_is_looked_at_when_something_is_repeated(recorded):
    class Part(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(2, 2)
            self.again = False

        def forward(self, x):
            if self.again:
                return checkpoint(self.l, x, use_reentrant=False)
            return self.l(x)

    model = Part()
    t = tracerd.attach(model)
    index = t._recorder._index
    for _ in range(3):
        model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert index._next == 0 and t._recorder.next_serial == 6
    model.again = True
    model(torch.ones(1, 2, requires_grad=True)).sum().backward()
    assert index._next == t._recorder.next_serial == 8
    (again,) = [
        r for r in recorded if "recompute" in r.labels and r.io == "input"
    ]
    assert again.step == 4
    t.close()


def test_the_log_forgets_calls_in_their_order(recorded):
    model = nn.Linear(2, 2)
    t = tracerd.attach(model)
    room = hooks.MIN_LOG
    with torch.set_grad_enabled(True):
        for _ in range(room + 3):
            model(torch.ones(1, 2))
    r = t._recorder
    assert r.next_serial == room + 3
    assert r.logged(2) is None and r.logged(room + 3) is None
    assert r.logged(-1) is None
    assert r.logged(3).step == 4 and r.logged(room + 2).step == room + 3
    t.close()


def test_torch_jit_trace_sees_no_hook(recorded):
    model = nn.Linear(2, 2)
    with tracerd.attach(model):
        traced = torch.jit.trace(
            model, torch.ones(1, 2), check_trace=False
        )
    assert not recorded
    assert "tracerd" not in str(traced.graph)


def test_a_hooked_tensor_is_saved_and_loaded(recorded):
    """Without a warning about its hooks, and without them."""
    model = nn.Linear(2, 2)
    with tracerd.attach(model):
        y = model(torch.ones(1, 2))
        file = io.BytesIO()
        torch.save(y, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
        assert torch.equal(loaded, y) and not loaded._backward_hooks
        (hook,) = y._backward_hooks.values()
        for other in (copy.deepcopy(hook), pickle.loads(pickle.dumps(hook))):
            assert not isinstance(other, type(hook))
            assert other(None) is None


def test_a_part_is_compiled_and_the_rest_is_traced(recorded):
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2)))
    with tracerd.attach(model):
        part = torch.compile(model[1], backend="eager", fullgraph=True)
        y = part(model[0](torch.ones(1, 2)))
        y.sum().backward()
    assert {r.object for r in pick(recorded, pass_="forward")} >= {"Linear-1"}


class Many(nn.Module):
    def forward(self, *args, **kwargs):
        return [a + 0 for a in args], {"n": sum(kwargs.values())}


@pytest.mark.parametrize("n", [1, 8, 9, 40, 500])
def test_many_tensors_are_in_order(n, recorded):
    """Beyond what the fast ways hold, too."""
    values = [torch.full((1,), float(i)) for i in range(n)]
    named = {f"k{i}": v for i, v in enumerate(values)}
    model = Many()
    with tracerd.attach(model):
        model(*values, **named)
    found = pick(recorded, pass_="forward", io="input")
    assert [r.samples[0] for r in found] == [float(i) for i in range(n)] * 2
    assert [r.position for r in found] == list(range(2 * n))
    assert [r.path for r in found] == [str(i) for i in range(n)] + list(named)
    outputs = pick(recorded, pass_="forward", io="output")
    assert [r.path for r in outputs] == [f"0.{i}" for i in range(n)] + ["1.n"]


def test_compiled_autograd_passes_by_the_hooks(recorded):
    """Without a break in its graph."""
    from torch._dynamo import compiled_autograd

    model = nn.Linear(2, 2)
    with tracerd.attach(model):
        y = model(torch.ones(1, 2, requires_grad=True) * 1).sum()
        with compiled_autograd._enable(
            lambda graph: torch.compile(graph, backend="eager", fullgraph=True)
        ):
            y.backward()
    assert model.weight.grad.tolist() == [[1.0, 1.0]] * 2
    assert len(pick(recorded, pass_="forward")) == 2


def test_no_hook_of_a_module_makes_a_python_frame(recorded):
    """Whatever the number of modules: what is called is the pass's own."""
    folder = str(Path(tracerd.__file__).parent)

    def frames(n):
        model = nn.Sequential(*(nn.Tanh() for _ in range(n)))
        x = torch.ones(1, 2)
        called = []

        def profile(frame, event, arg):
            if event == "call" and frame.f_code.co_filename.startswith(folder):
                called.append(frame.f_code.co_name)

        with tracerd.attach(model, passes=("forward",)):
            model(x)  # places get their numbers
            sys.setprofile(profile)
            try:
                model(x)
            finally:
                sys.setprofile(None)
        return called

    few = frames(1)
    assert "_begin_pass" in few
    assert frames(9) == few


def test_what_compilers_see_of_a_hook_does_what_the_hook_does(recorded):
    """They look at __call__, which is Python; calls go to C."""
    model = nn.Linear(2, 2)
    x = torch.ones(1, 2)
    with tracerd.attach(model, passes=("forward",)):
        (before,) = (
            h for h in model._forward_pre_hooks.values()
            if isinstance(h, hooks.PreHook)
        )
        (after,) = model._forward_hooks.values()
        for hook in (before, after):
            assert isinstance(type(hook).__call__, FunctionType)
        for call in (lambda h, *a: h(*a), lambda h, *a: h.__call__(*a)):
            assert call(before, model, (x,), {}) is None
            assert call(after, model, (x,), {}, x) is None
        assert [(r.io, r.step) for r in recorded] == [
            ("input", 1), ("output", 1), ("input", 2), ("output", 2)
        ]
        # as by those who register it again, not knowing of keywords
        for call in (lambda h, *a: h(*a), lambda h, *a: h.__call__(*a)):
            assert call(before, model, (x,)) is None
            assert call(after, model, (x,), x) is None
        assert len(recorded) == 4
