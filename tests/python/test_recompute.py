"""Activation checkpointing: what is computed again is recorded as such, at
the step it repeats, and nothing is counted twice."""

import functools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
    set_checkpoint_early_stop,
)

from recording import pick
from seen import batches, hash_of, steps

MODES = {"off": None, "reentrant": True, "not reentrant": False}


def through(mode, function, *args, **options):
    """The call, checkpointed or not."""
    if MODES[mode] is None:
        options.pop("context_fn", None)
        return function(*args)
    return checkpoint(function, *args, use_reentrant=MODES[mode], **options)


def repeated(records):
    return [
        r for r in records
        if "recompute" in r.labels and r["pass"] == "forward"
    ]


def consistent(records):
    """Each repetition has the bits of the call that it repeats; no step is
    there twice, and none is missing."""
    first = {}
    for r in pick(records, pass_="forward"):
        if "recompute" in r.labels:
            continue
        key = (r.object, r.step, r.io, r.path)
        assert key not in first, key
        first[key] = r
    for r in repeated(records):
        same = first[r.object, r.step, r.io, r.path]
        assert r.hash == same.hash
        assert (r.iteration, r.microbatch) == (
            same.iteration, same.microbatch,
        )
    for name in {r.object for r in records if r.object}:
        seen = sorted(
            {r.step for r in pick(records, object=name, pass_="forward")}
        )
        assert seen == list(range(1, len(seen) + 1)), name
    back = [
        (r.object, r.step, r.io, r.path)
        for r in pick(records, pass_="backward")
    ]
    assert len(back) == len(set(back))


# ---- the two kinds ----


@pytest.mark.parametrize("mode", MODES)
def test_a_checkpointed_region(look, mode):
    """Three iterations of the same data."""

    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def train(model, optimizer):
        for _ in range(3):
            x = torch.ones(2, 4, requires_grad=True)
            through(mode, model, x).sum().backward()
        return model[0].weight.grad.tolist()

    records = look(build, train, see=False)
    outputs = [
        r for r in pick(
            records, object="Linear-1", pass_="forward", io="output"
        )
        if "recompute" not in r.labels
    ]
    assert [r.step for r in outputs] == [1, 2, 3]
    count = {
        (r.object, r.io): 0 for r in pick(records, pass_="forward")
    }
    for r in repeated(records):
        count[r.object, r.io] += 1
    # torch 2.13 stops a recomputation once it has what it needs
    assert count["ReLU-1", "input"] == (0 if mode == "off" else 3)
    assert count["ReLU-1", "output"] == (3 if mode == "reentrant" else 0)
    consistent(records)
    torch.manual_seed(0)
    model = build()
    train(model, None)
    gradient = [[0.0] * 4, [6.0] * 4, [0.0] * 4, [0.0] * 4]
    assert model[0].weight.grad.tolist() == gradient


class Mixes(nn.Module):
    """A block with everything that may differ the second time."""

    def __init__(self, width=4, inplace=True):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.act = nn.ReLU(inplace)
        self.drop = nn.Dropout(0.5)
        self.down = nn.Linear(width, width)

    def forward(self, x):
        return x + self.down(self.drop(self.act(self.up(self.norm(x)))))


class Stack(nn.Module):
    def __init__(self, call, inplace=True):
        super().__init__()
        self.blocks = nn.ModuleList(
            Mixes(inplace=inplace) for _ in range(3)
        )
        self.head = nn.Linear(4, 1)
        self.call = call

    def forward(self, x):
        for block in self.blocks:
            x = self.call(block, x)
        return self.head(x)


def inputs(n=3):
    return [x.requires_grad_() for x in batches(n, 3, 4)]


def train_stack(model, optimizer):
    return steps(model, optimizer, inputs())


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("early", [True, False], ids=["early", "whole"])
def test_dropout_and_norms_are_computed_again(look, mode, early):
    def train(model, optimizer):
        with set_checkpoint_early_stop(early):
            return train_stack(model, optimizer)

    records = look(
        lambda: Stack(functools.partial(through, mode)), train
    )
    consistent(records)
    assert bool(repeated(records)) == (mode != "off")


def test_both_kinds_give_the_records_of_none(look):
    """But for the repetitions and, of the re-entrant kind, which gradient
    is the whole and which a share."""
    found = {}
    for mode in MODES:
        records = look(
            lambda mode=mode: Stack(functools.partial(through, mode)),
            train_stack,
        )
        found[mode] = {
            (r["pass"], r.object, r.step, r.io, r.path, r.hash)
            for r in records
            if "recompute" not in r.labels
            and (r["pass"], r.io) != ("backward", "output")
        }
    assert found["off"] == found["not reentrant"] == found["reentrant"]


