"""The hooks: what is recorded of each call of a module, and when.

Gradients are seen through hooks on tensors. torch's full backward hooks
would put a node of their own round each module and thereby change the order
of sums, so a traced run would differ from an untraced one in its last bits.

No hook may disturb the training: it returns None, keeps no tensor, adds
nothing to the graph, and whatever goes wrong in it is counted and told once.
"""

import contextlib
import sys
import threading
from collections import deque

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling

from . import _tracerd, share
from .flatten import flatten, flatten_call
from .operators import Queue
from .process import warn
from .recompute import Call, Log, memory_of
from .tensors import LABEL, is_capturing, resolve

FORWARD = _tracerd.PASSES["forward"]
BACKWARD = _tracerd.PASSES["backward"]
INPUT, OUTPUT = 1, 2

# Slots of Object.sites: pass and io in one number.
FORWARD_INPUT = FORWARD * 4 + INPUT
FORWARD_OUTPUT = FORWARD * 4 + OUTPUT
BACKWARD_INPUT = BACKWARD * 4 + INPUT
BACKWARD_OUTPUT = BACKWARD * 4 + OUTPUT

EVAL = LABEL["eval"]
RECOMPUTE = LABEL["recompute"]
TOTAL = LABEL["total"]
RAISED = LABEL["raised"]

MAX_NOTES = 1024
MAX_LEAVES = 4096
MIN_LOG = 4096

graph_task = torch._C._current_graph_task_id
tracing = torch._C._get_tracing_state


def numbered(tensors):
    """(position, path, tensor) of each (path, tensor)."""
    return [(at, *pair) for at, pair in enumerate(tensors)]


def _functorch_level():
    functorch = getattr(torch._C, "_functorch", None)
    return getattr(functorch, "peek_interpreter_stack", lambda: None)


transform = _functorch_level()


class _Here(threading.local):
    """Of one thread: the calls it is in, and its latest repetition."""

    def __init__(self):
        self.stack = []
        self.before = None


