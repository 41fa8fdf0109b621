"""What torch itself does with a model that is traced: it makes it ready for
quantization, takes faster ways round its modules, looks on in modes, runs
modules within backward passes. Each with the bits of the untraced run."""

import asyncio
import contextlib
import copy
import pickle

import pytest
import torch
from torch import nn
from torch.ao import quantization
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from recording import Block, pick
from seen import batches, steps

pytestmark = pytest.mark.filterwarnings("ignore:(?!tracerd)")

# ---- hooks that are taken along to another module ----


class Pictures(nn.Module):
    """What can be quantized, and fused before."""

    def __init__(self):
        super().__init__()
        self.quant = quantization.QuantStub()
        self.conv = nn.Conv2d(1, 2, 1)
        self.norm = nn.BatchNorm2d(2)
        self.act = nn.ReLU()
        self.fc = nn.Linear(2, 2)
        self.dequant = quantization.DeQuantStub()

    def forward(self, x):
        x = self.act(self.norm(self.conv(self.quant(x))))
        return self.dequant(self.fc(x.mean((2, 3))))


def pictures(n=2):
    return batches(n, 2, 1, 3, 3)


def learn(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return steps(model, optimizer, pictures())


def ready_for_training(model, optimizer):
    losses = learn(model)
    model.qconfig = quantization.get_default_qat_qconfig("x86")
    quantization.prepare_qat(model, inplace=True)
    return losses + learn(model)


def fused(model, optimizer):
    losses = learn(model)
    quantization.fuse_modules_qat(
        model, [["conv", "norm", "act"]], inplace=True
    )
    return losses + learn(model)


def observed_and_converted(model, optimizer):
    losses = learn(model)
    model.eval()
    model.qconfig = quantization.get_default_qconfig("x86")
    quantization.prepare(model, inplace=True)
    with torch.no_grad():
        losses += [model(x) for x in pictures()]
        quantization.convert(model, inplace=True)
        return losses + [model(x) for x in pictures()]


@pytest.mark.parametrize(
    "how", [ready_for_training, fused, observed_and_converted]
)
def test_a_model_is_quantized(look, how):
    records = look(Pictures, how, see=False)
    outs = pick(records, pass_="forward", io="output")
    steps_of = [r.step for r in outs if r.object == "Pictures-1"]
    assert steps_of == list(range(1, len(steps_of) + 1))


def test_what_is_in_the_place_of_another_has_its_own_hooks(look):
    def train(model, optimizer):
        losses = steps(model, optimizer, batches(1))
        new = nn.Linear(2, 2)
        for hook in model.a._forward_pre_hooks.values():
            new.register_forward_pre_hook(hook)
        for hook in model.a._forward_hooks.values():
            new.register_forward_hook(hook)
        model.a = new
        losses += steps(model, optimizer, batches(2))
        assert len(new._forward_hooks) == traced
        return losses

    traced = 0
    plain = train(Block(), torch.optim.SGD([torch.ones(1)], lr=0.1))
    assert len(plain) == 3
    traced = 1
    torch.manual_seed(0)
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with look.trace(model, optimizer) as t:
        train(model, optimizer)
    assert not model.a._forward_hooks and not model.a._forward_pre_hooks
    outs = pick(t.records, pass_="forward", io="output")
    assert [(r.object, r.step) for r in outs if r.module == "a"] == [
        ("Linear-1", 1), ("Linear-3", 1), ("Linear-3", 2),
    ]


# ---- a faster way where there are no hooks ----


def layer():
    return nn.TransformerEncoderLayer(
        8, 2, 16, batch_first=True, norm_first=True
    )


class Teacher(nn.Module):
    """Learns from what a frozen encoder says of padded sentences."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.TransformerEncoder(layer(), 2)
        self.teacher.eval().requires_grad_(False)
        self.pupil = nn.Linear(8, 8)

    def forward(self, x):
        return self.pupil(x) - self.teacher(
            x, src_key_padding_mask=padding(x)
        )


def padding(x):
    """Of the first sentence the last two words are none."""
    mask = torch.zeros(x.shape[:2], dtype=torch.bool)
    mask[0, 3:] = True
    return mask


def sentences(n):
    return batches(n, 4, 5, 8)


@contextlib.contextmanager
def counted():
    """As if hooks were hidden nowhere."""
    from tracerd import hidden

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hidden, "layers", lambda modules: set())
        yield


def test_hooks_that_are_counted_would_change_these_very_bits(look):
    def train(model, optimizer):
        return steps(model, optimizer, sentences(3))

    with counted(), pytest.raises(AssertionError, match="something else"):
        look(Teacher, train, see=False)


def test_a_frozen_encoder_takes_the_fast_way(look):
    def train(model, optimizer):
        return steps(model, optimizer, sentences(3))

    records = look(Teacher, train, see=False)
    seen = {r.module for r in pick(records, pass_="forward", io="output")}
    # it calls none of the modules in a layer, and then none is seen
    assert {"", "pupil", "teacher", "teacher.layers.1"} <= seen
    assert not any(m.startswith("teacher.layers.0.") for m in seen)


@pytest.mark.parametrize("build", [
    layer, lambda: nn.TransformerEncoder(layer(), 2),
], ids=["layer", "encoder"])
def test_an_encoder_is_trained_and_evaluated(look, build):
    def train(model, optimizer):
        def call(x):
            return model(x, src_key_padding_mask=padding(x))

        found = steps(call, optimizer, sentences(2))
        model.eval()
        with torch.no_grad():
            found += [call(x) for x in sentences(1)]
        model.train()
        return found + steps(call, optimizer, sentences(1))

    records = look(build, train, see=False)
    outs = pick(records, pass_="forward", io="output", object="Linear-1")
    assert [r.iteration for r in outs] == [1, 2, 3]


def test_hooks_of_the_user_on_an_encoder_count(look):
    """They are there before, and come while it is traced."""

    def train(model, optimizer):
        seen = []
        handle = model.norm1.register_forward_hook(lambda *a: seen.append(1))
        model.eval()
        with torch.no_grad():
            found = [model(x, src_key_padding_mask=padding(x))
                     for x in sentences(2)]
        assert len(model.norm1._forward_hooks) == 1 + old
        handle.remove()
        return found, len(seen)

    def build():
        model = layer()
        if old:
            model.norm1.register_forward_hook(lambda *a: None)
        return model

    old = 0
    look(build, train, see=False)
    model = build()
    with look.trace(model):
        model(sentences(1)[0])
        handle = model.linear1.register_forward_hook(lambda *a: None)
    assert len(model.linear1._forward_hooks) == 1
    handle.remove()
    assert not model.linear1._forward_hooks


def test_an_encoder_is_left_as_it_was_found(look):
    model = Teacher()
    kept = pickle.dumps(model)
    hooks = [m._forward_hooks for m in model.modules()]
    with look.trace(model):
        model(sentences(1)[0])
        other = copy.deepcopy(model)
        for m in [*other.modules(), *pickle.loads(kept).modules()]:
            assert type(m._forward_hooks) is type(hooks[0])
        assert pickle.loads(pickle.dumps(model)) is not None
    assert all(
        m._forward_hooks is h
        for m, h in zip(model.modules(), hooks, strict=True)
    )
    assert pickle.dumps(model) == kept


def test_an_encoder_is_compiled(look):
    def train(model, optimizer):
        call = torch.compile(model, backend="aot_eager")
        found = steps(call, optimizer, sentences(2))
        model.eval()
        with torch.no_grad():
            return found + [call(x) for x in sentences(1)]

    look(
        lambda: nn.Sequential(layer()), train, see=False,
        warns="of a compiled module",
    )


# ---- who looks on ----


class Functions(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.seen.append(torch.overrides.resolve_name(function))
        return function(*args, **(kwargs or {}))


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.seen.append(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [Functions, Operators])
def test_a_mode_of_the_programs_sees_the_training_alone(look, mode):
    def train(model, optimizer):
        with mode() as m:
            steps(model, optimizer, batches(3))
        return m.seen

    look(Block, train, see=False,
         passes=("forward", "backward", "grad", "local", "param", "optim"))


def test_operations_are_counted(look):
    def train(model, optimizer):
        with FlopCounterMode(display=False) as counter:
            steps(model, optimizer, batches(2))
        return counter.get_total_flops()

    look(Block, train, see=False)


def test_the_profiler_sees_the_training_alone(look):
    def train(model, optimizer):
        cpu = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=cpu) as p:
            steps(model, optimizer, batches(2))
        return sorted((e.key, e.count) for e in p.key_averages())

    look(Block, train, see=False)


@pytest.mark.parametrize("device", ["meta", "cpu"])
def test_another_device_is_the_default(look, device):
    """Numbers of the user's have values all the same."""
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, 2)
    with look.trace(model, optimizer) as t:
        torch.set_default_device(device)
        try:
            model(x).sum().backward()
            t.record("number", 3)
            t.record("list", [1.0, 2.0])
            optimizer.step()
        finally:
            torch.set_default_device(None)
    assert {r.path: r.max for r in pick(t.records, pass_="user")} == {
        "number": 3, "list": 2,
    }
    assert not any("nodata" in r.labels for r in t.records)


