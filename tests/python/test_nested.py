"""Results of every form, and operations in place on what goes in and out."""

import contextlib
import copy
import dataclasses
import io
import pickle
import warnings
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch import nn

from recording import pick
from seen import batches, bits, steps, tensors_of


@dataclasses.dataclass
class Out:
    logits: torch.Tensor
    hidden: object = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    logits: torch.Tensor
    hidden: object = None


class Pair(NamedTuple):
    first: torch.Tensor
    second: object


Old = namedtuple("Old", "first second")


class Model(OrderedDict):
    """As the outputs of model libraries: entries are attributes, numbers
    index a tuple of the values."""

    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __getitem__(self, key):
        if isinstance(key, str):
            return OrderedDict.__getitem__(self, key)
        return tuple(self.values())[key]


class Counting(dict):
    """Computes what is asked for; nobody may ask."""

    asked = 0

    def __getitem__(self, key):
        type(self).asked += 1
        return dict.__getitem__(self, key)

    def __iter__(self):
        type(self).asked += 1
        return dict.__iter__(self)

    def items(self):
        type(self).asked += 1
        return dict.items(self)


class Lines(list):
    def __iter__(self):
        raise AssertionError("walked by somebody else")


class Mine(torch.Tensor):
    """A subclass without anything of its own."""


KINDS = {
    # what it makes of two tensors -> the paths of its tensors
    "dict": (lambda y, z: {"a": y, "b": [z, None, 3]}, ["a", "b.0"]),
    "list": (lambda y, z: [y, z], ["0", "1"]),
    "tuple": (lambda y, z: (y, None, z), ["0", "2"]),
    "dataclass": (lambda y, z: Out(y, (z, None)), ["logits", "hidden.0"]),
    "slots": (lambda y, z: Slots(y, z), ["logits", "hidden"]),
    "nested": (lambda y, z: ({"q": (y,)}, z, "text"), ["0.q.0", "1"]),
    "named": (lambda y, z: Pair(y, {"z": z}), ["first", "second.z"]),
    "namedtuple": (lambda y, z: Old(y, [z]), ["first", "second.0"]),
    "model": (
        lambda y, z: Model(loss=y, past=((z, None),)), ["loss", "past.0.0"],
    ),
    "user dict": (lambda y, z: UserDict(a=y, b=z), ["a", "b"]),
    "default": (
        lambda y, z: defaultdict(list, {"a": y, 5: z}), ["a", "5"],
    ),
    "list of dataclasses": (
        lambda y, z: [Out(y), Out(z)], ["0.logits", "1.logits"],
    ),
    "empty ones": (
        lambda y, z: [(), {}, [[]], y, "", b"", 0.5, 1j, z], ["3", "8"],
    ),
    "twice the same": (lambda y, z: (y, y, z), ["0", "1", "2"]),
    "return type": (lambda y, z: torch.stack([y, z]).max(0), None),
}