class Recorder:
    """What the hooks of one attach() share. Any thread may use it."""

    def __init__(self, connection, samples, passes, schedule, start, things):
        self.connection = connection
        self.client = connection.client
        self.record = self.client.record
        self.record_all = self.client.record_all
        if ROUTE_ALL:
            self.record = self.record_all = _read_none
        self.samples = samples
        self._devices = {}  # index of a CUDA device -> its half is open
        self._queue = Queue(self.client, connection.figures.sampling)
        self.forward = "forward" in passes
        self.backward = "backward" in passes
        self.schedule = schedule
        self.iteration = start
        self.active = schedule.wants(start)
        self.root = None  # its calls are the micro-batches
        self.microbatch = 0  # the latest one
        self.gradient_labels = 0  # of gradients before they are unscaled
        self.calls = 0
        self._blind_at = start + 2 if self.forward or self.backward else 0
        self.closed = False
        self._told = False
        self._here = _Here()
        self._lock = threading.Lock()
        self._log = Log(max(MIN_LOG, 16 * len(things)))
        self._notes = {"": 0}
        self._leaves = deque()

    # ---- a call begins ----

    def enter(self, thing, args, kwargs):
        here = self._here
        tensors = None
        if graph_task() != -1:
            tensors = flatten_call(args, kwargs)
            call = self._repeat(thing, tensors, here)
        else:
            call = self._begin(thing, here)
            if call.active:
                tensors = flatten_call(args, kwargs)
                if not call.labels:
                    self._log.add(call, memory_of(tensors))
        here.stack.append(call)
        if not call.active or not thing.wanted:
            return
        if self.forward:
            self.put_all(thing, FORWARD_INPUT, call, tensors)
        if call.hooked and thing.leaf:
            call.edges, tensors = share.edges_of(tensors)
            self._watch(call, tensors, BACKWARD_OUTPUT)
        elif call.hooked:
            self._watch(call, numbered(tensors), BACKWARD_OUTPUT)

    def _begin(self, thing, here):
        stack = here.stack
        self.calls += 1
        # Left over from a forward pass that was interrupted from outside.
        if stack and (thing is self.root or stack[0].again):
            stack.clear()
        if stack:
            microbatch, labels = stack[0].microbatch, stack[0].labels
        elif is_grad_enabled() or _in_checkpoint():
            microbatch, labels = self._next_microbatch(thing), 0
            self.connection.look()
            self.poll()
        else:
            microbatch, labels = 0, EVAL
        call = Call(
            thing, next(thing.count), self.iteration, microbatch, labels,
            self.active,
        )
        call.hooked = self._may_watch()
        return call

    def _repeat(self, thing, tensors, here):
        inside = bool(here.stack) and here.stack[-1].again
        if not inside:
            here.stack.clear()
        first = self._log.find(
            thing, memory_of(tensors), here.before, inside
        )
        if first is None:
            call = Call(thing, 0, self.iteration, 0, RECOMPUTE, False)
            call.again = True
            return call
        call = first.repetition(first.labels | RECOMPUTE)
        # What ran under no_grad the first time has no hooks yet; anything
        # else has them, on tensors that may be these very ones.
        call.hooked = not first.hooked and self._may_watch()
        here.before = call
        return call

    def _may_watch(self):
        return self.backward and is_grad_enabled() and transform() is None

    def _next_microbatch(self, thing):
        with self._lock:
            if thing.round_iteration != self.iteration:
                thing.round_iteration = self.iteration
                thing.rounds = 0
            thing.rounds += 1
            self.microbatch = thing.rounds
            return thing.rounds

    # ---- a call ends ----

    def leave(self, thing, output, error):
        stack = self._here.stack
        try:
            self._leave(thing, output, error, stack)
        finally:
            if not stack:
                # Between two passes anything may write to tensors, fused
                # optimizers without a word, and torch.utils.swap_tensors()
                # wants none that has a weak reference.
                self.client.forget()

    def _leave(self, thing, output, error, stack):
        call = None
        if any(c.thing is thing for c in stack):
            call = stack.pop()
            while call.thing is not thing:
                call = stack.pop()
        if call is None or not call.active or not thing.wanted:
            return
        edges, call.edges = call.edges, None
        if error is not None:
            if self.forward and not call.again:
                self._put_raised(call, error)
            return
        tensors = flatten(output)
        if self.forward:
            self.put_all(call.thing, FORWARD_OUTPUT, call, tensors)
        if call.hooked:
            self._watch(call, numbered(tensors), BACKWARD_INPUT)
        if edges:
            share.place(edges, tensors, Arrival(self, call))

    def _put_raised(self, call, error):
        site = self.site(call.thing, FORWARD_OUTPUT, 0, "")
        self.client.record_shape(
            site, call.step, call.iteration, call.microbatch,
            call.labels | RAISED, self.note(f"raised={type(error).__name__}"),
            "opaque", (0,),
        )

    # ---- gradients ----

    def _watch(self, call, tensors, slot):
        seen = set()
        for at, path, tensor in tensors:
            if not tensor.requires_grad or id(tensor) in seen:
                continue
            seen.add(id(tensor))  # all of them are alive meanwhile
            if not tensor.is_leaf:
                tensor.register_hook(GradHook(self, call, slot, at, path))
            elif slot == BACKWARD_OUTPUT and not isinstance(
                tensor, torch.nn.Parameter
            ):
                self._watch_leaf(call, tensor, at, path)

    def _watch_leaf(self, call, tensor, at, path):
        # The hooks of a leaf outlive the graph, so each must go by itself:
        # when it has seen its backward pass, or else a while later.
        hook = LeafHook(self, call, BACKWARD_OUTPUT, at, path)
        hook.handle = tensor.register_hook(hook)
        self._leaves.append((self.iteration, hook.handle))
        while len(self._leaves) > MAX_LEAVES:
            self._leaves.popleft()[1].remove()

    # ---- records ----

    def put(self, thing, slot, at, path, when, labels, tensor):
        """One record; `when` has step, iteration and microbatch."""
        site = thing.sites.get((slot, at, path))
        if site is None:
            site = self.site(thing, slot, at, path)
        if not self.record(
            site, when.step, when.iteration, when.microbatch, labels, 0,
            tensor, self.samples,
        ):
            self._put_odd(site, when, labels, tensor)

    def put_all(self, thing, slot, call, tensors):
        """The records of one call's tensors."""
        if len(tensors) == 1:
            path, tensor = tensors[0]
            self.put(thing, slot, 0, path, call, call.labels, tensor)
            return
        sites = []
        for at, (path, _) in enumerate(tensors):
            site = thing.sites.get((slot, at, path))
            if site is None:
                site = self.site(thing, slot, at, path)
            sites.append(site)
        self.put_list(sites, call, call.labels, tensors, True)

    def put_list(self, sites, when, labels, tensors, keep):
        """Records of several tensors, those of a GPU in one launch. keep:
        the tensors may be known again by a weak reference."""
        if not tensors:
            return
        odd = self.record_all(
            sites, when.step, when.iteration, when.microbatch, labels,
            tensors, self.samples, keep,
        )
        for at in odd or ():
            try:
                self._put_odd(sites[at], when, labels, tensors[at][1])
            except Exception as error:
                self.failed(error)

    def put_once(self, site, when, labels, tensor):
        """One record of a tensor that no weak reference may be made to."""
        self.put_list([site], when, labels, [("", tensor)], False)

    def _put_odd(self, site, when, labels, tensor):
        plain = resolve(tensor, here=False)
        labels |= plain.labels
        head = (
            site, when.step, when.iteration, when.microbatch, labels,
            self.note(plain.note),
        )
        if plain.tensor is not None:
            if self._put_plain(head, plain):
                return
            capturing = is_capturing(torch, plain.tensor)
            label = "nodata" if capturing else "unsupported"
            head = (*head[:4], labels | LABEL[label], head[5])
        shape = plain.shape
        if shape is None:
            shape = tuple(plain.tensor.shape)
        self.client.record_shape(*head, plain.dtype, shape)

    def _put_plain(self, head, plain):
        """False where there is nothing but a shape to record."""
        tensor = plain.tensor
        device = _tracerd.device_of(tensor)
        if device is None and tensor.device.type == "cpu" and not ROUTE_ALL:
            return False
        here = device is not None and device < 0
        other = plain.shape is not None
        if here and other and not ROUTE_ALL:
            return self.client.record_as(
                *head, tensor, self.samples, plain.shape
            )
        if (
            ROUTE_ALL or device is None or (other and not here)
            or not (here or self.open_device(device))
        ):
            return self._queue.put(head, tensor, self.samples, plain.shape)
        return self.client.record_once(*head, tensor, self.samples)

    def open_devices(self, model):
        """Gets the devices that hold the model ready."""
        for parameter in model.parameters():
            local = getattr(parameter, "_local_tensor", parameter)
            device = _tracerd.device_of(local)
            if device is not None and device >= 0:
                self.open_device(device)

    def open_device(self, index):
        """Whether the CUDA half reads tensors of the device. It is opened
        when the first one is seen, but not while a graph is captured."""
        there = self._devices.get(index)
        if there is None:
            if torch.cuda.is_available() and (
                torch.cuda.is_current_stream_capturing()
            ):
                return False
            there = self.client.open_device(index, self.samples)
            self._devices[index] = there
        return there

    def poll(self):
        """Makes records of what other devices have computed."""
        self._queue.poll()

    def wait(self, seconds):
        """True when all devices are through within the time."""
        return self._queue.wait(seconds)

    def site(self, thing, slot, at, path):
        try:
            site = self.client.site(
                slot >> 2, slot & 3, at, thing.number, thing.class_name,
                thing.path, path,
            )
        except ValueError as error:
            # site 0 is refused by record(), which counts each loss
            site = 0
            self.failed(error, 0)
        thing.sites[slot, at, path] = site
        return site

    def note(self, text):
        number = self._notes.get(text)
        if number is None:
            if len(self._notes) >= MAX_NOTES:
                return 0
            number = self._notes[text] = self.client.note(text[:1000])
        return number

    def failed(self, error, lost=1):
        """Counts what could not be recorded; tells of the first."""
        if lost:
            self.client.lost(lost)
        if not self._told and not self.closed:
            self._told = True
            warn(
                f"a record could not be made ({type(error).__name__}: "
                f"{error}). Training goes on; such losses are counted"
            )

    # ---- iterations ----

    def advance(self):
        """The next iteration begins."""
        self.iteration += 1
        if self.iteration == self._blind_at and not self.calls:
            warn(
                "two iterations have ended and no forward pass of the model "
                "was seen. If torch.compile() came after attach(), attach "
                "to what it returned"
            )
        self.active = self.schedule.wants(self.iteration)
        self.microbatch = 0
        self.gradient_labels = 0
        self.client.forget()
        self.poll()
        while self._leaves and self._leaves[0][0] < self.iteration:
            self._leaves.popleft()[1].remove()

    def close(self):
        """Takes what the client must know of with it; see disown()."""
        self.disown()
        self._queue.close()

    def disown(self):
        """Ends recording without a word to the client."""
        self.closed = True
        while self._leaves:
            self._leaves.popleft()[1].remove()


