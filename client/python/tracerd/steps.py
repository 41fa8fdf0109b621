"""Iterations: who counts them, and what is recorded at the end of each.

An iteration ends with the optimizer's step, seen by torch's own step hooks,
or with a call by hand. A step that a gradient scaler skips calls no hook;
it is seen by looking over the scaler's shoulder.
"""

import functools
import sys
import weakref

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from . import _tracerd
from .hooks import Inert
from .tensors import LABEL

FINAL = LABEL["final"]
LOCAL = LABEL["local"]
SCALED = LABEL["scaled"]
SKIPPED = LABEL["skipped"]
GRAD = _tracerd.PASSES["grad"] * 4
PARAM = _tracerd.PASSES["param"] * 4


def collectives():
    """Changes with each collective of torch.distributed: those write to
    tensors without telling their version. -1 where that is not known."""
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None or not c10d.is_initialized():
        return 0
    try:
        return sum(
            group._get_sequence_number_for_group()
            for group in list(c10d._world.pg_map)
        )
    except Exception:
        return -1


class _When:
    """Gradients of parameters belong to an iteration as a whole; local ones
    to a micro-batch of it."""

    __slots__ = ("iteration", "microbatch", "step")

    def __init__(self, iteration, microbatch=0):
        self.step = self.iteration = iteration
        self.microbatch = microbatch


class LocalHook(Inert):
    """On a parameter: what one backward pass of this rank brings, before it
    is added to others and before ranks exchange theirs."""

    __slots__ = ("path", "recorder", "thing")

    def __init__(self, recorder, thing, path):
        self.recorder = recorder
        self.thing = thing
        self.path = path

    def __call__(self, grad):
        recorder = self.recorder
        if grad is None or not recorder.active or recorder.closed:
            return
        try:
            recorder.put_once(
                _site(recorder, self.thing, GRAD, self.path), _When(recorder.iteration, recorder.microbatch),
                LOCAL | recorder.gradient_labels, grad,
            )
        except Exception as error:
            recorder.failed(error)


class Steps:
    """Counts the iterations of one Recorder."""

    def __init__(self, recorder, owners, passes, optimizer):
        """owners: list of (weak module, Object), in module order."""
        self.recorder = recorder
        self.owners = owners
        self.grad = "grad" in passes
        self.param = "param" in passes
        self.by_hand = False
        self._optimizer_records = True
        self._given = optimizer is not None
        self._chosen = weakref.ref(optimizer) if self._given else None
        self._counted = 0  # iterations that the optimizer ended
        self._done = 0  # iteration whose gradients are recorded
        self._stepped = False
        if self._given:
            self._handles = [
                optimizer.register_step_pre_hook(self.before),
                optimizer.register_step_post_hook(self.after),
            ]
        else:
            self._handles = [
                register_optimizer_step_pre_hook(self.before),
                register_optimizer_step_post_hook(self.after),
            ]
        _watch_scalers(self)
        if "local" in passes:
            for path, thing, parameter in self.parameters():
                if thing.wanted and parameter.requires_grad:
                    hook = LocalHook(recorder, thing, path)
                    self._handles.append(parameter.register_hook(hook))

    # ---- hooks of the optimizer ----

    def before(self, optimizer, args, kwargs):
        try:
            if self._counts(optimizer):
                self._stepped = True
                if not self._optimizer_records:
                    return
                if _closure(args, kwargs) is None:
                    self.record(FINAL | _unscaled_later(optimizer))
        except Exception as error:
            self.recorder.failed(error)

    def after(self, optimizer, args, kwargs):
        try:
            if self._counts(optimizer):
                # a closure computes the gradients within the step
                late = _closure(args, kwargs) is not None
                if late and self._optimizer_records:
                    self.record(FINAL)
                if not self.by_hand:
                    self._advance()
        except Exception as error:
            self.recorder.failed(error)

    def _counts(self, optimizer):
        if self.recorder.closed:
            return False
        chosen = self._chosen() if self._chosen is not None else None
        if chosen is None and not self._given:
            if not self._holds(optimizer):
                return False
            self._chosen = weakref.ref(optimizer)
            chosen = optimizer
        return chosen is optimizer

    def _holds(self, optimizer):
        ours = {p for _, _, p in self.parameters()}
        return any(
            p in ours
            for group in optimizer.param_groups
            for p in group["params"]
        )

    # ---- hooks of a gradient scaler ----

    def scaler_begins(self):
        self._stepped = False

    def scaler_ended(self, optimizer):
        if self._stepped or not self._counts(optimizer):
            return
        if self._optimizer_records:
            self.record(SKIPPED)
        if not self.by_hand:
            self._advance()

    def scales(self):
        self.recorder.gradient_labels = SCALED

    # ---- by hand ----

    def step(self):
        """The end of an iteration. From the first call on the optimizer
        counts no more."""
        if not self.by_hand:
            self.by_hand = True
            if self._counted:
                return  # the optimizer has just ended this very iteration
            # it comes first and sees the gradients; what an optimizer does
            # afterwards would be taken for the next iteration's
            self._optimizer_records = False
        self.record(FINAL)
        self._advance()

    def _advance(self):
        self._counted += 1
        self.recorder.advance()

    # ---- records ----

    def parameters(self):
        """(path, Object, parameter), a shared one once, as the model stands
        now: wrappers replace parameters after attach()."""
        seen = set()
        for module, thing in self.owners:
            module = module()
            if module is None:
                continue
            for name, parameter in list(module._parameters.items()):
                if parameter is None or parameter in seen:
                    continue
                seen.add(parameter)
                path = f"{thing.path}.{name}" if thing.path else name
                yield path, thing, parameter

    def record(self, labels):
        """Gradients (and values) of the parameters, once an iteration."""
        recorder = self.recorder
        iteration = recorder.iteration
        if not recorder.active or self._done == iteration:
            return
        self._done = iteration
        when = _When(iteration)
        sites, tensors = ([], []), ([], [])
        for path, thing, parameter in self.parameters():
            if not thing.wanted:
                continue
            gradient = _gradient(parameter) if self.grad else None
            if gradient is not None:
                sites[0].append(_site(recorder, thing, GRAD, path))
                tensors[0].append((path, gradient))
            if self.param:
                sites[1].append(_site(recorder, thing, PARAM, path))
                tensors[1].append((path, parameter))
        recorder.put_list(sites[0], when, labels, tensors[0], False)
        recorder.put_list(sites[1], when, 0, tensors[1], False)

    def close(self):
        for handle in self._handles:
            handle.remove()
        _unwatch_scalers(self)