class Makes(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.l = nn.Linear(2, 2)
        self.make = make

    def forward(self, x):
        y = self.l(x)
        return self.make(y, y * 2)


def total(result):
    return sum(
        t.sum() for _, t in tensors_of(result)
        if t.dtype.is_floating_point and t.requires_grad
    )


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_every_kind(look, kind):
    make, paths = KINDS[kind]

    def train(model, optimizer):
        results = []
        for x in batches(2, 3, 2):
            result = model(x.requires_grad_())
            total(result).backward()
            optimizer.step()
            results.append(result)
        return results

    records = look(lambda: Makes(make), train)
    if paths is None:
        return
    out = pick(
        records, object="Makes-1", pass_="forward", io="output", step=1
    )
    assert [(r.path, r.position) for r in out] == [
        (p, i) for i, p in enumerate(paths)
    ]
    assert {tuple(r.shape) for r in out} == {(3, 2)}
    back = pick(
        records, object="Makes-1", pass_="backward", io="input", step=1
    )
    once = [p for p in paths if kind != "twice the same" or p != "1"]
    assert sorted(r.path for r in back) == sorted(once)


LEFT_ALONE = {
    "set": lambda y, z: {1, 2},
    "none": lambda y, z: None,
    "text": lambda y, z: "result",
    "number": lambda y, z: 3,
    "class": lambda y, z: Out,
    "object": lambda y, z: SimpleNamespace(a=y, b=z),
    "proxy": lambda y, z: MappingProxyType({"a": y}),
    "deque": lambda y, z: deque([y, z]),
    "generator": lambda y, z: (t for t in (y, z)),
    "iterator": lambda y, z: iter([y, z]),
    "map": lambda y, z: map(torch.neg, (y, z)),
    "function": lambda y, z: lambda: y,
}


@pytest.mark.parametrize("kind", LEFT_ALONE)
def test_what_is_no_container_is_left_alone(look, kind):
    """It is not consumed, and its tensors reach the caller."""

    def train(model, optimizer):
        result = model(torch.ones(3, 2))
        if kind in ("generator", "iterator", "map"):
            left = list(result)
            assert len(left) == 2
            total(left).backward()
            return left
        return type(result).__name__

    records = look(lambda: Makes(LEFT_ALONE[kind]), train, see=False)
    assert pick(records, object="Makes-1", pass_="forward", io="input")
    assert [
        r.path for r in pick(records, object="Linear-1", io="output")
        if r["pass"] == "forward"
    ] == ["0"]


def test_containers_that_do_something_when_they_are_read(look):
    Counting.asked = 0

    def train(model, optimizer):
        result = model(torch.ones(3, 2))
        asked = Counting.asked
        y, z = dict.values(result)
        (y.sum() + z.sum()).backward()
        return asked

    records = look(
        lambda: Makes(lambda y, z: Counting(a=y, b=z)), train, see=False
    )
    out = pick(records, object="Makes-1", pass_="forward", io="output")
    assert [r.path for r in out] == ["a", "b"] and not Counting.asked
    records = look(
        lambda: Makes(lambda y, z: Lines([y, z])),
        lambda m, o: len(m(torch.ones(3, 2))), see=False,
    )
    out = pick(records, object="Makes-1", pass_="forward", io="output")
    assert [r.path for r in out] == ["0", "1"]


ODD = {
    "integer": lambda y: (y, torch.tensor([2**62, -1])),
    "bool": lambda y: (y, y > 0),
    "empty": lambda y: (y, y[:0]),
    "number": lambda y: (y.sum(), y),
    "half": lambda y: (y.half(), y.double()),
    "bfloat16": lambda y: (y.bfloat16(), y),
    "float8": lambda y: (y, y.detach().to(torch.float8_e5m2)),
    "detached": lambda y: (y, y.detach()),
    "view": lambda y: (y.t(), y[:, :1], y.expand(2, 3, 2)),
    "not finite": lambda y: (y / 0, (y * 0).log()),
}


@pytest.mark.parametrize("kind", ODD)
def test_results_of_every_dtype_and_layout(look, kind):
    def train(model, optimizer):
        result = model(torch.ones(3, 2))
        sum(
            t.double().sum() for t in result if t.requires_grad
        ).backward()
        return list(result)

    look(lambda: Makes(lambda y, z: ODD[kind](y)), train)


@pytest.mark.parametrize(
    "make",
    [
        lambda y: y.detach().to_sparse(), lambda y: y.to_sparse(),
        lambda y: y.detach().to_sparse_csr(), lambda y: torch.complex(y, y),
        lambda y: torch.complex(y, y).conj(),
        lambda y: torch.nested.nested_tensor([y.detach()[0], y.detach()[1]]),
        lambda y: torch.quantize_per_tensor(y.detach(), 0.1, 0, torch.qint8),
        lambda y: y.to("meta"), lambda y: y.as_subclass(Mine),
        lambda y: nn.Parameter(y.detach()),
        lambda y: torch.complex(y, y).conj().imag,
    ],
    ids=[
        "sparse", "sparse with gradient", "csr", "complex", "conjugate",
        "nested", "quantized", "meta", "subclass", "parameter", "negated",
    ],
)
def test_results_of_odd_tensors(look, make):
    """They reach the caller as they are; what cannot be read is said so."""

    def train(model, optimizer):
        y, odd = model(torch.ones(3, 2))
        y.sum().backward()
        return type(odd).__name__, str(odd.layout), str(odd.dtype)

    records = look(
        lambda: Makes(lambda y, z: (y, make(y))), train, see=False
    )
    out = pick(records, object="Makes-1", pass_="forward", io="output")
    assert [r.path for r in out] == ["0", "1"]
    assert out[1].max is not None or {"nodata", "unsupported"} & set(
        out[1].labels
    )


# ---- in place ----


def in_place():
    return nn.Sequential(
        nn.Linear(2, 2), nn.ReLU(inplace=True), nn.Linear(2, 1)
    )


def test_a_layer_works_in_place_on_the_output_of_another(look):
    def train(model, optimizer):
        model(torch.ones(1, 2)).sum().backward()
        return model[0].weight.grad

    def build():
        torch.manual_seed(0)
        return in_place()

    records = look(build, train)
    (gradient,) = pick(records, object="ReLU-1", pass_="backward", io="input")
    assert gradient.shape == [1, 2]
    torch.manual_seed(0)
    first = build()[0](torch.ones(1, 2)).reshape(-1).tolist()
    (before,) = pick(
        records, object="Linear-1", pass_="forward", io="output"
    )
    (after,) = pick(records, object="ReLU-1", pass_="forward", io="output")
    assert before.samples == first and min(first) < 0
    assert after.samples == [max(v, 0.0) for v in first]
    # the gradients of torch 2.13 on this very model
    model = build()
    model(torch.ones(1, 2)).sum().backward()
    assert model[0].weight.grad.reshape(-1).tolist() == [
        -0.014010033570230007, -0.014010033570230007, 0.0, 0.0,
    ]


def test_full_backward_hooks_cannot_stand_it():
    """What the tracer must not use: torch refuses."""
    model = in_place()
    for module in model.modules():
        module.register_full_backward_hook(lambda *a: None)
    with pytest.raises(RuntimeError, match="is a view and is being modif"):
        model(torch.ones(1, 2)).sum().backward()


class InPlace(nn.Module):
    """Layers that write, and a way to write."""

    def __init__(self, write):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.act = nn.Tanh()
        self.b = nn.Linear(2, 2)
        self.write = write

    def forward(self, x):
        return self.write(self, x)


def residual(m, x):
    h = m.a(x)
    h += x
    return m.b(m.act(h))


def on_a_view(m, x):
    h = m.a(x)
    h[:, :1].mul_(3)
    return m.b(m.act(h))


def on_the_input(m, x):
    x.add_(1)
    return m.b(m.a(x))


def on_a_detached_alias(m, x):
    h = m.a(x)
    h.detach().mul_(2)
    return m.b(h.clone())


def on_data(m, x):
    h = m.a(x)
    h.data = h.data * 2
    return m.b(h)


def masked(m, x):
    h = m.a(x)
    h.masked_fill_(h > 0, 0.25)
    return m.b(h)


def written_by_index(m, x):
    out = torch.zeros(3, 2)
    out[:2] = m.a(x)[:2]
    out[2] = m.b(x)[0]
    return out


def with_out(m, x):
    h = m.a(x)
    with torch.no_grad():
        torch.mul(h, 2, out=h)
    return m.b(h.clone())


def the_result_later(m, x):
    y = m.b(m.act(m.a(x)))
    return y.mul_(2).add_(1)


def resized(m, x):
    h = m.a(x)
    y = m.b(h.clone())
    h.detach().untyped_storage().resize_(0)
    return y


def swapped(m, x):
    h = m.a(x)
    y = m.b(h * 1)
    h.data = torch.empty(1)
    return y


WRITES = [
    residual, on_a_view, on_the_input, on_a_detached_alias, on_data, masked,
    written_by_index, with_out, the_result_later, resized, swapped,
]


@pytest.mark.parametrize("write", WRITES, ids=lambda f: f.__name__)
def test_writes_come_after_the_record(look, write):
    """Each record has the values that were there when the layer was called
    or ended, not what was written over them later."""
    look(
        lambda: InPlace(write),
        lambda m, o: steps(m, o, [x.clone() for x in batches(3)]),
    )


class Twice(nn.Module):
    def forward(self, x):
        return x.mul_(2)


@pytest.mark.parametrize("size", [8, 512])
def test_large_tensors_that_are_written_to_are_read_again(look, size):
    """Also where a tensor seen twice would not be read twice."""

    class Chain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Identity()
            self.act = Twice()
            self.drop = nn.Dropout(0.5, inplace=True)
            self.last = nn.Identity()
            self.w = nn.Parameter(torch.ones(()))

        def forward(self, x):
            x = self.act(self.first(x * self.w))
            x = self.drop(self.last(x))
            return self.last(x.add_(1))

    look(Chain, lambda m, o: steps(m, o, batches(2, size, size)))


def test_gradients_are_written_to_by_hooks_of_the_user(look):
    """What a hook makes of a gradient is what flows on; recorded is what
    came from above."""

    class Clips(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(2, 2)
            self.b = nn.Linear(2, 2)

        def forward(self, x):
            h = self.a(x)
            h.register_hook(lambda g: g.clamp(-0.01, 0.01))
            h.register_hook(lambda g: g * 3)
            return self.b(h)

    records = look(Clips, lambda m, o: steps(m, o, batches(3)), see=False)
    assert pick(records, object="Linear-1", pass_="backward", io="input")


def test_a_gradient_is_accumulated_in_place(look):
    """The share of a module is recorded before others are added to it."""

    class Fan(nn.Module):
        def __init__(self):
            super().__init__()
            self.parts = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))

        def forward(self, x):
            x = x * 2
            return sum(p(x) for p in self.parts) + x

    look(Fan, lambda m, o: steps(m, o, batches(3)))