# Tests: every tensor goes the way of those on other devices.
ROUTE_ALL = False


def _read_none(sites, *args):
    """In the place of record() and record_all(): reads no tensor."""
    return list(range(len(sites))) if isinstance(sites, list) else False


def _in_checkpoint():
    """Whether this is the first pass of a re-entrant checkpoint, which runs
    without gradients although it belongs to the training."""
    codes = set()
    for name in (
        "torch.utils.checkpoint",
        "megatron.core.tensor_parallel.random",
        "deepspeed.runtime.activation_checkpointing.checkpointing",
    ):
        function = getattr(sys.modules.get(name), "CheckpointFunction", None)
        forward = getattr(function, "forward", None)
        code = getattr(forward, "__code__", None)
        if code is not None:
            codes.add(code)
    frame = sys._getframe(1)
    while frame is not None and codes:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


class Inert:
    """Base of the hooks. A copy or a pickle of a traced model is another
    model: in it their place is taken by a function of the standard library
    that does nothing, so that it can be loaded where tracerd is not."""

    __slots__ = ()

    # keeps torch from warning when a hooked tensor is saved
    __torch_unserializable__ = True

    def __reduce__(self):
        return getattr, (contextlib.nullcontext(), "__exit__")

    def __deepcopy__(self, memo):
        return contextlib.nullcontext().__exit__