def test_many_gradients_at_once(look):
    """What is_grads_batched sends backward can be read by nobody."""

    def train(model, optimizer):
        (x,) = batches(1)
        return torch.autograd.functional.jacobian(model, x, vectorize=True)

    records = look(Block, train, see=False)
    backward = pick(records, pass_="backward")
    assert backward and all("unsupported" in r.labels for r in backward)


# ---- modules within backward passes ----


class InBackward(torch.autograd.Function):
    """Keeps its input alone, as reversible networks do."""

    @staticmethod
    def forward(ctx, module, x):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = ctx.module(x)
        y.backward(g)
        return None, x.grad


class Reversible(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Sequential(nn.Linear(2, 2), nn.Tanh())

    def forward(self, x):
        return InBackward.apply(self.b, self.a(x))


class Implicit(nn.Module):
    """A fixed point, whose gradient is one too."""

    def __init__(self):
        super().__init__()
        self.inner, self.first = nn.Linear(2, 2), nn.Linear(2, 2)

    def once(self, z, u):
        return torch.tanh(self.inner(z) * 0.3 + u)

    def forward(self, x):
        u = self.first(x)
        with torch.no_grad():
            z = torch.zeros_like(u)
            for _ in range(4):
                z = self.once(z, u)
        z = self.once(z, u)
        at = z.detach().requires_grad_()
        again = self.once(at, u)

        def solve(g):
            found = g
            for _ in range(3):
                (more,) = torch.autograd.grad(
                    again, at, found, retain_graph=True
                )
                found = more + g
            return found

        z.register_hook(solve)
        return z


class Projected(nn.Module):
    """A hook on its result calls a layer on the gradient."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)

    def forward(self, x):
        y = self.l(x)

        def project(g):
            with torch.no_grad():
                return g + self.l(g) * 0.1

        y.register_hook(project)
        return y


class Energy(nn.Module):
    """Its result is a gradient."""

    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1))

    def forward(self, x):
        with torch.enable_grad():
            x = x.requires_grad_()
            energy = self.f(x).sum()
            return torch.autograd.grad(energy, x, create_graph=True)[0]


@pytest.mark.parametrize(
    "build", [Reversible, Implicit, Projected, Energy]
)
def test_a_module_runs_within_a_backward_pass(look, build):
    records = look(build, lambda m, o: steps(m, o, batches(3)), see=False)
    outs = [
        r for r in pick(records, pass_="forward", io="output")
        if r.object == f"{build.__name__}-1"
    ]
    assert [(r.step, r.iteration) for r in outs] == [(i, i) for i in (1, 2, 3)]
    if build is Reversible:
        again = [r for r in records if "recompute" in r.labels]
        first = {
            (r.object, r.step, r.io, r.path): r.hash
            for r in records
            if r["pass"] == "forward" and "recompute" not in r.labels
        }
        assert {r.object for r in again} == {
            "Sequential-1", "Linear-2", "Tanh-1",
        }
        for r in pick(again, pass_="forward"):
            assert first[r.object, r.step, r.io, r.path] == r.hash


def test_derivatives_forward(look):
    """By dual numbers, which are tensors with a tensor aside."""
    import torch.autograd.forward_ad as forward_ad

    def train(model, optimizer):
        with forward_ad.dual_level():
            x = forward_ad.make_dual(torch.randn(3, 2), torch.ones(3, 2))
            y, tangent = forward_ad.unpack_dual(model(x))
            tangent.sum().backward()
            return y.detach(), tangent.detach()

    look(Block, train, see=False)


# ---- others ----


def test_a_parameter_list_is_never_called_and_not_missed(look):
    class Listed(nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = nn.ParameterList([torch.ones(2), torch.ones(2)])
            self.named = nn.ParameterDict({"shift": torch.zeros(2)})
            self.l = nn.Linear(2, 2)

        def forward(self, x):
            y = self.l(x * self.scales[0])
            return y * self.scales[1] + self.named["shift"]

    records = look(Listed, lambda m, o: steps(m, o, batches(2)))
    assert "scales.1" in {r.path for r in pick(records, pass_="grad")}


def test_a_forward_that_is_awaited(look):
    class Waits(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

        async def forward(self, x):
            y = self.a(x)
            await asyncio.sleep(0)
            return self.b(y)

    def train(model, optimizer):
        async def both():
            return await asyncio.gather(*(model(x) for x in batches(3)))

        found = asyncio.run(both())
        sum(y.sum() for y in found).backward()
        optimizer.step()
        return found

    records = look(Waits, train, see=False)
    outs = pick(records, pass_="forward", io="output", object="Linear-2")
    assert [r.step for r in outs] == [1, 2, 3]


def test_compiled_twice_each_is_traced(look):
    """As for training and for evaluation."""
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, 2)
    with look.trace(model, optimizer, warns="of a compiled module") as t:
        first = torch.compile(model, backend="aot_eager")
        second = torch.compile(model, backend="eager")
        for call in (first, second, first):
            call(x).sum().backward()
            optimizer.step()
    outs = pick(t.records, pass_="forward", io="output", object="Block-1")
    assert [r.step for r in outs] == [1, 2, 3]
    assert not first._forward_hooks and not second._forward_hooks


OPTIMIZERS = {
    "adam, fused": lambda p: torch.optim.Adam(p, fused=True),
    "adamw, fused": lambda p: torch.optim.AdamW(p, amsgrad=True, fused=True),
    "sgd, fused": lambda p: torch.optim.SGD(p, momentum=0.9, fused=True),
    "adagrad, fused": lambda p: torch.optim.Adagrad(p, fused=True),
    "adam, foreach": lambda p: torch.optim.Adam(p, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.5),
    "rprop": torch.optim.Rprop,
    "asgd": torch.optim.ASGD,
    "adamax": torch.optim.Adamax,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adadelta": torch.optim.Adadelta,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_of_every_kind(look, name):
    def train(model, optimizer):
        mine = OPTIMIZERS[name](list(model.parameters()))
        return steps(model, mine, batches(3))

    torch.manual_seed(7)
    plain = train(Block(), None)
    torch.manual_seed(7)
    model = Block()
    passes = ("forward", "backward", "grad", "local", "param", "optim")
    with look.trace(model, passes=passes) as t:
        assert train(model, None) == plain
    finals = [r for r in t.records if "final" in r.labels]
    assert [r.iteration for r in finals] == [1] * 4 + [2] * 4 + [3] * 4
    assert pick(t.records, pass_="optim")
