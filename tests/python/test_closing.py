"""close() leaves everything as it was found, and a copy or a file of a traced
model knows nothing of it."""

import copy
import gc
import io
import os
import pickle
import subprocess
import sys
import threading
import warnings
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers

import tracerd
from programs import TOP
from recording import pick
from seen import bits, runs


class Net(nn.Module):
    """Has what a module may have: buffers, hooks of the user's, tied and
    frozen parameters, attributes of its own."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(2, 2)
        self.last.weight = self.first.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.register_buffer("seen", torch.zeros(()), persistent=False)
        self.note = {"kept": [1, 2]}

    def forward(self, x):
        x = self.last(self.act(self.first(x)))
        return self.frozen(x) + self.seen


def users_hook(*args):
    return None


OPTIONS = [
    {}, {"passes": ("forward", "backward", "grad", "local", "param")},
    {"match": "last"}, {"passes": "grad"}, {"passes": "local", "every": 2},
    {"histogram": True, "same": False},
]


def build(hooked=True):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.Adam(
        [p for p in model.parameters() if p.requires_grad], lr=0.01
    )
    if hooked:
        model.first.register_forward_hook(users_hook)
        model.first.register_forward_pre_hook(users_hook, with_kwargs=True)
        model.last.register_full_backward_hook(users_hook)
        model.first.bias.register_hook(users_hook)
        optimizer.register_step_pre_hook(users_hook)
    return model, optimizer


def step(model, optimizer):
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()


def state(model, optimizer):
    """All that can be told of a model, but for the values it learns."""

    def hooks(owner):
        return {
            name: dict(value) if isinstance(value, dict) else value
            for name, value in vars(owner).items()
            if "hook" in name
        }

    found = []
    for m in model.modules():
        found.append(hooks(m))
        found.append(sorted(vars(m)))
        found.append([type(m), m.training])
        found.append(
            {k: v for k, v in vars(m).items() if k in ("note", "forward")}
        )
        found += [sorted(m._buffers), sorted(m._parameters)]
    for p in model.parameters():
        found.append([
            dict(p._backward_hooks or {}),
            dict(getattr(p, "_post_accumulate_grad_hooks", None) or {}),
            sorted(getattr(p, "__dict__", {})), p.requires_grad, type(p),
        ])
    found.append([hooks(optimizer), sorted(vars(optimizer))])
    found.append([
        dict(value) for name, value in sorted(vars(modules).items())
        if name.startswith("_global") and isinstance(value, dict)
    ])
    found.append([
        dict(value) for name, value in sorted(vars(optimizers).items())
        if name.startswith("_global") and isinstance(value, dict)
    ])
    found.append([vars(torch.amp.GradScaler)["scale"],
                  vars(torch.amp.GradScaler)["step"]])
    found.append([nn.Module.__call__, nn.Module.__setattr__])
    return found


def saved(model):
    file = io.BytesIO()
    torch.save(model, file)
    return file.getvalue()


@pytest.mark.filterwarnings("ignore:tracerd. match")
@pytest.mark.parametrize("given", [True, False], ids=["given", "found"])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_model_is_as_it_was_found(look, options, given):
    model, optimizer = build()
    before = state(model, optimizer)
    for _ in range(2):
        with look.trace(
            model, optimizer if given else None, **options
        ) as t:
            step(model, optimizer)
            t.step()
            t.record("x", torch.ones(1))
            half = model(torch.ones(3, 2)).sum()  # its backward comes later
        after = state(model, optimizer)
        for was, now in zip(before, after, strict=True):
            assert was == now
        half.backward()
        optimizer.step()


@pytest.mark.parametrize("hooked", [True, False])
def test_pickles_and_files_have_the_same_bytes(look, hooked):
    model, optimizer = build(hooked)
    step(model, optimizer)
    step(model, optimizer)
    before = pickle.dumps(model), saved(model), bits(dict(model.state_dict()))
    with look.trace(model, optimizer):
        while_traced = bits(dict(model.state_dict()))
    after = pickle.dumps(model), saved(model), bits(dict(model.state_dict()))
    assert before == after and while_traced == before[2]
    # and what is saved of the state and of the optimizer
    for thing in (model.state_dict, optimizer.state_dict):
        was = saved(thing())
        with look.trace(model, optimizer):
            during = saved(thing())
        assert was == during == saved(thing())


def test_a_checkpoint_of_a_traced_model_has_no_word_of_the_tracer(look):
    model, optimizer = build(hooked=False)
    with look.trace(model, optimizer, passes=("forward", "backward", "grad",
                                              "local")):
        step(model, optimizer)
        files = [
            pickle.dumps(model), saved(model), saved(model.state_dict()),
            saved(optimizer.state_dict()), saved({"m": model, "n": 1}),
        ]
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            files.append(pickle.dumps(model, protocol))
    for file in files:
        assert b"tracerd" not in file


def test_saved_models_load_where_there_is_no_tracer(look, tmp_path):
    """And compute the same there."""
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, 2))
    model.add_module("act", nn.Tanh())
    model.add_module("last", nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    paths = []
    with look.trace(model, optimizer, passes=("forward", "backward", "grad",
                                              "local")):
        step(model, optimizer)
        for name, write in (
            ("a.pickle", lambda m: pickle.dumps(m)),
            ("b.pickle", lambda m: pickle.dumps(copy.deepcopy(m))),
            ("c.pt", saved), ("d.pt", lambda m: saved(copy.deepcopy(m))),
        ):
            paths.append(tmp_path / name)
            paths[-1].write_bytes(write(model))
        optimizer.zero_grad()
        y = model(torch.ones(1, 2)).sum()
        y.backward()
        want = f"{y.item().hex()} {model.first.weight.grad.sum().item().hex()}"
    env = {
        k: v for k, v in os.environ.items()
        if k not in ("PYTHONPATH", "TRD_BUILD")
    }
    done = subprocess.run(
        [sys.executable, TOP / "tests/python/closing_script.py", *paths],
        env=env, capture_output=True, text=True, cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == [want] * 4


def test_a_copy_is_another_model(look):
    """deepcopy in the middle of a training, as for an average of weights:
    the copy is not traced, and no step of the original is taken by it."""
    model = nn.Linear(2, 2)
    with look.trace(model) as t:
        model(torch.ones(1, 2))
        average = copy.deepcopy(model)
        average(torch.zeros(1, 2))
        average(torch.zeros(1, 2))
        model(torch.ones(1, 2))
        shallow = copy.copy(model)
        assert torch.equal(
            shallow(torch.ones(1, 2)), model(torch.ones(1, 2))
        )
    ins = pick(t.records, io="input", pass_="forward")
    assert [(r.object, r.step) for r in ins[:2]] == [
        ("Linear-1", 1), ("Linear-1", 2),
    ]
    assert {r.max for r in ins} == {1.0}
    assert not average._forward_hooks or all(
        "tracerd" not in repr(h) for h in average._forward_hooks.values()
    )
    # it may be traced itself
    with look.trace(average) as t:
        average(torch.zeros(1, 2))
    (first, _) = pick(t.records, pass_="forward")
    assert (first.object, first.step) == ("Linear-2", 1)


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_of_copies_of_a_training_model(look, copies):
    """They train on their own, and to the same bits as untraced."""

    def train(model, optimizer):
        found = []
        others = [model]
        for _ in range(copies):
            others.append(copy.deepcopy(others[-1]))
        for m in others:
            y = m(torch.ones(3, 2)).pow(2).sum()
            y.backward()
            found += [y, m.first.weight.grad]
        return found

    records = look(lambda: build()[0], train, see=False)
    assert {r.step for r in pick(records, object="Net-1")} == {1}


@torch.no_grad()
def average(target, source):
    for a, b in zip(target.parameters(), source.parameters(), strict=True):
        a.lerp_(b, 0.5)


def test_an_average_model_of_torch(look):
    def train(model, optimizer):
        ema = torch.optim.swa_utils.AveragedModel(model)
        for _ in range(3):
            step(model, optimizer)
            optimizer.zero_grad()
            ema.update_parameters(model)
        return bits(dict(ema.state_dict())), ema(torch.ones(3, 2))

    records = look(lambda: build(False)[0], train, see=False)
    out = pick(records, object="Net-1", io="output", pass_="forward")
    assert [r.iteration for r in out] == [1, 2, 3]


def test_other_processes_of_torch_get_the_model(look):
    """As with a pool of spawned workers: a model is sent by pickle."""
    model = nn.Linear(2, 2)
    with look.trace(model):
        model.share_memory()
        sent = ForkingPickler.dumps(model)
        got = pickle.loads(sent)
        assert torch.equal(got(torch.ones(1, 2)), model(torch.ones(1, 2)))


# ---- order of ends ----


def test_closed_in_any_order(look):
    models = [build()[0] for _ in range(3)]
    before = [state(m, build()[1])[:-4] for m in models]
    traces = [
        tracerd.attach(m, run=f"run{next(runs)}") for m in models
    ]
    again = tracerd.attach(models[0], run=f"run{next(runs)}")
    for t in (traces[1], traces[0], again, traces[2], traces[1]):
        t.close()
        for m in models:
            m(torch.ones(3, 2)).sum().backward()
    after = [state(m, build()[1])[:-4] for m in models]

    def hooks_only(found):
        return [s for s in found if isinstance(s, dict)]

    assert [hooks_only(b) for b in before] == [hooks_only(a) for a in after]


def test_closed_while_another_thread_is_in_backward(look):
    """What torch keeps for the hooks of a parameter stays: it may be in
    use."""
    model, optimizer = build(hooked=False)
    weight = model.first.weight
    assert weight._backward_hooks is None
    inside, closed = threading.Event(), threading.Event()
    with look.trace(model, optimizer, passes="local") as t:
        hooks = weight._backward_hooks
        assert len(hooks) == 1
        out = model(torch.ones(3, 2))
        out.register_hook(lambda g: inside.set() or closed.wait(60) and None)
        thread = threading.Thread(target=out.sum().backward)
        thread.start()
        assert inside.wait(60)
    closed.set()
    thread.join()
    assert weight._backward_hooks is hooks and not hooks
    assert weight.grad is not None and t.records == []


def test_closed_by_a_hook_of_the_backward_pass(look):
    """As above, with no thread but one."""
    model, optimizer = build(hooked=False)
    weight = model.first.weight
    with look.trace(model, optimizer, passes="local") as t:
        hooks = weight._backward_hooks
        out = model(torch.ones(3, 2))
        out.register_hook(lambda g: t.close())
        out.sum().backward()
    assert weight._backward_hooks is hooks and not hooks
    assert weight.grad is not None and t.records == []


def test_the_user_takes_all_hooks_away(look):
    """Then nothing is recorded any more, and close() says nothing."""
    model, optimizer = build(hooked=False)
    with look.trace(model, optimizer) as t:
        step(model, optimizer)
        for m in model.modules():
            m._forward_hooks.clear()
            m._forward_pre_hooks.clear()
        n = t.counters["submitted"]
        step(model, optimizer)
        assert t.counters["submitted"] - n < n
    assert not any(m._forward_hooks for m in model.modules())


def test_the_model_is_gone_before_the_trace(look):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        t = tracerd.attach(nn.Linear(2, 2), run=f"run{next(runs)}")
        gc.collect()
        t.step()
        t.close()


def test_modules_are_replaced_while_traced(look):
    """Those that are gone keep no hook, those that stay lose it at the
    end."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    old = model[2]
    with look.trace(model):
        model(torch.ones(1, 2)).sum().backward()
        model[2] = nn.Linear(2, 3)
        model.append(nn.Tanh())
        del model[1]
        model(torch.ones(1, 2)).sum().backward()
        model(torch.ones(1, 2)).sum().backward()
    for m in [old, *model.modules()]:
        assert not m._forward_hooks and not m._forward_pre_hooks


def test_in_a_with_block_that_raises(look):
    model, optimizer = build()
    before = state(model, optimizer)
    with pytest.raises(ValueError, match="the user's"):
        with tracerd.attach(model, optimizer, run=f"run{next(runs)}"):
            step(model, optimizer)
            raise ValueError("the user's")
    assert state(model, optimizer) == before
