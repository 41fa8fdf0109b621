"""Names and numbers: whose they are, and that every question for one finds
that one alone."""

import gc
import threading
from typing import Generic, TypeVar

import pytest
import torch
from torch import nn

import tracerd
from programs import TOP, python
from recording import pick
from seen import batches, runs, steps


def make(name):
    return type(name, (nn.Module,), {"forward": lambda self, x: x * 2})()


def test_modules_made_and_dropped_in_a_loop_have_numbers_of_their_own(look):
    """Python gives the ids of dead objects again."""
    run = f"run{next(runs)}"
    ids = set()
    keeper = tracerd.attach(nn.Identity(), run=run)
    for _ in range(5):
        model = nn.Linear(2, 2)
        ids.add(id(model))
        with tracerd.attach(model, run=run):
            model(torch.ones(1, 2))
        del model
        gc.collect()
    assert keeper.flush()
    keeper.close()
    ins = look.daemon.query(run, "forward-Linear-*-input")
    assert sorted((r.object, r.step) for r in ins) == [
        (f"Linear-{i}", 1) for i in range(1, 6)
    ]


def test_an_object_that_dies_while_others_are_traced(look):
    model = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    with look.trace(model) as t:
        for m in model:
            m(torch.ones(1, 2))
        del model[1]
        gc.collect()
        new = nn.Linear(2, 2)  # perhaps where the old one was
        new(torch.ones(1, 2))
        for m in model:
            m(torch.ones(1, 2))
    ins = pick(t.records, io="input", pass_="forward")
    found = [(r.object, r.step) for r in ins if r.object != "Linear-4"]
    assert found == [
        ("Linear-1", 1), ("Linear-2", 1), ("Linear-3", 1),
        ("Linear-1", 2), ("Linear-3", 2),
    ]


NAMES = [
    "Conv-1-2", "Linear", "线性层", "A" * 300, "grad", "x.y<z>",
    "forward-Linear-1", "-1", "1", "-", "a/b", "a b", "ä", "*", "?", "[a]",
    "user", "backward-1-1-input", "\u202eevil", "line\nbreak", "tab\t",
    "quote'\"", "0", "Linear-1", "%s", "🙂",
]


def test_odd_names_of_classes_are_found_again_each_alone(look):
    model = nn.Sequential(*[make(name) for name in NAMES])
    with look.trace(model) as t:
        model(torch.ones(1, 2))
        model(torch.ones(1, 2))
    assert {r.object for r in t.records} == {
        f"{n}-1" for n in [*NAMES, "Sequential"]
    }
    run = t.records[0].run
    for name in NAMES:
        if set(name) & set("*?["):
            continue  # these stand for others in a query
        found = look.daemon.query(run, f"forward-{name}-1-2")
        same = [r for r in found if r["class"] == name]
        assert [(r.instance, r.step, r.io) for r in same] == [
            (1, 2, "input"), (1, 2, "output"),
        ], name
        assert [r["class"] for r in found if r["class"] != name] == []


def test_many_instances_of_odd_classes(look):
    """Numbers are told from the digits of the class's name."""
    model = nn.Sequential(*[
        make(n) for n in ["A-1", "A", "A-1", "A", "A-1-1", "A-11"] * 6
    ])
    with look.trace(model) as t:
        for _ in range(2):
            model(torch.ones(1))
    run = t.records[0].run
    for name, number, count in (
        ("A", 1, 2), ("A-1", 1, 2), ("A-1-1", 1, 2), ("A", 11, 2),
        ("A-11", 1, 2), ("A-1", 11, 2),
    ):
        found = [
            r for r in look.daemon.query(run, f"forward-{name}-{number}-2")
            if (r["class"], r.instance) == (name, number)
        ]
        assert len(found) == count and {r.step for r in found} == {2}


T = TypeVar("T")


class Box(nn.Module, Generic[T]):
    def forward(self, x):
        return x + 1


class Named(type):
    """A metaclass whose classes call themselves something else."""

    def __repr__(cls):
        return "nobody"


class Meta(nn.Module, metaclass=Named):
    def forward(self, x):
        return x * 1


class Equal(nn.Module):
    """All are equal, and none can be hashed."""

    __hash__ = None

    def __eq__(self, other):
        return True

    def forward(self, x):
        return x - 1


class Pretends(nn.Module):
    @property
    def __class__(self):
        return nn.Linear

    def forward(self, x):
        return x / 2


