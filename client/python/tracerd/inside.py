"""Modules inside of what torch.compile() compiles, where that is asked for.

Compiled code runs no hooks, but the compiler traces those that it meets.
Those here leave operators in its graph, which hand the values over whenever
the graph runs. To the compiler they have an effect: they are neither left
out nor moved past each other, and what they are given must be there. That
may keep it from fusing what it would have fused, hence the label.

A graph may serve several modules of one class. So no operator knows its
module when it is traced: that is told by a number that it finds on the
module, as a tensor. Gradients belong to the call whose numbers its operator
returned, which the graph keeps for the backward pass.
"""

import dataclasses
import itertools
import sys
import threading
import weakref
from collections import OrderedDict

import torch
from torch._dynamo import allow_in_graph, assume_constant_result, disable
from torch._dynamo.eval_frame import skip_code
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op
from torch.compiler import is_compiling, is_dynamo_compiling, is_exporting
from torch.utils.hooks import RemovableHandle

from .compiled import Boundary, finish
from .hooks import (
    BACKWARD,
    FORWARD,
    INPUT,
    OUTPUT,
    RECOMPUTE,
    Inert,
    PostHook,
    PreHook,
    _of_shapes,
)
from .process import failed, warn
from .recompute import Index, memory_of
from .tensors import LABEL

EVAL = LABEL["eval"]
MATERIALIZED = LABEL["materialized"]
TOTAL = LABEL["total"]
NUMBER = "_tracerd_number"  # attribute of a module
LOG = 4096
MAX_DEPTH = 8

graph_task = torch._C._current_graph_task_id
_places = {}  # number -> Place
_next_number = itertools.count(1)
_skipped = [0]  # calls in a graph within a graph, as they are traced


class _Mine(threading.local):
    """What a thread is in."""

    def __init__(self):
        self.frames = []
        self.before = None  # the call that it repeated last


_mine = _Mine()


class _Frame:
    """A module that a thread is in. eager: Python runs it."""

    __slots__ = ("again", "call", "eager", "labels", "microbatch", "thing")

    def __init__(self, thing, eager, call, labels, microbatch, again):
        self.thing = thing
        self.eager = eager
        self.call = call  # None where nothing is recorded of it
        self.labels = labels
        self.microbatch = microbatch  # None: no part of a training
        self.again = again


class _Call:
    """A call of a module, as Index wants it."""

    __slots__ = (
        "address", "iteration", "labels", "microbatch", "repeated", "serial",
        "step", "thing",
    )

    def __init__(self, thing, step, iteration, microbatch, labels):
        self.thing = thing
        self.step = step
        self.iteration = iteration
        self.microbatch = microbatch
        self.labels = labels
        self.repeated = False
        self.serial = -1
        self.address = 0


class Log:
    """The latest calls inside of compiled code, for those that repeat them;
    one for each Recorder."""

    def __init__(self):
        self.next_serial = 0
        self.seen = 0  # operators that ran
        self.index = Index(LOG)
        self._calls = {}

    def add(self, call, address):
        call.address = address
        call.serial = self.next_serial
        self._calls[call.serial] = call
        self._calls.pop(call.serial - LOG, None)
        self.next_serial += 1

    def logged(self, serial):
        return self._calls.get(serial)

    def repeated_by(self, recorder, thing, tensors, inside):
        """The call that another one repeats, or None."""
        last = self.logged(self.next_serial - 1)
        if last is None or (
            not recorder.active and last.iteration + 1 < recorder.iteration
        ):
            return None
        before = _mine.before
        if before is not None and self.logged(before.serial) is not before:
            before = None  # another Recorder's
        first = self.index.find(
            self, thing, memory_of([("", t) for t in tensors]), before, inside
        )
        _mine.before = first
        return first


