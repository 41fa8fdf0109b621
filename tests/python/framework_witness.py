"""An independent recorder for whole trainings: plain hooks and numpy.

It keeps figures, not tensors, and knows nothing of the tracer.
"""

import threading

import numpy as np
import torch
from torch.autograd.variable import Variable
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from recording import tensors_of

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel",
            "CheckpointWrapper", "OptimizedModule", "DeepSpeedEngine",
            "Float16Module")
WRAPPER_PARTS = ("module", "_orig_mod", "_fsdp_wrapped_module",
                 "_checkpoint_wrapped_module")


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
    zero, nan = int((a == 0).sum()), int(np.isnan(a).sum())
    if not np.isfinite(a).all():
        return [*head, None, None, None, None, None, zero, nan]
    return [
        *head, a.max(), a.min(), a.mean(), a.std(), np.sqrt((a * a).sum()),
        zero, nan,
    ]


def class_of(module):
    names = [c.__name__ for c in type(module).__mro__]
    if "FSDPModule" in names:
        return names[0].removeprefix("FSDP")
    return names[0]


class Backward(threading.local):
    depth = 0


_backward = Backward()
_numbers = {}  # of the classes, in all that is watched


class Engine:
    """In the place of autograd's, which all backward passes go through."""

    def __init__(self, engine):
        self.engine = engine

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def run_backward(self, *args, **kwargs):
        _backward.depth += 1
        try:
            return self.engine.run_backward(*args, **kwargs)
        finally:
            _backward.depth -= 1


def watch_backward():
    """From now on _backward tells whether autograd runs a graph on this
    thread; on the CPU that is the thread which asked."""
    Variable._execution_engine = Engine(Variable._execution_engine)


class Gone:
    """In the place of a Watched in a copy of the model."""

    def looks(self):
        return False

    def pre(self, module, args, kwargs):
        pass

    def post(self, module, args, kwargs, result):
        pass


class Watched:
    """One module, and what runs in its place: replicas share it."""

    def __init__(self, witness, module):
        name = class_of(module)
        _numbers[name] = _numbers.get(name, 0) + 1
        self.name = f"{name}-{_numbers[name]}"
        self.leaf = not list(module.children())
        self.witness = witness
        self.step = 0
        self.graph = True  # the latest call made one

    def __reduce__(self):
        return Gone, ()

    def looks(self):
        return not self.witness.blind

    def pre(self, module, args, kwargs):
        if not self.looks():
            return
        if not _backward.depth:
            self.step += 1
            self.graph = torch.is_grad_enabled()
        self._call("input", "output", (args, kwargs), self.leaf)

    def post(self, module, args, kwargs, result):
        if self.looks():
            self._call("output", "input", result, False)

    def _call(self, io, gradient_io, values, share):
        see, step = self.witness.see, self.step
        again = _backward.depth
        if again and self.graph:
            return  # seen the first time, with its gradients
        seen = []
        for tensor in tensors_of(values):
            if not again:
                see("forward", self.name, step, io, figures(tensor))
            if (
                not tensor.requires_grad
                or not torch.is_grad_enabled()
                or isinstance(tensor, torch.nn.Parameter)
                or any(tensor is t for t in seen)
            ):
                continue
            seen.append(tensor)

            hooks = []

            def gradient(g, hooks=hooks):
                if g is not None:
                    what = "share" if share else figures(g)
                    see("backward", self.name, step, gradient_io, what)
                for hook in hooks:
                    hook.remove()

            hook = tensor.register_hook(gradient)
            if tensor.is_leaf:  # another call may get it again
                hooks.append(hook)


class Witness:
    """events: [pass, object, step, io, figures]; a module with none in it
    says "share" instead of figures for the gradients of its inputs, since a
    hook on a tensor sees the total. Gradients of parameters are
    ["grad", path, iteration, "", figures], as the optimizer finds them."""

    def __init__(self, model, optimizer=None, name=""):
        self.model, self.name = model, name
        self.events = []
        self.blind = 0
        self.iteration = 1
        self.optimizer = optimizer  # or the first that holds a parameter
        self.watched = set()  # modules
        self.walk()
        register_optimizer_step_pre_hook(self._before)
        register_optimizer_step_post_hook(self._after)

    def walk(self):
        """Watches the modules that are new."""
        self.owners = []
        compiled = inside = None
        for path, module in self.model.named_modules():
            parts = [p for p in path.split(".") if p not in WRAPPER_PARTS]
            parts = [part for part in (self.name, *parts) if part]
            self.owners.append((".".join(parts), module))
            if compiled is not None and path.startswith(compiled):
                # what is compiled runs no hooks: one object, from outside
                if path == f"{compiled}_orig_mod":
                    self._watch(inside, module)
            elif class_of(module) == "OptimizedModule":
                compiled = f"{path}." if path else ""
                inside = module
            elif class_of(module) not in WRAPPERS:
                self._watch(module, module)

    def _watch(self, called, module):
        if module in self.watched:
            return
        self.watched.add(module)
        watched = Watched(self, module)
        try:
            called.register_forward_pre_hook(watched.pre, with_kwargs=True)
            called.register_forward_hook(watched.post, with_kwargs=True)
        except RuntimeError:
            pass  # a ScriptModule takes no hooks

    def hide(self, function):
        """Of what runs within this function nothing is seen."""

        def hidden(*args, **kwargs):
            self.blind += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.blind -= 1

        return hidden

    def see(self, *event):
        self.events.append(list(event))

    # ---- gradients of parameters ----

    def parameters(self):
        """(path, parameter), each once, as the model stands now."""
        seen = set()
        for path, module in self.owners:
            for name, parameter in module._parameters.items():
                if parameter is None or id(parameter) in seen:
                    continue
                seen.add(id(parameter))
                yield f"{path}.{name}" if path else name, parameter

    def _ours(self, optimizer):
        if self.optimizer is None:
            ours = {id(p) for _, p in self.parameters()}
            held = (p for g in optimizer.param_groups for p in g["params"])
            if any(id(p) in ours for p in held):
                self.optimizer = optimizer
        return self.optimizer is optimizer

    def _before(self, optimizer, args, kwargs):
        if self._ours(optimizer) and not _closure(args, kwargs):
            self._gradients()

    def _after(self, optimizer, args, kwargs):
        if self._ours(optimizer):
            if _closure(args, kwargs):
                self._gradients()
            self.iteration += 1

    def told(self, pairs):
        for path, gradient in pairs:
            self.see("grad", path, self.iteration, "", figures(gradient))
        self.iteration += 1

    def skipped(self):
        self._gradients()
        self.iteration += 1

    def _gradients(self):
        for path, parameter in self.parameters():
            gradient = parameter.grad
            if gradient is None:
                gradient = getattr(parameter, "main_grad", None)
            if gradient is not None:
                self.see(
                    "grad", path, self.iteration, "", figures(gradient)
                )


def _closure(args, kwargs):
    return kwargs.get("closure") or (args[1] if len(args) > 1 else None)