def nested(mode, block, x):
    def inner(y):
        return through(mode, block, y) * 2

    return through(mode, inner, x)


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
def test_a_region_within_a_region(look, mode):
    records = look(
        lambda: Stack(functools.partial(nested, mode)), train_stack,
        see=mode == "not reentrant",
    )
    first = [
        r for r in pick(records, object="Mixes-2", pass_="forward")
        if "recompute" not in r.labels
    ]
    assert [(r.step, r.io) for r in first] == [
        (i, io) for i in (1, 2, 3) for io in ("input", "output")
    ]
    again = [r for r in repeated(records) if r.object == "Mixes-2"]
    assert {r.step for r in again} == {1, 2, 3}


def test_kinds_mixed_in_one_model(look):
    kinds = iter(())

    def call(block, x):
        return through(next(kinds), block, x)

    def train(model, optimizer):
        nonlocal kinds
        kinds = iter([*MODES] * 40)
        return train_stack(model, optimizer)

    consistent(look(lambda: Stack(call), train))


def selective(block, x):
    """Keeps what matrix products give, computes the rest again."""

    def policy(ctx, op, *args, **kwargs):
        keep = op in (torch.ops.aten.addmm.default, torch.ops.aten.mm.default)
        return (
            CheckpointPolicy.MUST_SAVE if keep
            else CheckpointPolicy.PREFER_RECOMPUTE
        )

    return checkpoint(
        block, x, use_reentrant=False,
        context_fn=functools.partial(
            create_selective_checkpoint_contexts, policy
        ),
    )


def test_selective_checkpointing(look):
    records = look(lambda: Stack(selective, False), train_stack, see=False)
    first = [
        r for r in pick(records, pass_="forward", io="output")
        if "recompute" not in r.labels
    ]
    for name in ("Mixes-1", "Linear-3", "Dropout-3", "Stack-1"):
        assert [r.step for r in first if r.object == name] == [1, 2, 3]
    for r in repeated(records):
        assert r.step in (1, 2, 3)


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
def test_a_chain_of_segments(look, mode):
    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(*[Mixes() for _ in range(4)])

        def forward(self, x):
            return checkpoint_sequential(
                self.layers, 2, x, use_reentrant=MODES[mode]
            )

    consistent(look(Chain, train_stack))


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
def test_a_wrapper_of_torch(look, mode):
    from torch.distributed.algorithms._checkpoint import checkpoint_wrapper

    kind = checkpoint_wrapper.CheckpointImpl
    impl = kind.REENTRANT if MODES[mode] else kind.NO_REENTRANT

    def build():
        model = nn.Sequential(Mixes(), Mixes())
        return nn.Sequential(*[
            checkpoint_wrapper.checkpoint_wrapper(m, checkpoint_impl=impl)
            for m in model
        ])

    records = look(build, train_stack, see=False)
    consistent(records)
    assert {r.module for r in records if r.object == "Mixes-2"} == {"1"}
    assert "1.up.weight" in {r.path for r in pick(records, pass_="grad")}
    assert repeated(records)


# ---- what stands round a region ----


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_accumulated_over_micro_batches(look, mode):
    def train(model, optimizer):
        found = []
        for _ in range(2):
            for x in inputs(3):
                loss = model(x).pow(2).sum() / 3
                loss.backward()
                found.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        return found

    records = look(lambda: Stack(functools.partial(through, mode)), train)
    consistent(records)
    tops = pick(records, object="Stack-1", pass_="forward", io="input")
    assert [(r.step, r.iteration, r.microbatch) for r in tops] == [
        (1, 1, 1), (2, 1, 2), (3, 1, 3), (4, 2, 1), (5, 2, 2), (6, 2, 3),
    ]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "order", [[1, 2, -1, 3, -2, -3], [1, 2, 3, -3, -1, -2]],
    ids=["pipeline", "all first"],
)
def test_forward_of_the_next_comes_before_backward(look, mode, order):
    def train(model, optimizer):
        given = inputs(3)
        losses = {}
        for k in order:
            if k > 0:
                losses[k] = model(given[k - 1]).pow(2).sum()
            else:
                losses.pop(-k).backward()
        optimizer.step()

    records = look(lambda: Stack(functools.partial(through, mode)), train)
    consistent(records)


@pytest.mark.parametrize("mode", MODES)
def test_the_same_input_again_and_again(look, mode):
    """The memory and the values of all calls are alike."""

    def train(model, optimizer):
        x = torch.ones(3, 4, requires_grad=True)
        for _ in range(3):
            model(x).sum().backward()
            optimizer.step()

    records = look(
        lambda: Stack(functools.partial(through, mode)), train, see=False
    )
    first = [
        r for r in pick(records, pass_="forward", io="output")
        if "recompute" not in r.labels
    ]
    for name in ("Stack-1", "Mixes-1", "Mixes-3", "Linear-1"):
        assert [r.step for r in first if r.object == name] == [1, 2, 3]
    for r in repeated(records):
        assert r.step == r.iteration