def test_the_users_hooks_still_see_and_change_everything(look):
    """Hooks of the user that change arguments and results, before and after
    those of the tracer."""
    calls = []

    def build():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        model[0].register_forward_pre_hook(lambda m, a: (a[0] * 2,))
        model[0].register_forward_hook(lambda m, a, y: y + 1)
        return model

    def train(model, optimizer):
        model[1].register_forward_hook(lambda m, a, y: (calls.append(1), y)[1])
        model[1].register_forward_pre_hook(
            lambda m, a, k: ((a[0] - 1,), k), with_kwargs=True
        )
        return steps(model, optimizer, batches(3))

    look(build, train, see=False)
    assert len(calls) == 6


def test_a_result_is_copied_pickled_and_saved(look):
    """Hooks on a result hinder nobody."""

    def train(model, optimizer):
        x = torch.ones(1, 2, requires_grad=True)
        y = model(x)
        file = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.save(y, file)
            pickled = pickle.dumps(y.detach())
        y.sum().backward()
        return len(file.getvalue()), len(pickled), bits(copy.copy(y))

    look(in_place, train, see=False)


def test_contexts_round_the_forward(look):
    """Autocast, anomaly detection, saved tensors on a disk of one's own."""

    def train(model, optimizer):
        losses = []
        packed = []
        saved = torch.autograd.graph.saved_tensors_hooks(
            lambda t: (packed.append(1), t.clone())[1], lambda t: t
        )
        for around in (
            lambda: torch.autocast("cpu", torch.bfloat16),
            torch.autograd.detect_anomaly,
            lambda: saved,
            contextlib.nullcontext,
        ):
            with around():
                y = model(torch.randn(3, 2)).float().pow(2).sum()
            y.backward()
            losses.append(y.item())
            optimizer.step()
            optimizer.zero_grad()
        return losses, len(packed)

    def build():
        return nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))

    records = look(build, train)
    out = pick(records, object="Linear-1", pass_="forward", io="output")
    assert [r.dtype for r in out] == ["bfloat16"] + ["float32"] * 3