class Place:
    """A module, for the operators in a graph."""

    __slots__ = ("log", "recorder", "thing")

    def __init__(self, recorder, thing, log):
        self.recorder = recorder
        self.thing = thing
        self.log = log

    def enter(self, tensors, at, paths, grad):
        """A call begins; grad: whether gradients are computed."""
        recorder, thing, frames = self.recorder, self.thing, _mine.frames
        recorder.calls += 1
        self.log.seen += 1
        if thing is recorder.root:
            while frames and not frames[-1].eager:
                frames.pop()  # left over, of a pass that was interrupted
        if graph_task() != -1:
            return self._repeat(tensors, at, paths)
        if frames:
            labels, microbatch = frames[0].labels, frames[0].microbatch
        else:
            labels, microbatch = _outermost(recorder, thing, grad)
        frame = _Frame(thing, False, None, labels, microbatch, False)
        frames.append(frame)
        if microbatch is None:
            return None
        step = next(thing.count)
        if not recorder.active:
            return None
        frame.call = call = _Call(
            thing, step, recorder.iteration, microbatch, labels
        )
        if not labels:
            self.log.add(call, memory_of([("", t) for t in tensors]))
        self._put(FORWARD * 4 + INPUT, call, labels, tensors, at, paths)
        return call

    def _repeat(self, tensors, at, paths):
        frames = _mine.frames
        inside = bool(frames and frames[-1].again)
        call = self.log.repeated_by(
            self.recorder, self.thing, tensors, inside
        )
        frames.append(_Frame(self.thing, False, call, 0, 0, True))
        if call is not None:
            self._put(
                FORWARD * 4 + INPUT, call, call.labels | RECOMPUTE, tensors,
                at, paths,
            )
        return call

    def leave(self, tensors, at, paths):
        """The call ends."""
        frames = _mine.frames
        end = len(frames)
        while end and not frames[end - 1].eager:
            end -= 1
            frame = frames[end]
            if frame.thing is self.thing:
                del frames[end:]
                call = frame.call
                if call is not None:
                    labels = call.labels | (RECOMPUTE if frame.again else 0)
                    self._put(
                        FORWARD * 4 + OUTPUT, call, labels, tensors, at, paths
                    )
                return call
        return None

    def _put(self, slot, call, labels, tensors, at, paths):
        recorder, thing = self.recorder, self.thing
        if recorder.forward and thing.wanted:
            recorder.put_list(
                [
                    recorder.place(thing, slot, *where)
                    for where in zip(at, paths, strict=True)
                ],
                call, labels | MATERIALIZED,
                list(zip(paths, tensors, strict=True)), False,
            )

    def arrive(self, gradient, when, io, at, path):
        recorder = self.recorder
        if not when[0] or not self.thing.wanted:
            return
        # the gradient of an output is what the backward pass begins with
        slot = BACKWARD * 4 + (INPUT if io == OUTPUT else OUTPUT)
        labels = recorder.gradient_labels | MATERIALIZED
        if io == INPUT:
            labels |= TOTAL
        recorder.put_list(
            [recorder.place(self.thing, slot, at, path)],
            _Call(self.thing, *when, 0), labels, [(path, gradient)], False,
        )


def _outermost(recorder, thing, grad):
    """Labels and micro-batch of a call that none of ours is round."""
    if not grad and not recorder._in_checkpoint():
        return EVAL, 0
    return 0, recorder._begin_pass(thing)


# ---- the operators, when the graph runs ----


def _place_of(number):
    place = _places.get(int(number))
    return None if place is None or place.recorder.closed else place


def _numbers(call):
    """What gradients must know of a call: a tensor of three numbers."""
    if call is None:
        return torch.zeros(3, dtype=torch.int64)
    return torch.tensor(
        [call.step, call.iteration, call.microbatch], dtype=torch.int64
    )


def _run_enter(tensors, number, at, paths, grad):
    place, call = _place_of(number), None
    if place is not None:
        try:
            call = place.enter(tensors, at, paths, grad)
        except Exception as error:
            failed(place.recorder, error)
    return _numbers(call)


def _run_leave(tensors, number, at, paths):
    place, call = _place_of(number), None
    if place is not None:
        try:
            call = place.leave(tensors, at, paths)
        except Exception as error:
            failed(place.recorder, error)
    return _numbers(call)


def _run_arrive(gradient, when, number, io, at, path):
    place = _place_of(number)
    if place is not None:
        try:
            place.arrive(gradient, when.tolist(), io, at, path)
        except Exception as error:
            failed(place.recorder, error)