@pytest.mark.parametrize("mode", MODES)
def test_a_region_with_keywords_and_nested_results(look, mode):
    class Takes(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 4)

        def forward(self, x, mask, scale):
            return {"y": self.l(x) * mask * scale, "mask": mask}

    class Top(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Takes()

        def forward(self, x):
            mask = torch.ones(4)

            def region(y):
                found = self.inner(y, mask, scale=3)
                return found["y"], found["mask"] * 1

            return through(mode, region, x)[0]

    consistent(look(Top, train_stack))


def test_a_region_with_an_integer_and_no_gradient_at_its_entry(look):
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.emb = nn.Embedding(5, 4)
            self.l = nn.Linear(4, 4)

        def forward(self, i):
            return checkpoint(
                lambda j: self.l(self.emb(j)), i, use_reentrant=False
            )

    def train(model, optimizer):
        words = [torch.tensor([[0, 3]]), torch.tensor([[1, 2]])]
        return steps(model, optimizer, words)

    records = look(Words, train)
    consistent(records)
    again = [r for r in repeated(records) if r.object == "Embedding-1"]
    assert {(r.step, r.dtype) for r in again if r.io == "input"} == {
        (1, "int64"), (2, "int64"),
    }


@pytest.mark.parametrize("mode", ["reentrant", "not reentrant"])
def test_a_recomputation_that_raises(look, mode):
    """The exception is the user's, and the next iteration is counted on."""

    class Fails(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(4, 4)
            self.calls = 0

        def forward(self, x):
            x = self.l(x)
            self.calls += 1
            if self.calls == 2:
                raise ValueError("the second time")
            return x.tanh()

    def train(model, optimizer):
        told = []
        for x in inputs(3):
            try:
                through(mode, model, x).sum().backward()
            except ValueError as error:
                told.append(str(error))
            optimizer.step()
            optimizer.zero_grad()
        return told, model.calls

    records = look(Fails, train, see=False)
    ins = [
        r for r in pick(records, object="Fails-1", pass_="forward")
        if r.io == "input" and "recompute" not in r.labels
    ]
    assert [(r.step, r.iteration) for r in ins] == [(1, 1), (2, 2), (3, 3)]


def test_a_region_under_autocast_and_on_a_second_pass(look):
    def train(model, optimizer):
        for x in inputs(2):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(x).float().sum()
            loss.backward(retain_graph=True)
            loss.backward()
            optimizer.step()

    look(
        lambda: Stack(functools.partial(through, "not reentrant")), train,
        see=False,
    )


# ---- tied weights ----


class Tied(nn.Module):
    """The embedding and the head share one weight."""

    def __init__(self, mode):
        super().__init__()
        self.emb = nn.Embedding(4, 2)
        self.mid = nn.Linear(2, 2, bias=False)
        self.head = nn.Linear(2, 4, bias=False)
        self.head.weight = self.emb.weight
        self.mode = mode
        with torch.no_grad():
            self.emb.weight.copy_(torch.arange(8.0).view(4, 2) / 8)
            self.mid.weight.copy_(torch.eye(2))

    def forward(self, i):
        return self.head(through(self.mode, self.mid, self.emb(i)))


@pytest.mark.parametrize("mode", MODES)
def test_tied_weights_have_one_gradient(look, mode):
    def train(model, optimizer):
        model(torch.tensor([[0, 3]])).sum().backward()
        optimizer.step()

    records = look(lambda: Tied(mode), train, passes=("grad", "forward",
                                                      "backward", "local"),
                   see=False)
    final = [
        r for r in pick(records, pass_="grad") if "final" in r.labels
    ]
    assert [r.path for r in final] == ["emb.weight", "mid.weight"]
    (r,) = [r for r in final if r.path == "emb.weight"]
    assert (r.n, r.max, r.min, r.zero) == (8, 3.0, 0.75, 0)
    assert r["l2"] == pytest.approx(5.5901699437494745, rel=1e-14)
    assert r["std"] == pytest.approx(0.9185586535436917, rel=1e-14)
    assert r.samples == [2.25, 3.0, 0.75, 1.0, 0.75, 1.0, 2.25, 3.0]
    local = [
        r for r in pick(records, pass_="grad", path="emb.weight")
        if "local" in r.labels
    ]
    assert [r.hash for r in local] == [r.hash]
    for name in ("Embedding-1", "Linear-1", "Linear-2", "Tied-1"):
        outs = [
            r for r in pick(records, object=name, pass_="forward")
            if r.io == "output" and "recompute" not in r.labels
        ]
        assert [r.step for r in outs] == [1]


def test_a_whole_tied_model_is_a_region(look):
    """Over three iterations, the gradient is that of plain torch."""
    wanted = []

    def train(model, optimizer):
        wanted.clear()
        for words in ([[0, 3]], [[1, 1]], [[2, 0]]):
            checkpoint(
                model, torch.tensor(words), use_reentrant=False
            ).pow(2).sum().backward()
            wanted.append(hash_of(model.emb.weight.grad))
            optimizer.step()
            optimizer.zero_grad()

    records = look(lambda: Tied("off"), train, see=False)
    found = pick(records, pass_="grad", path="emb.weight")
    assert [r.hash for r in found] == wanted
    assert [r.iteration for r in found] == [1, 2, 3]