def _site(recorder, thing, slot, path):
    site = thing.sites.get((slot, 0, path))
    return site or recorder.site(thing, slot, 0, path)


def _closure(args, kwargs):
    return args[1] if len(args) > 1 else kwargs.get("closure")


def _unscaled_later(optimizer):
    """Fused optimizers divide by the scale themselves."""
    return SCALED if getattr(optimizer, "grad_scale", None) is not None else 0


def _gradient(parameter):
    # Megatron adds up in a buffer of its own; .grad is then a placeholder
    if getattr(parameter, "grad_added_to_main_grad", False):
        return getattr(parameter, "main_grad", parameter.grad)
    gradient = parameter.grad
    if gradient is None:
        gradient = getattr(parameter, "main_grad", None)
    return gradient


# ---- gradient scalers ----

_watchers = []
_original = {}


def _watch_scalers(steps):
    _watchers.append(steps)
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if _original or scaler is None:
        return
    scale, step = scaler.scale, scaler.step

    @functools.wraps(scale)
    def watched_scale(self, *args, **kwargs):
        try:
            if self.is_enabled():
                for watcher in list(_watchers):
                    watcher.scales()
        except Exception:
            pass  # only a label would be missing
        return scale(self, *args, **kwargs)

    @functools.wraps(step)
    def watched_step(self, optimizer, *args, **kwargs):
        watchers = list(_watchers)
        for watcher in watchers:
            watcher.scaler_begins()
        result = step(self, optimizer, *args, **kwargs)
        for watcher in watchers:
            try:
                watcher.scaler_ended(optimizer)
            except Exception as error:
                watcher.recorder.failed(error)
        return result

    _original.update(
        scaler=scaler, scale=(scale, watched_scale), step=(step, watched_step)
    )
    scaler.scale = watched_scale
    scaler.step = watched_step


def _unwatch_scalers(steps):
    if steps in _watchers:
        _watchers.remove(steps)
    if _watchers or not _original or sys.is_finalizing():
        return
    scaler = _original.pop("scaler")
    for name, (original, ours) in _original.items():
        if getattr(scaler, name) is ours:  # nobody else came after us
            setattr(scaler, name, original)
    _original.clear()