def _define():
    library = torch.library.Library("tracerd", "DEF")
    # a graph of the device would repeat what is copied, and not the copying
    unsafe = getattr(torch.Tag, "cudagraph_unsafe", None)
    tags = () if unsafe is None else (unsafe,)
    for name, schema, run, fake in (
        (
            "enter",
            "(Tensor[] tensors, Tensor number, int[] at, str[] paths, "
            "bool grad) -> Tensor",
            _run_enter, _fake_numbers,
        ),
        (
            "leave",
            "(Tensor[] tensors, Tensor number, int[] at, str[] paths) -> "
            "Tensor",
            _run_leave, _fake_numbers,
        ),
        (
            "arrive",
            "(Tensor gradient, Tensor when, Tensor number, int io, int at, "
            "str path) -> ()",
            _run_arrive, _fake_nothing,
        ),
    ):
        library.define(name + schema, tags=tags)
        library.impl(name, run, "CompositeExplicitAutograd")
        torch.library.register_fake(f"tracerd::{name}", fake, lib=library)
        operator = getattr(torch.ops.tracerd, name).default
        _register_effectful_op(operator, _EffectType.ORDERED)
    return library


def _fake_numbers(*args):
    return torch.empty(3, dtype=torch.int64, device="cpu")


def _fake_nothing(*args):
    return None


_library = _define()  # goes with the process
_op_enter = torch.ops.tracerd.enter.default
_op_leave = torch.ops.tracerd.leave.default
_op_arrive = torch.ops.tracerd.arrive.default


# ---- what the compiler traces ----


class Arrive(Inert):
    """On a tensor of the graph."""

    __slots__ = ("handle", "known")

    def __init__(self, *known):
        self.known = known
        self.handle = None

    def __call__(self, gradient):
        if gradient is not None:
            _op_arrive(gradient, *self.known)
        if self.handle is not None:
            self.handle.remove()  # of a leaf, which others get too


@allow_in_graph
def _watch(tensor, when, number, io, at, path):
    if tensor.requires_grad and torch.is_grad_enabled():
        hook = Arrive(when, number, io, at, path)
        handle = tensor.register_hook(hook)
        if tensor.is_leaf:
            hook.handle = handle
    return ()


@assume_constant_result
def _in_region():
    """Whether what is traced goes into a graph within the graph, of a
    checkpoint or a loop: those take no effects."""
    from torch._dynamo.symbolic_convert import InstructionTranslator

    tracer = InstructionTranslator.current_tx().output.current_tracer
    if tracer.parent is None:
        return False
    _skipped[0] += 1
    return True


def _collect(value, path, depth, found):
    """Tensors with their paths, as flatten() has them."""
    if isinstance(value, torch.Tensor):
        found.append((path or "0", value))
        return
    if depth > MAX_DEPTH:
        return
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = zip(value._fields, value, strict=True)
    elif isinstance(value, (list, tuple)):
        items = enumerate(value)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [
            (f.name, getattr(value, f.name)) for f in dataclasses.fields(value)
        ]
    else:
        return
    for key, item in items:
        if item is not None and isinstance(key, (str, int)):
            where = f"{path}.{key}" if path else str(key)
            _collect(item, where, depth + 1, found)


def _plain(found):
    """Positions, paths and tensors of those that an operator takes."""
    at, paths, tensors = [], [], []
    for i, (path, tensor) in enumerate(found):
        if type(tensor) is torch.Tensor or type(tensor) is torch.nn.Parameter:
            at.append(i)
            paths.append(path)
            tensors.append(tensor)
    return at, paths, tensors


def _watch_all(when, number, io, at, paths, tensors):
    seen = []
    for i, tensor in enumerate(tensors):
        if tensor.requires_grad and type(tensor) is torch.Tensor:
            if not any(tensor is t for t in seen):
                seen.append(tensor)
                _watch(tensor, when, number, io, at[i], paths[i])


def _trace_enter(module, args, kwargs, backward):
    if _in_region():
        return
    found = []
    _collect(args, "", 0, found)
    _collect(kwargs, "", 0, found)
    at, paths, tensors = _plain(found)
    number, grad = module._tracerd_number, torch.is_grad_enabled()
    when = _op_enter(tensors, number, at, paths, grad)
    if backward and grad:
        _watch_all(when, number, INPUT, at, paths, tensors)


def _trace_leave(module, output, backward):
    if _in_region():
        return
    found = []
    _collect(output, "", 0, found)
    at, paths, tensors = _plain(found)
    number = module._tracerd_number
    when = _op_leave(tensors, number, at, paths)
    if backward and torch.is_grad_enabled():
        _watch_all(when, number, OUTPUT, at, paths, tensors)


