"""An independent recorder for whole trainings: plain hooks and numpy.

It keeps figures, not tensors, and knows nothing of the tracer.
"""

import sys
import threading
import weakref

import numpy as np
import torch
from recording import tensors_of

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel",
            "CheckpointWrapper", "OptimizedModule", "DeepSpeedEngine")


def local(tensor):
    """The memory of this rank, without asking another."""
    tensor = tensor.detach()
    if hasattr(tensor, "placements"):
        tensor = tensor._local_tensor
    if type(tensor).__name__ == "AsyncCollectiveTensor":
        tensor = tensor.trigger_wait()
    return tensor


def figures(tensor):
    """[dtype, shape, max, min, mean, std, l2, zeros, nans]"""
    tensor = local(tensor)
    head = [str(tensor.dtype).split(".")[1], list(tensor.shape)]
    wide = tensor.to(torch.float64) if tensor.is_floating_point() else tensor
    a = wide.numpy().astype(np.float64).ravel()
    if not a.size:
        return [*head, None, None, None, None, None, 0, 0]
    if np.isnan(a).any():
        return [*head, None, None, None, None, None, int((a == 0).sum()),
                int(np.isnan(a).sum())]
    with np.errstate(invalid="ignore"):
        return [
            *head, a.max(), a.min(), a.mean(), a.std(),
            np.sqrt((a * a).sum()), int((a == 0).sum()), 0,
        ]


def class_of(module):
    names = [c.__name__ for c in type(module).__mro__]
    if "FSDPModule" in names:
        return names[0].removeprefix("FSDP")
    return names[0]


class Backward(threading.local):
    depth = 0


_backward = Backward()


def watch_backward():
    """From now on in_backward() tells whether autograd runs a graph on this
    thread; on the CPU that is the thread which asked."""
    graph = sys.modules["torch.autograd.graph"]
    original = graph._engine_run_backward

    def run(*args, **kwargs):
        _backward.depth += 1
        try:
            return original(*args, **kwargs)
        finally:
            _backward.depth -= 1

    for module in (graph, torch.autograd):
        if hasattr(module, "_engine_run_backward"):
            module._engine_run_backward = run


class Witness:
    """events: [pass, object, step, io, figures]; a module with none in it
    says "share" instead of figures for the gradients of its inputs, since a
    hook on a tensor sees the total."""

    def __init__(self, model, parameters=()):
        self.events = []
        self.steps = weakref.WeakKeyDictionary()
        self.names = {}
        numbers = {}
        for module in model.modules():
            name = class_of(module)
            if name in WRAPPERS:
                continue
            numbers[name] = numbers.get(name, 0) + 1
            self.names[id(module)] = f"{name}-{numbers[name]}"
            self.steps[module] = 0
            module.register_forward_pre_hook(self._pre, with_kwargs=True)
            module.register_forward_hook(self._post, with_kwargs=True)
        self.model = model  # keeps the ids
        self.parameters = list(parameters)
        self.iteration = 0

    def _see(self, *event):
        self.events.append(list(event))

    def _pre(self, module, args, kwargs):
        if _backward.depth:
            return
        self.steps[module] += 1
        leaf = not list(module.children())
        self._call(module, "input", "output", (args, kwargs), leaf)

    def _post(self, module, args, kwargs, result):
        if not _backward.depth:
            self._call(module, "output", "input", result, False)

    def _call(self, module, io, gradient_io, values, share):
        name, step = self.names[id(module)], self.steps[module]
        seen = []
        for tensor in tensors_of(values):
            self._see("forward", name, step, io, figures(tensor))
            if (
                not tensor.requires_grad
                or isinstance(tensor, torch.nn.Parameter)
                or any(tensor is t for t in seen)
            ):
                continue
            seen.append(tensor)

            def gradient(g, tensor=tensor.is_leaf):
                if g is not None:
                    what = "share" if share else figures(g)
                    self._see("backward", name, step, gradient_io, what)

            tensor.register_hook(gradient)

    def step(self, *args):
        """Before the optimizer's: the gradients it finds."""
        self.iteration += 1
        for path, parameter in self.parameters:
            if parameter.grad is not None:
                self._see(
                    "grad", path, self.iteration, "",
                    figures(parameter.grad),
                )
