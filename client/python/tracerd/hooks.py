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
from collections import OrderedDict, deque

import torch
from torch import is_grad_enabled
from torch.compiler import is_compiling

from . import _tracerd, share
from .flatten import flatten, flatten_call  # noqa: F401
from .operators import Queue
from .process import of_a_signal, warn
from .recompute import Index, memory_of, repetition  # noqa: F401
from .tensors import LABEL, is_capturing, resolve

FORWARD = _tracerd.PASSES["forward"]
BACKWARD = _tracerd.PASSES["backward"]
INPUT, OUTPUT = 1, 2

# A slot of Object.sites: pass and io in one number.
FORWARD_OUTPUT = FORWARD * 4 + OUTPUT

RECOMPUTE = LABEL["recompute"]
RAISED = LABEL["raised"]

MAX_NOTES = 1024
MAX_LEAVES = 4096
MIN_LOG = 4096


def _functorch_level():
    functorch = getattr(torch._C, "_functorch", None)
    return getattr(functorch, "peek_interpreter_stack", lambda: None)


class Recorder(_tracerd.Recorder):
    """What the hooks of one attach() share. Any thread may use it.

    The base has what the hooks themselves need, and the log of calls."""

    def __init__(
        self, connection, samples, passes, schedule, start, things,
        input_gradients=True,
    ):
        self.connection = connection
        self.client = connection.client
        self.record = self.client.record
        self.record_all = self.client.record_all
        if ROUTE_ALL:
            self.record = self.record_all = _read_none
        else:
            self.direct(self.client)
        self.samples = samples
        self._devices = {}  # index of a CUDA device -> its half is open
        self._queue = Queue(self.client, connection.figures.sampling)
        self.forward = "forward" in passes
        self.backward = "backward" in passes
        self.input_gradients = input_gradients
        self.schedule = schedule
        self.iteration = start
        self.active = bool(schedule.wants(start))
        self.root = None  # its calls are the micro-batches
        self.microbatch = 0  # the latest one
        self.gradient_labels = 0  # of gradients before they are unscaled
        self.calls = 0
        self._blind_at = start + 2 if self.forward or self.backward else 0
        self.closed = False
        self._told = False
        self._lock = threading.Lock()
        room = max(MIN_LOG, 16 * len(things))
        self.keep_calls(room)
        self._index = Index(room)
        self._notes = {"": 0}
        self._leaves = deque()

    # ---- what the hooks ask for now and then ----

    def _begin_pass(self, thing):
        """The micro-batch of a call from outside, in a training; None where
        it is no part of one."""
        if _of_shapes():
            return None
        with self._lock:
            if thing.round_iteration != self.iteration:
                thing.round_iteration = self.iteration
                thing.rounds = 0
            thing.rounds += 1
            self.microbatch = microbatch = thing.rounds
        self.connection.look()
        self.poll()
        return microbatch

    def _repeat(self, thing, address, before, inside):
        """The Call of a repetition, or None where it is not known which call
        it repeats. address, before, inside: see Index.find()."""
        first = self._index.find(self, thing, address, before, inside)
        if first is None:
            return None
        call = repetition(first, first.labels | RECOMPUTE)
        # What ran under no_grad the first time has no hooks yet; anything
        # else has them, on tensors that may be these very ones.
        call.hooked = not first.hooked
        return call

    def _is_inside(self, module):
        """Whether this thread is in another call of the module."""
        code = torch.nn.Module._call_impl.__code__
        frame, found = sys._getframe(1), 0
        while frame is not None:
            if frame.f_code is code and frame.f_locals.get("self") is module:
                found += 1
            frame = frame.f_back
        return found > 1

    def _in_checkpoint(self):
        return _in_checkpoint()

    def _keep_leaf(self, handle):
        self._leaves.append((self.iteration, handle))
        while len(self._leaves) > MAX_LEAVES:
            self._leaves.popleft()[1].remove()

    def _put_raised(self, call, error):
        site = self.place(call.thing, FORWARD_OUTPUT, 0, "")
        self.client.record_shape(
            site, call.step, call.iteration, call.microbatch,
            call.labels | RAISED, self.note(f"raised={type(error).__name__}"),
            "opaque", (0,),
        )

    # ---- records ----

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

    def place(self, thing, slot, at, path):
        """The number of the place a record is from."""
        site = thing.sites.get((slot, at, path))
        return self.site(thing, slot, at, path) if site is None else site

    def site(self, thing, slot, at, path):
        try:
            site = self.client.site(
                slot >> 2, slot & 3, at, thing.number, thing.class_name,
                _writable(thing.path), _writable(path),
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
        """Counts what could not be recorded; tells of the first. Raises what
        a signal handler of the program raised within our code."""
        if of_a_signal(error):
            raise error
        self.told_blind()
        if lost:
            self.client.lost(lost)
        if not self._told and not self.closed:
            self._told = True
            warn(
                f"a record could not be made ({type(error).__name__}: "
                f"{error}). Training goes on; such losses are counted"
            )

    def missed(self, number):
        """Hooks that had no room on the stack to do anything."""
        self.failed(RecursionError("hardly any stack was left"), number)

    def told_blind(self):
        """Why no forward pass might be seen has been told."""
        self._blind_at = 0

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


def _writable(text):
    """A path as text that can be stored: keys may be any strings."""
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return text.replace("\0", "\\0")


def _of_shapes():
    """Whether this is a pass by which a pipeline finds out shapes, before
    the training's first."""
    stage = sys.modules.get("torch.distributed.pipelining.stage")
    stage = getattr(stage, "PipelineStage", None)
    codes = {
        getattr(getattr(stage, name, None), "__code__", None)
        for name in ("_forward_metadata_inference", "_shape_inference")
    } - {None}
    frame = sys._getframe(1)
    while frame is not None and codes:
        if frame.f_code in codes:
            return True
        frame = frame.f_back
    return False


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


def _inert():
    return contextlib.nullcontext().__exit__


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
        return _inert()


def _raised(frame=None):
    """What the call raised of which a hook is called now without a result,
    or None. frame: the one that calls the hook."""
    error = sys.exc_info()[1]
    trace = error.__traceback__ if error is not None else None
    if trace is None or trace.tb_frame is not (frame or sys._getframe(1)):
        return None
    return error


# Each of these is called in C. What __call__ says is the same in Python, for
# Dynamo to see that there is nothing to compile, and for classes derived.


class PreHook(Inert, _tracerd.Entry):
    """Before a module's forward."""

    __slots__ = ()


def _before(self, module, args, kwargs=None):
    try:
        if is_compiling() or kwargs is None:
            return
        self.enter(module, args, kwargs)
    except RecursionError:
        self.missed += 1  # no call would do


class PostHook(Inert, _tracerd.Exit):
    """After a module's forward, also when it raised."""

    __slots__ = ()


def _after(self, module, args, kwargs, *output):
    try:
        if is_compiling() or not output:
            return
        error = None if output[0] is not None else _raised(sys._getframe(1))
        self.leave(output[0], error)
    except RecursionError:
        self.missed += 1


class GradHook(_tracerd.GradHook):
    """On a tensor or a node of the graph; made in C."""

    __slots__ = ()


def _arrived(self, *gradients):
    try:
        if is_compiling():
            return  # compiled autograd, which cannot look into see()
        self.see(*gradients)
    except RecursionError:
        self.gate.missed += 1


_tracerd.show_call(PreHook, _before)
_tracerd.show_call(PostHook, _after)
_tracerd.show_call(GradHook, _arrived)


def _flags():
    """Where is_compiling() finds its flag, if it does nothing but that."""
    code = getattr(is_compiling, "__code__", None)
    if "_is_compiling_flag" in getattr(code, "co_names", ()):
        return is_compiling.__globals__
    return None


def _shares_dict():
    """Whether torch itself puts the hooks of a tensor in a dict that the
    tensor's node looks into; see grads.c."""
    code = getattr(torch.Tensor.register_hook, "__code__", None)
    names = getattr(code, "co_names", ())
    return "_backward_hooks" in names and "_register_hook_dict" in names


_tracerd.hooks_setup(
    {
        "Tensor": torch.Tensor,
        "Parameter": torch.nn.Parameter,
        "OrderedDict": OrderedDict,
        "GradHook": GradHook,
        "last": getattr(torch._C._functions, "AccumulateGrad", None),
        "graph_task": torch._C._current_graph_task_id,
        "is_grad_enabled": is_grad_enabled,
        "transform": _functorch_level(),
        "tracing": torch._C._get_tracing_state,
        "modes": torch._C._len_torch_function_stack,
        "unseen": torch._C.DisableTorchFunction,
        "is_compiling": is_compiling,
        "compiler": _flags(),
        "raised": _raised,
        "several": share.several,
        "inert": _inert,
        "globals": globals(),
        "shared": _shares_dict(),
    }
)