def test_classes_that_are_made_in_unusual_ways(look):
    def local():
        class Inner(nn.Module):
            def forward(self, x):
                return x

        return Inner()

    def build():
        return nn.Sequential(
            Box[int](), Box[str](), Meta(), local(), local(), Pretends(),
            nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)),
            nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
        )

    records = look(build, lambda m, o: steps(m, o, batches(2)), see=False)
    names = {r.object for r in records if r.object}
    assert names >= {
        "Box-1", "Box-2", "Meta-1", "Inner-1", "Inner-2", "Pretends-1",
    }
    out = pick(records, object="Inner-2", pass_="forward", io="output")
    assert [r.step for r in out] == [1, 2]


@pytest.mark.filterwarnings("ignore:tracerd. not tracing")
def test_modules_without_a_hash(room, monkeypatch, fresh):
    """torch itself does not list their parts; they are left untraced."""
    monkeypatch.setenv("TRACERD_DIR", room.dir)
    model = Equal()
    plain = model(torch.ones(2))
    with pytest.raises(TypeError, match="unhashable"):
        list(model.modules())
    with tracerd.attach(model):
        assert torch.equal(model(torch.ones(2)), plain)


# ---- wrappers ----


MATCH = [
    ("layer1", ("module",)), ("layer1", ("_orig_mod",)),
    ("layer1", ("module", "_orig_mod")),
]
LIKE = ["module_list", "my_module", "submodule", "_orig_model"]


class Wrap(nn.Module):
    """Passes the call on to what it has under a name."""

    def __init__(self, name, inner):
        super().__init__()
        self.add_module(name, inner)
        self.name = name

    def forward(self, x):
        return getattr(self, self.name)(x)


def test_names_are_the_same_with_wrappers_and_without(look):
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    def net():
        return nn.Sequential(Wrap("attn", nn.Linear(2, 2)), nn.Linear(2, 2))

    def wrapped():
        model = net()
        model[0].attn = checkpoint_wrapper.checkpoint_wrapper(model[0].attn)
        return nn.DataParallel(model)

    found = []
    for build in (net, wrapped):
        records = look(
            build, lambda m, o: steps(m, o, batches(2)), see=False
        )
        found.append({
            (r["pass"], r.object, r.module, r.step, r.io, r.path, r.hash)
            for r in records if "recompute" not in r.labels
            # the share of a layer is the total of a checkpoint's input
            and (r["pass"], r.io) != ("backward", "output")
        })
    assert found[0] == found[1]
    assert {r[2] for r in found[0]} >= {"", "0", "0.attn", "1"}


@pytest.mark.parametrize("name", LIKE)
def test_what_only_looks_like_a_wrapper_keeps_its_name(look, name):
    records = look(
        lambda: Wrap(name, nn.Linear(2, 2)),
        lambda m, o: steps(m, o, batches(2)),
    )
    assert {r.path for r in pick(records, pass_="grad")} == {
        f"{name}.weight", f"{name}.bias",
    }


def test_models_attached_at_once_have_numbers_of_their_own(look):
    run = f"run{next(runs)}"
    made = []

    def one():
        model = nn.Linear(2, 2)
        made.append((model, tracerd.attach(model, run=run)))

    threads = [threading.Thread(target=one) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for model, _ in made:
        model(torch.ones(1, 2))
    assert all(t.flush() for _, t in made)
    for _, t in made:
        t.close()
    ins = look.daemon.query(run, "forward-Linear-*-input")
    assert sorted(r.object for r in ins) == sorted(
        f"Linear-{i}" for i in range(1, 9)
    )


# ---- two ranks ----


def test_a_wrapped_model_on_two_ranks(room):
    """Also where the graph is static, and where a part is never used: the
    steps are those of the layer, the local gradients differ, the final ones
    are the mean."""
    python(
        TOP / "tests/python/static_script.py", "static", "plain", "unused",
        "accumulate", folder=room.dir, ranks=2,
    )
    for mode in ("static", "plain", "unused", "accumulate"):
        records = room.query(mode)
        calls = 4 if mode == "accumulate" else 2
        for rank in (0, 1):
            mine = [r for r in records if r.rank == rank]
            layer = [
                r for r in mine if r.module in ("", "used")
                and r["class"] == "Linear"
            ]
            for kind, io in (
                ("forward", "input"), ("forward", "output"),
                ("backward", "input"),
            ):
                some = [
                    r for r in pick(layer, pass_=kind, io=io)
                    if mode != "unused" or r.module == "used"
                ]
                assert [r.step for r in some] == list(range(1, calls + 1))
            grads = [
                r for r in pick(mine, pass_="grad")
                if "other" not in r.path
            ]
            final = [r for r in grads if "final" in r.labels]
            total = 3.0 if mode == "accumulate" else 1.5
            assert [r.samples for r in final] == [[total] * 8] * 2
            assert {r.path for r in final} == {
                "used.weight" if mode == "unused" else "weight"
            }
            local = [r for r in grads if "local" in r.labels]
            assert [r.samples for r in local] == [
                [float(rank + 1)] * 8
            ] * calls