# ---- the hooks ----


class InsidePre(PreHook):
    """Before a module's forward, compiled or not."""

    __slots__ = ("backward",)

    def __init__(self, recorder, thing):
        self.backward = recorder.backward and recorder.input_gradients

    def __call__(self, module, args, kwargs):
        if is_compiling():
            if is_dynamo_compiling() and not is_exporting():
                _trace_enter(module, args, kwargs, self.backward)
            return
        try:
            _enter_here(self, module, args, kwargs)
        except RecursionError:
            self.missed += 1


class InsidePost(PostHook):
    """After it."""

    __slots__ = ("backward",)

    def __init__(self, recorder, thing):
        self.backward = recorder.backward

    def __call__(self, module, args, kwargs, output):
        if is_compiling():
            if is_dynamo_compiling() and not is_exporting():
                _trace_leave(module, output, self.backward)
            return
        try:
            _leave_here(self, output, sys._getframe(1))
        except RecursionError:
            self.missed += 1


@disable
def _enter_here(hook, module, args, kwargs):
    recorder, thing = hook.recorder, hook.thing
    if recorder.closed:
        return
    hook.enter(module, args, kwargs)
    frames = _mine.frames
    again = graph_task() != -1
    if again and not (frames and frames[-1].again):
        _mine.before = None  # a repetition begins
    labels, microbatch = 0, recorder.microbatch
    if frames:
        labels, microbatch = frames[0].labels, frames[0].microbatch
    elif not torch.is_grad_enabled() and not recorder._in_checkpoint():
        labels, microbatch = EVAL, 0
    elif _of_shapes():
        microbatch = None
    frames.append(_Frame(thing, True, None, labels, microbatch, again))


@disable
def _leave_here(hook, output, caller):
    frames, thing = _mine.frames, hook.thing
    for end in range(len(frames) - 1, -1, -1):
        if frames[end].eager and frames[end].thing is thing:
            del frames[end:]
            break
    finish(hook, output, caller)


# A frame of its own would be compiled for itself where the compiler has not
# taken the call of the module in; Python runs these.
skip_code(InsidePre.__call__.__code__)
skip_code(InsidePost.__call__.__code__)
skip_code(Boundary.__call__.__code__)


# ---- what a tree has of it ----


class _Numbered:
    """Takes the number of a module back."""

    __slots__ = ("module", "number")

    def __init__(self, module, number):
        self.module = weakref.ref(module)
        self.number = number

    def remove(self):
        _places.pop(self.number, None)
        module = self.module()
        if module is not None:
            found = module.__dict__.get(NUMBER)
            if found is not None and int(found) == self.number:
                del module.__dict__[NUMBER]


class Inside:
    """What the modules of one attach() share."""

    hooks = (InsidePre, InsidePost)

    def __init__(self, recorder):
        self._recorder = recorder
        self._log = Log()
        self._told = False
        self._skipped = _skipped[0]
        self._key = RemovableHandle(OrderedDict()).id

    def number(self, module, thing, handles):
        """Tells the operators that will be traced for a module whose it is;
        returns a list of one handle. handles: of its hooks, if any."""
        for handle in handles:
            if isinstance(handle, RemovableHandle):
                self._rename(module, handle)
        number = next(_next_number)
        _places[number] = Place(self._recorder, thing, self._log)
        module.__dict__[NUMBER] = torch.tensor(
            number, dtype=torch.int64, device="cpu"
        )
        return [_Numbered(module, number)]

    def _rename(self, module, handle):
        """The compiler makes a graph for each number that a hook may have:
        so all modules have theirs under one."""
        for name, hooks in vars(module).items():
            if name.startswith(("_forward_hooks", "_forward_pre_hooks")):
                if handle.id in hooks:
                    hooks[self._key] = hooks.pop(handle.id)
        handle.id = self._key

    def look(self, expected):
        """Warns once where what was expected to be seen is not; called at
        the ends of the first iterations."""
        if self._told:
            return
        if _skipped[0] > self._skipped:
            self._told = True
            warn(
                "modules within a checkpoint or a loop inside of compiled "
                "code are not traced"
            )
        elif expected and not self._log.seen:
            self._told = True
            warn(
                "nothing inside of the compiled module was seen: it was "
                "compiled before attach(). torch._dynamo.reset() has it "
                "compiled anew"
            )
