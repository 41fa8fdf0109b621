"""Nothing grows: neither with iterations, nor with models that are attached
and let go."""

import collections
import gc
import os
import threading

import torch
from torch import nn
from torch.nn.modules import module as modules
from torch.optim import optimizer as optimizers
from torch.utils.checkpoint import checkpoint

import tracerd
from seen import runs

PASSES = ("forward", "backward", "grad", "local", "param")


class Small(nn.Module):
    """What leaves hooks behind if anything does: leaves that need
    gradients, checkpoints of both kinds, shared parts, results that go
    nowhere."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.up = nn.Linear(4, 4)
        self.calls = 0

    def part(self, x):
        return self.drop(self.up(self.norm(x)))

    def forward(self, x):
        self.calls += 1
        if self.calls % 4 == 0:
            x = x + self.attention(x, x, x, need_weights=False)[0]
            self.up(x)  # for nothing
        return checkpoint(self.part, x, use_reentrant=self.calls % 2 == 0)


def hooks(owner):
    """How many hooks there are on an object."""
    return sum(
        len(value) for name, value in vars(owner).items()
        if "hook" in name and isinstance(value, dict)
    )


class Count:
    """What there is now."""

    def __init__(self, model, optimizer, leaves):
        gc.collect()
        self.hooks = [hooks(m) for m in model.modules()]
        self.hooks += [
            len(p._backward_hooks or ()) for p in model.parameters()
        ]
        self.hooks += [
            len(getattr(p, "_post_accumulate_grad_hooks", None) or ())
            for p in model.parameters()
        ]
        self.hooks += [hooks(optimizer)]
        self.hooks += [
            len(v) for m in (modules, optimizers)
            for n, v in sorted(vars(m).items())
            if n.startswith("_global") and isinstance(v, dict)
        ]
        self.leaf = max(len(x._backward_hooks or ()) for x in leaves)
        self.threads = threading.active_count()
        self.tasks = len(os.listdir("/proc/self/task"))
        self.files = len(os.listdir("/proc/self/fd"))
        self.objects = collections.Counter(
            f"{type(o).__module__}.{type(o).__name__}"
            for o in gc.get_objects()
        )
        self.memory = resident()


def resident():
    """Bytes of memory of this process that are its own."""
    with open("/proc/self/statm") as f:
        fields = f.read().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def more(before, after, most, keys=0):
    """Types of which there are more than `most` objects more; of tuples,
    which are the keys of remembered calls, `keys` more than that."""
    return {
        name: (before.objects[name], n)
        for name, n in after.objects.items()
        if n - before.objects[name]
        > most + (keys if name == "builtins.tuple" else 0)
    }


def test_two_thousand_iterations(look):
    torch.manual_seed(0)
    model = Small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    leaves = [torch.randn(2, 3, 4, requires_grad=True) for _ in range(2)]
    every = []

    def iterate(n):
        for i in range(n):
            for x in leaves[: 1 + i % 2]:
                (model(x).pow(2).sum() / 2).backward()
            if i % 7 == 0:
                model(leaves[0])  # no backward pass
            if i % 11 == 0:
                with torch.no_grad():
                    model(leaves[0])
            if i % 13 == 0:
                try:
                    model(torch.ones(1))
                except Exception:
                    every.append(i)
            optimizer.step()
            optimizer.zero_grad()
            t.record("value", 1.0)

    run = f"run{next(runs)}"
    with tracerd.attach(model, optimizer, run=run, passes=PASSES) as t:
        # the latest 4,096 calls are remembered (see recompute.Log)
        iterate(800)
        assert t.flush(60)
        first = Count(model, optimizer, leaves)
        for _ in range(4):
            iterate(300)
            assert t.flush(60)
        last = Count(model, optimizer, leaves)
        assert t.iteration == 2001
        lost = t.counters["lost"]
    assert lost == {}
    assert last.hooks == first.hooks and last.leaf <= first.leaf + 1
    assert (last.threads, last.tasks, last.files) == (
        first.threads, first.tasks, first.files,
    )
    assert more(first, last, 300, 4096) == {}
    assert last.memory - first.memory < 8 << 20
    assert every


def test_iterations_that_are_not_traced(look):
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3, 4, requires_grad=True)
    with tracerd.attach(
        model, optimizer, run=f"run{next(runs)}", iterations="1-3",
        passes=PASSES,
    ) as t:
        counts = []
        for _ in range(2):
            for _ in range(100):
                model(x).sum().backward()
                optimizer.step()
            counts.append(Count(model, optimizer, [x]))
        assert t.flush()
    first, last = counts
    assert last.hooks == first.hooks and last.leaf <= 1
    assert more(first, last, 50) == {}


def test_no_optimizer_ever_steps(look):
    """What waits for the end of an endless iteration stays bounded."""
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # never used
    x = torch.randn(1, 2, requires_grad=True)
    with tracerd.attach(model, run=f"run{next(runs)}") as t:
        counts = []
        for n in (5000, 1000):
            for i in range(n):
                y = model(x)
                if i % 2:
                    y.sum().backward()
            assert t.flush(60)
            counts.append(Count(model, optimizer, [x]))
    first, last = counts
    assert last.hooks == first.hooks and last.leaf <= 4097
    assert more(first, last, 100, 4096) == {}


def test_one_model_is_attached_two_hundred_times(look):
    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(2, 3, 4, requires_grad=True)
    counts = []
    names = set()
    for i in range(200):
        with tracerd.attach(
            model, optimizer, run=f"again{next(runs)}" if i < 2 else "again",
            passes=PASSES,
        ) as t:
            model(x).sum().backward()
            optimizer.step()
            t.flush()
        if i in (20, 199):
            counts.append(Count(model, optimizer, [x]))
    first, last = counts
    assert last.hooks == first.hooks and last.leaf == 0
    assert not any(hooks(m) for m in model.modules())
    assert (last.threads, last.tasks, last.files) == (
        first.threads, first.tasks, first.files,
    )
    assert more(first, last, 50) == {}
    assert last.memory - first.memory < 8 << 20
    names = {
        r.object for r in look.daemon.query("again", "forward-Small-*")
    }
    assert names == {"Small-1"}  # it keeps its number


def test_two_hundred_models_are_attached_and_let_go(look):
    counts = []
    idle = nn.Linear(1, 1)
    with tracerd.attach(idle, run="many"):
        for i in range(200):
            model = Small()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            x = torch.randn(2, 3, 4)
            with tracerd.attach(model, optimizer, run="many") as t:
                model(x).sum().backward()
                optimizer.step()
                t.flush()
            if i in (20, 199):
                counts.append(Count(model, optimizer, [x]))
            del model, optimizer
    first, last = counts
    assert last.hooks == first.hooks
    assert (last.threads, last.tasks, last.files) == (
        first.threads, first.tasks, first.files,
    )
    assert more(first, last, 50) == {}
    numbers = {
        r.object for r in look.daemon.query("many", "forward-Small-*")
    }
    assert numbers == {f"Small-{i}" for i in range(1, 201)}


def test_traces_that_nobody_closes(look):
    """Their models go when their owner lets them go."""
    import weakref

    kept = []
    for _ in range(20):
        model = nn.Linear(2, 2)
        kept.append(weakref.ref(model))
        t = tracerd.attach(model, run="unclosed")
        model(torch.ones(1, 2)).sum().backward()
        t.step()
        del model, t
    gc.collect()
    assert [k() for k in kept] == [None] * 20
