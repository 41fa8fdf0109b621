"""The gradient of an input as far as it comes through the module."""

import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tracerd
from recording import pick


def given(recorded, name):
    """The records of gradients of a module's inputs."""
    return pick(recorded, object=name, pass_="backward", io="output")


class Norm(nn.Module):
    """Its input goes three ways."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 2, 6))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (
            self.gain
        ) + 0.1 * x


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args):
        return args[0] + self.inner(*args)


class Watched(nn.Module):
    """Keeps what goes in and the gradient of what comes out."""

    def __init__(self, inner):
        super().__init__()
        self.__dict__["inner"] = inner  # not a module in it: a leaf
        self.inputs = self.gradient = None

    def forward(self, *args):
        self.inputs = [a.detach().clone() for a in args]
        out = self.inner(*args)
        out.register_hook(self._keep)
        return out

    def _keep(self, gradient):
        self.gradient = gradient.clone()

    def shares(self):
        """By autograd, with nothing else round the module."""
        inputs = [a.requires_grad_() for a in self.inputs]
        out = self.inner(*(a.clone() for a in inputs))
        return torch.autograd.grad(out, inputs, self.gradient)


@pytest.mark.parametrize(
    "inner",
    [
        nn.Linear(6, 6),
        nn.LayerNorm(6),
        nn.GELU(),
        nn.ReLU(inplace=True),
        nn.Softmax(-1),
        Norm(),
        nn.Bilinear(6, 6, 6),
    ],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_leaf_has_its_own_share_to_the_bit(recorded, inner, dtype):
    torch.manual_seed(1)
    inner = inner.to(getattr(torch, dtype))
    watched = Watched(inner)
    model = Residual(watched)
    n = 2 if isinstance(inner, nn.Bilinear) else 1
    values = [
        torch.randn(3, 6, dtype=getattr(torch, dtype), requires_grad=True)
        for _ in range(n)
    ]
    with tracerd.attach(model, samples=18):
        model(*(v * 1 for v in values)).float().pow(2).sum().backward()
    records = given(recorded, "Watched-1")
    records.sort(key=lambda r: r.position)
    shares = watched.shares()
    assert [r.position for r in records] == list(range(n))
    for record, share in zip(records, shares, strict=True):
        assert record.labels == ["exact"]
        assert record.samples == share.flatten().tolist()
    # and the residual path is in the total of the module round it
    assert "total" in given(recorded, "Residual-1")[0].labels


def test_the_gradient_of_an_input_is_the_share_or_the_total(recorded):
    model = Residual(nn.Linear(2, 2, bias=False))
    nn.init.ones_(model.inner.weight)
    x = torch.ones(1, 2, requires_grad=True)
    with tracerd.attach(model):
        model(x * 1).sum().backward()
    for name, value, label in (
        ("Residual-1", 3.0, "total"), ("Linear-1", 2.0, "exact"),
    ):
        (r,) = pick(recorded, object=name, pass_="backward", io="output")
        assert r.samples == [value, value] and r.labels == [label]


def test_an_output_that_is_the_input_has_the_total(recorded):
    model = Residual(nn.Identity())
    x = torch.ones(1, 2, requires_grad=True)
    with tracerd.attach(model):
        model(x * 1).sum().backward()
    (record,) = given(recorded, "Identity-1")
    assert record.samples == [2.0, 2.0] and record.labels == ["total"]


def test_an_input_that_is_not_used_has_none(recorded):
    class First(nn.Module):
        def forward(self, a, b):
            return a * 2

    model = Residual(First())
    a, b = (torch.ones(2, requires_grad=True) for _ in range(2))
    with tracerd.attach(model):
        (model(a * 1, b * 1) + b).sum().backward()
    (record,) = given(recorded, "First-1")
    assert record.position == 0 and record.samples == [2.0, 2.0]


def test_beyond_many_nodes_it_is_the_total(recorded):
    class Long(nn.Module):
        def __init__(self, n):
            super().__init__()
            self.n = n

        def forward(self, x):
            for _ in range(self.n):
                x = x * 1.0
            return x

    for n, label, value in ((60, "exact", 1.0), (70, "total", 2.0)):
        recorded.clear()
        model = Residual(Long(n))
        x = torch.ones(2, requires_grad=True)
        with tracerd.attach(model):
            model(x * 1).sum().backward()
        (record,) = [r for r in recorded if r["object"].startswith("Long-")
                     and r["pass"] == "backward" and r["io"] == "output"]
        assert record.labels == [label] and record.samples == [value] * 2


def test_a_tensor_that_comes_twice_is_recorded_once(recorded):
    class Product(nn.Module):
        def forward(self, a, b):
            return a * b

    model = Product()
    x = torch.full((2,), 3.0, requires_grad=True)
    with tracerd.attach(model):
        y = x * 1
        model(y, y).sum().backward()
    (record,) = given(recorded, "Product-1")
    assert record.position == 0 and record.samples == [6.0, 6.0]


def test_two_backward_passes_of_a_graph_give_two_records(recorded):
    model = Norm()
    x = torch.randn(2, 6, requires_grad=True)
    with tracerd.attach(model, samples=12):
        loss = model(x * 1).sum()
        loss.backward(retain_graph=True)
        loss.backward()
    first, second = given(recorded, "Norm-1")
    assert first.samples == second.samples
    assert first.labels == second.labels == ["exact"]


def test_of_a_gradient_with_a_graph_the_share_is_recorded_too(recorded):
    model = Norm()
    x = torch.randn(2, 6, requires_grad=True)
    with tracerd.attach(model):
        (g,) = torch.autograd.grad(model(x * 1).sum(), x, create_graph=True)
        g.pow(2).sum().backward()
    assert len(given(recorded, "Norm-1")) >= 1


@pytest.mark.parametrize("reentrant", [False, True])
def test_under_checkpointing_once_a_backward_pass(recorded, reentrant):
    model = nn.Sequential(nn.Linear(6, 6), Norm(), nn.Linear(6, 6))
    x = torch.randn(2, 6, requires_grad=True)
    with tracerd.attach(model):
        checkpoint(model, x * 1, use_reentrant=reentrant).sum().backward()
    for name in ("Norm-1", "Linear-2"):
        records = [r for r in given(recorded, name)]
        assert len(records) == 1 and "exact" in records[0].labels


def test_a_graph_that_is_dropped_leaves_nothing(recorded):
    model = Norm()
    x = torch.randn(2, 6, requires_grad=True)
    with tracerd.attach(model):
        y = x * 1
        out = model(y)
        tensor = weakref.ref(y)
        del out, y  # the graph held it
        assert tensor() is None
        with pytest.raises(RuntimeError):
            model(torch.ones(2, 5))  # no more of an exception
    assert given(recorded, "Norm-1") == []


def test_gradients_are_the_same_bits_with_it(recorded):
    def train(trace):
        torch.manual_seed(2)
        model = nn.Sequential(*(Residual(Norm()) for _ in range(3)))
        if trace:
            tracerd.attach(model)
        x = torch.randn(5, 6, requires_grad=True)
        model(x * 1).pow(2).sum().backward()
        return [x.grad, *(p.grad for p in model.parameters())]

    for a, b in zip(train(False), train(True), strict=True):
        assert torch.equal(a, b)


def test_without_input_gradients_those_of_outputs_are_left(fresh, recorded):
    """The same records but for them, and the same bits of the training."""

    def train(**options):
        del recorded[:]
        fresh()
        torch.manual_seed(1)
        model = nn.Sequential(Residual(nn.Linear(6, 6)), nn.LayerNorm(6))
        optimizer = torch.optim.AdamW(model.parameters())
        if options:
            tracerd.attach(model, optimizer, samples=18, **options)
        for _ in range(3):
            optimizer.zero_grad()
            x = torch.randn(3, 6, requires_grad=True)
            model(x).pow(2).sum().backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()], [
            (
                r["pass"], r.io, r.object, r.position, r.iteration,
                r.samples, r.labels,
            )
            for r in recorded
        ]

    plain, _ = train()
    both, records = train(input_gradients=True)
    alone, fewer = train(input_gradients=False)
    for one, other in ((plain, both), (plain, alone)):
        assert all(a.equal(b) for a, b in zip(one, other, strict=True))
    inputs = [r for r in records if r[:2] == ("backward", "output")]
    assert len(inputs) == 3 * 4
    assert sorted(fewer) == sorted(r for r in records if r not in inputs)
