"""Modules that come and go while a model is traced, and what is left of the
tracing after close()."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module

import tracerd
from recording import Net, pick, train

ALL = ("forward", "backward", "grad", "local", "param", "optim")


class Adapter(nn.Module):
    """As LoRA's: it stands in the place of a layer and holds it."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = nn.Linear(2, 1), nn.Linear(1, 2)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def calls(records):
    return {
        (r.object, r.module, r.step)
        for r in pick(records, pass_="forward", io="output")
    }


def test_an_adapter_put_in_later_is_traced(recorded):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tracerd.attach(model, passes=ALL) as t:
        train(model, 1, t)
        recorded.clear()
        model[0] = Adapter(model[0])
        train(model, 1, t)
    assert calls(recorded) == {
        ("Sequential-1", "", 2), ("Adapter-1", "0", 1), ("ReLU-1", "1", 2),
        ("Linear-1", "0.base", 2),  # the same layer, its count goes on
        ("Linear-2", "0.down", 1), ("Linear-3", "0.up", 1),
    }
    for pass_ in ("grad", "param"):
        assert {r.path for r in pick(recorded, pass_=pass_)} == {
            f"0.{layer}.{name}"
            for layer in ("base", "down", "up")
            for name in ("weight", "bias")
        }
    labels = [r.labels for r in pick(recorded, pass_="grad", path="0.up.bias")]
    assert sorted(labels) == [["final"], ["local"]]


def test_an_adapter_taken_out_is_forgotten(recorded):
    model = nn.Sequential(nn.Linear(2, 2))
    with tracerd.attach(model) as t:
        base = model[0]
        adapter = model[0] = Adapter(base)
        train(model, 1, t)
        recorded.clear()
        model[0] = base
        train(model, 1, t)
        assert calls(recorded) == {
            ("Sequential-1", "", 2), ("Linear-1", "0", 2)
        }
        # it is no part of the model any more, though it lives
        assert not adapter._forward_hooks and not adapter.up._forward_hooks
        gone = weakref.ref(adapter)
        del adapter
        gc.collect()
        assert gone() is None


class Lazy(nn.Module):
    """Makes its layer when it first sees data."""

    def __init__(self):
        super().__init__()
        self.layer = None

    def forward(self, x):
        if self.layer is None:
            self.layer = nn.Linear(2, 1)
        return self.layer(x)


def test_a_layer_made_in_the_first_forward_pass(recorded):
    model = Lazy()
    with tracerd.attach(model) as t:
        train(model, 2, t)
    # seen at the step: its gradients are there at once, its calls from then
    assert calls(recorded) == {
        ("Lazy-1", "", 1), ("Lazy-1", "", 2), ("Linear-1", "layer", 1)
    }
    grads = pick(recorded, pass_="grad", path="layer.bias")
    assert [r.iteration for r in grads] == [1, 2]


def test_a_filter_holds_for_what_comes_later(recorded):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tracerd.attach(model, match="Linear", ignore="*up") as t:
        model[0] = Adapter(model[0])
        train(model, 1, t)
        hooked = [n for n, m in model.named_modules() if m._forward_hooks]
        assert hooked == ["", "0.base", "0.down"]
    assert {r.module for r in recorded} == {"0.base", "0.down"}


def test_a_list_of_models_is_followed_and_not_kept(recorded):
    first, second = nn.Linear(2, 2), nn.Sequential(nn.ReLU())
    with tracerd.attach([first, second]) as t:
        second.append(nn.Linear(2, 1))
        second(first(torch.ones(1, 2))).sum().backward()
        t.step()
        assert ("Linear-2", "1.1", 1) in calls(recorded)
        gone = [weakref.ref(m) for m in (first, second)]
        del first, second
        gc.collect()
        assert [g() for g in gone] == [None, None]


@pytest.mark.parametrize("how", ["exchanged", "added", "taken out"])
def test_modules_written_behind_torchs_back_are_followed(recorded, how):
    """As libraries that quantize do: by _modules, which calls no hook."""
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.ReLU()))
    inner, old = model[0], model[0][1]
    with tracerd.attach(model) as t:
        train(model, 1, t)
        if how == "exchanged":
            inner._modules["1"] = nn.GELU()
        elif how == "added":
            inner._modules["2"] = nn.GELU()
        else:
            del inner._modules["1"]
        recorded.clear()
        train(model, 2, t)
        paths = {module for _, module, _ in calls(recorded)}
        assert ("0.1" in paths) == (how != "taken out")
        assert ("0.2" in paths) == (how == "added")
        assert bool(old._forward_hooks) == (how == "added")
        assert ("GELU-1" in {name for name, _, _ in calls(recorded)}) == (
            how != "taken out"
        )