class PreHook(Inert):
    """Before a module's forward."""

    __slots__ = ("recorder", "thing")

    def __init__(self, recorder, thing):
        self.recorder = recorder
        self.thing = thing

    def __call__(self, module, args, kwargs):
        if is_compiling():
            return
        recorder = self.recorder
        if recorder.closed or tracing() is not None:
            return
        try:
            recorder.enter(self.thing, args, kwargs)
        except Exception as error:
            recorder.failed(error)


class PostHook(Inert):
    """After a module's forward, also when it raised."""

    __slots__ = ("recorder", "thing")

    def __init__(self, recorder, thing):
        self.recorder = recorder
        self.thing = thing

    def __call__(self, module, args, kwargs, output):
        if is_compiling():
            return
        recorder = self.recorder
        if recorder.closed or tracing() is not None:
            return
        error = None
        if output is None:
            # the caller is handling an exception of this very call
            error = sys.exc_info()[1]
            trace = error.__traceback__ if error is not None else None
            if trace is None or trace.tb_frame is not sys._getframe(1):
                error = None
        try:
            recorder.leave(self.thing, output, error)
        except Exception as error:
            recorder.failed(error)


class GradHook(Inert):
    """On a tensor that went in or came out: its gradient."""

    __slots__ = ("at", "call", "path", "recorder", "slot")

    def __init__(self, recorder, call, slot, at, path):
        self.recorder = recorder
        self.call = call
        self.slot = slot
        self.at = at
        self.path = path

    def __call__(self, grad):
        recorder = self.recorder
        if grad is None or recorder.closed or is_compiling():
            return
        call = self.call
        labels = recorder.gradient_labels
        if self.slot == BACKWARD_OUTPUT:
            # all that flows into the tensor, not this module's share only
            labels |= TOTAL
        else:
            call.task = graph_task()
        try:
            recorder.put(
                call.thing, self.slot, self.at, self.path, call, labels, grad
            )
        except Exception as error:
            recorder.failed(error)


class Arrival:
    """Takes the gradients of a call's inputs, see share.place()."""

    __slots__ = ("call", "recorder")

    def __init__(self, recorder, call):
        self.recorder = recorder
        self.call = call

    def __call__(self, at, path, label, grad):
        recorder = self.recorder
        if grad is None or recorder.closed or is_compiling():
            return
        call = self.call
        try:
            recorder.put(
                call.thing, BACKWARD_OUTPUT, at, path, call,
                recorder.gradient_labels | label, grad,
            )
        except Exception as error:
            recorder.failed(error)


class LeafHook(GradHook):
    """On a leaf: waits for the backward pass of its own call, then goes."""

    __slots__ = ("handle",)

    def __call__(self, grad):
        if self.call.task != graph_task():
            return  # the leaf is used elsewhere too
        super().__call__(grad)
        self.handle.remove()
