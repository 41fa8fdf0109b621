"""What real training programs do to a tracer: one small program for each
trap that plain torch on a CPU can set, with the bits of the untraced run."""

import collections
import contextlib
import os
import threading

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune
from torch.utils.checkpoint import checkpoint

import tracerd
from recording import Block, pick
from seen import batches, bits, runs, steps


class Rms(nn.Module):
    """Uses its input twice: the order of sums matters."""

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def a_sum_inside_and_outside(model, optimizer):
    x = torch.randn(64, 64, requires_grad=True)
    h = x * 1.0
    (h + model(h)).pow(2).sum().backward()
    return x.grad


def test_full_backward_hooks_would_change_these_very_bits():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    plain = a_sum_inside_and_outside(Rms(), None)
    torch.set_rng_state(state)
    hooked = Rms()
    hooked.register_full_backward_hook(lambda *a: None)
    assert not torch.equal(a_sum_inside_and_outside(hooked, None), plain)


class Returns(nn.Module):
    """(output, bias), the bias being the parameter itself."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)

    def forward(self, x):
        return nn.functional.linear(x, self.l.weight), self.l.bias


def a_parameter_is_returned(model, optimizer):
    losses = []
    for x in batches(3):
        y, bias = model(x)
        losses.append((y + bias).pow(2).sum())
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
        hooks = model.l.bias._backward_hooks
        assert len(hooks or ()) <= 1, "a hook on a parameter piles up"
    return losses


def a_result_loses_its_memory(model, optimizer):
    """As a pipeline stage that keeps only the graph of what it sent."""
    found = []
    for x in batches(3):
        y = model(x)
        assert y._base is None
        g = torch.ones_like(y)
        y.data = torch.empty((1,))
        torch.autograd.Variable._execution_engine.run_backward(
            (y,), (g,), False, False, (), allow_unreachable=True,
            accumulate_grad=True,
        )
        found += [p.grad.clone() for p in model.parameters()]
    return found


def a_result_is_detached_in_place(model, optimizer):
    found = []
    for x in batches(3):
        y = model(x)
        sent = y.detach().requires_grad_()
        sent.pow(2).sum().backward()
        y.backward(sent.grad)
        z = model(x)
        z.detach_()
        found.append(z)
    optimizer.step()
    return found


def a_loss_is_divided_in_place(model, optimizer):
    found = []
    for x in batches(3):
        loss = model(x).sum()
        kept = loss.detach()
        loss = loss.div_(3)
        loss.backward()
        found.append(kept)
    optimizer.step()
    return found


def gradients_are_gone_before_the_step(model, optimizer):
    """A loop that takes its gradients by torch.autograd.grad."""
    found = []
    for x in batches(3):
        loss = model(x).pow(2).sum()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for p, g in zip(model.parameters(), grads, strict=True):
                p -= 0.1 * g
        optimizer.step()
        found.append(loss)
    return found


def only_some_inputs_are_asked_for(model, optimizer):
    x = torch.randn(3, 2, requires_grad=True)
    y = model(x).pow(2).sum()
    (g,) = torch.autograd.grad(y, x, retain_graph=True)
    y.backward(inputs=[next(model.parameters())])
    return g


def memory_is_used_again(model, optimizer):
    buffer = torch.empty(3, 2)
    losses = []
    for x in batches(4):
        buffer.copy_(x)
        losses += steps(model, optimizer, [buffer])
    return losses


def gradients_are_set_to_views_of_a_buffer(model, optimizer):
    flat = torch.zeros(sum(p.numel() for p in model.parameters()))
    at = 0
    for p in model.parameters():
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    for x in batches(3):
        model(x).pow(2).sum().backward()
        optimizer.step()
        flat.zero_()
    return flat


def parameters_are_views_of_a_buffer(model, optimizer):
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    at = 0
    for p in model.parameters():
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    return steps(model, optimizer, batches(3)), flat


def tensors_are_swapped(model, optimizer):
    """torch.utils.swap_tensors() wants no weak reference to exist."""
    losses = steps(model, optimizer, batches(1))
    for m in model.modules():
        for name, p in list(m._parameters.items()):
            if p is not None:
                new = nn.Parameter(p.detach() * 2)
                p.grad = None
                torch.utils.swap_tensors(m._parameters[name], new)
    return losses + steps(model, optimizer, batches(2))


def an_optimizer_steps_in_the_backward_pass(model, optimizer):
    def step(p):
        with torch.no_grad():
            p -= 0.1 * p.grad
            p.grad = None

    handles = [
        p.register_post_accumulate_grad_hook(step)
        for p in model.parameters()
    ]
    losses = []
    for x in batches(3):
        loss = model(x).pow(2).sum()
        loss.backward()
        losses.append(loss)
    for handle in handles:
        handle.remove()
    return losses


def two_optimizers_take_turns(model, optimizer):
    first, *rest = model.parameters()
    some = torch.optim.SGD([first], lr=0.1)
    others = torch.optim.SGD(rest, lr=0.2)
    losses = []
    for i, x in enumerate(batches(4)):
        loss = model(x).pow(2).sum()
        loss.backward()
        (some if i % 2 else others).step()
        model.zero_grad()
        losses.append(loss)
    return losses


def modules_are_added_and_taken_away(model, optimizer):
    losses = steps(model, optimizer, batches(1))
    model.act = nn.Tanh()
    losses += steps(model, optimizer, batches(1))
    model.b = nn.Sequential(model.b, nn.Linear(2, 2))
    losses += steps(model, optimizer, batches(2))
    return losses


def weights_are_pruned_and_parametrized(model, optimizer):
    prune.l1_unstructured(model.a, "weight", 0.5)
    parametrizations.weight_norm(model.b)
    losses = []
    for x in batches(3):
        loss = model(x).pow(2).sum()
        loss.backward()
        losses.append(loss)
    prune.remove(model.a, "weight")
    return losses


def it_is_moved_to_other_dtypes(model, optimizer):
    found = []
    for dtype in (torch.float64, torch.bfloat16, torch.float32):
        model.to(dtype)
        x = torch.randn(3, 2).to(dtype)
        y = model(x)
        y.float().sum().backward()
        found.append(y)
        model.zero_grad()
    return found


def two_threads_train_at_once(model, optimizer):
    """On one model, each with gradients of its own."""
    found = {}

    def one(k):
        x = torch.full((1, 2), float(k + 1))
        found[k] = [
            torch.autograd.grad(model(x).sum(), list(model.parameters()))
            for _ in range(5)
        ]

    threads = [threading.Thread(target=one, args=(k,)) for k in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return [found[k] for k in range(3)]


def a_loader_with_workers(model, optimizer):
    data = torch.utils.data.DataLoader(
        list(torch.randn(6, 2)), batch_size=2, num_workers=1
    )
    return steps(model, optimizer, list(data))


def a_forked_child_trains_too(model, optimizer):
    losses = steps(model, optimizer, batches(1))
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            model(torch.ones(1, 2)).sum().backward()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    return losses + steps(model, optimizer, batches(1))


def the_random_state_is_looked_at(model, optimizer):
    found = []
    for x in batches(3):
        found += [torch.get_rng_state(), model(x), torch.rand(1)]
    return found


def determinism_is_asked_for(model, optimizer):
    torch.use_deterministic_algorithms(True)
    try:
        return steps(model, optimizer, batches(3))
    finally:
        torch.use_deterministic_algorithms(False)


def an_input_is_also_the_result(model, optimizer):
    found = []
    for x in batches(3):
        x.requires_grad_()
        y = model(nn.functional.dropout(x, 0.0))
        y.sum().backward()
        found += [x.grad]
    return found


def nothing_needs_a_gradient(model, optimizer):
    model.requires_grad_(False)
    return [model(x) for x in batches(3)]


def default_dtype_and_device_modes(model, optimizer):
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("cpu"):
            return steps(model, optimizer, [
                x.float() for x in batches(3)
            ])
    finally:
        torch.set_default_dtype(torch.float32)


def gradients_are_clipped_and_looked_at(model, optimizer):
    found = []
    for x in batches(3):
        model(x * 100).pow(2).sum().backward()
        found.append(nn.utils.clip_grad_norm_(model.parameters(), 0.1))
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    return found


def a_scaler_skips_a_step(model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    found = []
    for i, x in enumerate(batches(4)):
        loss = model(x).pow(2).sum() * (float("inf") if i == 1 else 1)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        found.append(scaler.get_scale())
    return found


def losses_of_two_passes_share_a_graph(model, optimizer):
    """As in a generative adversarial training."""
    found = []
    for x in batches(3):
        fake = model(x)
        first = model(fake.detach()).sum()
        first.backward()
        optimizer.step()
        optimizer.zero_grad()
        second = model(fake.clone()).pow(2).mean()
        try:
            second.backward()
        except RuntimeError as error:  # written to in between
            found.append(str(error)[:20])
        optimizer.zero_grad()
        found.append(second)
    return found


def a_region_is_recomputed_in_the_step(model, optimizer):
    def closure():
        optimizer.zero_grad()
        x = torch.ones(3, 2)
        loss = checkpoint(model, x, use_reentrant=False).pow(2).sum()
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(3)]


TRAPS = {
    f.__name__: (f, make) for f, make in [
        (a_sum_inside_and_outside, Rms),
        (a_parameter_is_returned, Returns),
        *((f, Block) for f in (
            a_result_loses_its_memory, a_result_is_detached_in_place,
            a_loss_is_divided_in_place, gradients_are_gone_before_the_step,
            only_some_inputs_are_asked_for, memory_is_used_again,
            gradients_are_set_to_views_of_a_buffer,
            parameters_are_views_of_a_buffer, tensors_are_swapped,
            an_optimizer_steps_in_the_backward_pass,
            two_optimizers_take_turns, modules_are_added_and_taken_away,
            weights_are_pruned_and_parametrized, it_is_moved_to_other_dtypes,
            two_threads_train_at_once, a_loader_with_workers,
            a_forked_child_trains_too, the_random_state_is_looked_at,
            determinism_is_asked_for, an_input_is_also_the_result,
            nothing_needs_a_gradient, default_dtype_and_device_modes,
            gradients_are_clipped_and_looked_at, a_scaler_skips_a_step,
            losses_of_two_passes_share_a_graph,
            a_region_is_recomputed_in_the_step,
        )),
    ]
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("trap", TRAPS)
def test_the_training_is_its_own(look, trap):
    train, make = TRAPS[trap]
    records = look(
        make, train, see=False,
        warns="no call was seen" if make is Returns else None,
        passes=("forward", "backward", "grad", "local", "param"),
    )
    out = pick(records, pass_="forward", io="output")
    tops = [
        r.step for r in out
        if r.object == f"{make.__name__}-1" and r.position == 0
        and "recompute" not in r.labels
    ]
    assert sorted(tops) == list(range(1, len(tops) + 1))
    count = collections.Counter(
        (r["pass"], r.object, r.step, r.io, r.path)
        for r in out if "recompute" not in r.labels
    )
    assert set(count.values()) == {1}


def test_a_hook_gets_no_gradient(look):
    """torch calls a hook with None where a function gives none."""

    class Gives(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            return x * 1, y * 1

        @staticmethod
        def backward(ctx, gx, gy):
            return gx, None

    class Layer(nn.Module):
        def forward(self, x, y):
            return Gives.apply(x, y)

    class Top(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)
            self.layer = Layer()

        def forward(self, x):
            return self.layer(self.a(x), self.b(x))[0]

    look(Top, lambda m, o: steps(m, o, batches(3)), see=False)


def test_it_does_not_import_what_the_training_has_not(look):
    """Nor start threads of Python's."""
    import sys

    with tracerd.attach(Block(), run=f"run{next(runs)}") as t:
        before = threading.active_count()
        t.step()
        assert threading.active_count() == before
    for name in ("megatron", "deepspeed", "transformers", "accelerate",
                 "lightning", "jax", "pandas"):
        assert name not in sys.modules


def test_two_attachments_see_the_same(look):
    """Hooks of two tracers on one model do not disturb each other."""
    torch.manual_seed(0)
    model = Block()
    with look.trace(model) as first, look.trace(model, name="b") as second:
        model(torch.ones(1, 2)).sum().backward()
    assert bits([
        sorted((r["pass"], r.object, r.io or "", r.hash) for r in t.records)
        for t in (first, first)
    ]) == bits([
        sorted((r["pass"], r.object, r.io or "", r.hash) for r in t.records)
        for t in (first, second)
    ])