def test_modules_of_others_make_no_walk(recorded, monkeypatch):
    from tracerd import names

    model = nn.Sequential(nn.Linear(2, 1))
    walks = []
    real = names.walk
    with tracerd.attach(model) as t:
        monkeypatch.setattr(
            names, "walk", lambda *a: walks.append(1) or real(*a)
        )
        nn.Sequential(nn.Linear(2, 2)).append(nn.ReLU())
        train(model, 2, t)
        assert not walks
        model.append(nn.ReLU())
        train(model, 2, t)
        assert len(walks) == 1


def test_exchanging_modules_for_long_leaks_nothing(recorded):
    model = nn.Sequential(nn.Linear(2, 1))
    with tracerd.attach(model, passes=ALL) as t:
        for _ in range(50):
            model[0] = nn.Linear(2, 1)
            train(model, 1, t)
        assert len(t._tree._places) == len(t._tree.owners) == 2
        gc.collect()
        model[0] = nn.Linear(2, 1)
        train(model, 1, t)
        steps = t._steps
        assert (len(steps._handles), len(steps._bare)) == (2, 2)
        assert len(model[0]._forward_hooks) == 1


def test_parameters_may_be_swapped(recorded):
    model = nn.Linear(2, 1)
    with tracerd.attach(model, passes=ALL) as t:
        train(model, 1, t)
        model.zero_grad()
        other = nn.Parameter(torch.ones(1, 2))
        torch.utils.swap_tensors(model.weight, other)
        train(model, 1, t)
    assert not other._backward_hooks and not model.weight._backward_hooks


# ---- close() ----


def everything(model):
    """All of a model: attributes with their types, hooks, parameters'."""
    return [
        {
            name: (type(value), repr(value))
            for name, value in vars(m).items()
            if name != "_parameters"
        }
        for m in model.modules()
    ] + [
        (p._backward_hooks, getattr(p, "_post_accumulate_grad_hooks", None))
        for p in model.parameters()
    ]


def everywhere():
    """What torch keeps for all models, optimizers and scalers."""
    from torch.optim import optimizer

    return [
        {k: dict(v) for k, v in vars(module).items() if k.startswith("_global")
         and isinstance(v, dict)}
        for module in (torch_module, optimizer)
    ] + [dict(vars(torch.amp.GradScaler)), dict(vars(torch.optim.Optimizer))]


@pytest.mark.parametrize("passes", [ALL, ("grad",), ("local",)], ids=str)
def test_nothing_is_left_of_it(recorded, passes):
    model = Net()
    user = model.parts["head"].weight.register_hook(lambda g: None)
    user.remove()  # leaves an empty dictionary, which stays
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.5)
    before = everything(model), everywhere()
    kept = pickle.dumps(model)
    state = {k: v for k, v in vars(optimizer).items() if "hook" in k}
    state = copy.copy(state)
    t = tracerd.attach(model, optimizer, passes=passes)
    assert (everything(model), everywhere()) != before
    assert pickle.loads(pickle.dumps(model)) is not None
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    t.close()
    assert (everything(model), everywhere()) == before
    assert pickle.dumps(model) == kept
    assert {k: v for k, v in vars(optimizer).items() if "hook" in k} == state
    assert copy.deepcopy(model) is not model


# ---- torch.compile ----


def test_a_model_compiled_later_is_told_of_at_once(recorded):
    model = Net()
    t = tracerd.attach(model)
    with pytest.warns(RuntimeWarning, match="of a compiled module"):
        torch.compile(model, backend="eager")
    t.close()


def test_a_layer_compiled_later_is_traced_round_about(recorded):
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2)), nn.ReLU())
    with tracerd.attach(model) as t:
        with pytest.warns(RuntimeWarning, match="of a compiled module"):
            model[0] = torch.compile(model[0], backend="eager")
        train(model, 1, t)
        assert not model[0]._orig_mod[0]._forward_hooks
    assert calls(recorded) == {
        ("Sequential-1", "", 1), ("Sequential-2", "0", 1), ("ReLU-1", "1", 1)
    }


def test_compiling_in_place_later_is_told_of_at_once(recorded):
    model = Net()
    with tracerd.attach(model) as t:
        with pytest.warns(RuntimeWarning, match="of a compiled module"):
            model.compile(backend="eager")
        train(model, 1, t)
    assert calls(recorded) == {("Net-1", "", 1)}
