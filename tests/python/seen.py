"""Trainings seen twice: by tracerd and by a recorder that has plain torch.

A look() runs a training three times from the same state: as it is, with the
recorder, and traced by a real daemon. The first and the last must compute the
same bits; the records of the last must be what the recorder saw, call by call
and figure by figure.
"""

import contextlib
import dataclasses
import itertools
import math
import sys
import threading
import warnings
import weakref
from collections import Counter, UserDict

import numpy as np
import pytest
import torch
from torch import nn

import tracerd

runs = itertools.count(1)
graph_task = torch._C._current_graph_task_id
WIDE = {  # what numpy does not know -> what holds all of its values
    torch.bfloat16: torch.float32,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}


# ---- values ----


def bits(value):
    """All there is to a result: types, and the bytes of the tensors."""
    if isinstance(value, torch.Tensor):
        t = value.detach()
        if t.layout is torch.sparse_coo:
            t = t.coalesce()
            return "coo", tuple(t.shape), bits(t.indices()), bits(t.values())
        raw = t.contiguous().reshape(-1).view(torch.uint8)
        return str(t.dtype), tuple(t.shape), raw.numpy().tobytes()
    if isinstance(value, dict):
        items = [(k, bits(v)) for k, v in value.items()]
        return type(value).__name__, items
    if isinstance(value, (list, tuple)):
        return type(value).__name__, [bits(v) for v in value]
    if dataclasses.is_dataclass(value):
        names = [f.name for f in dataclasses.fields(value)]
        return type(value).__name__, [bits(getattr(value, n)) for n in names]
    return repr(value)


def tensors_of(value):
    """(path, tensor) of nested containers, written apart from the product."""
    if isinstance(value, torch.Tensor):
        return [("0", value)]
    found = []

    def walk(path, value):
        if isinstance(value, torch.Tensor):
            found.append((path, value))
        else:
            for key, item in parts(value):
                walk(f"{path}.{key}" if path else str(key), item)

    def parts(value):
        if isinstance(value, UserDict):
            return value.data.items()
        if isinstance(value, dict):
            return value.items()
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return zip(value._fields, value, strict=True)
        if isinstance(value, (list, tuple)):
            return enumerate(value)
        if dataclasses.is_dataclass(value):
            return [
                (f.name, getattr(value, f.name))
                for f in dataclasses.fields(value)
            ]
        return ()

    walk("", value)
    return found


def figures_agree(record, tensor):
    """The figures of a record with numpy's of the tensor in fp64."""
    t = tensor.detach().to(WIDE.get(tensor.dtype, tensor.dtype))
    array = t.contiguous().numpy().reshape(-1).astype(np.float64)
    assert record.shape == list(tensor.shape)
    assert record.dtype == str(tensor.dtype).removeprefix("torch.")
    assert record.n == array.size
    if not array.size:
        assert record.max is None
        return
    assert record.nan == np.isnan(array).sum()
    assert record.pinf == np.isposinf(array).sum()
    assert record.ninf == np.isneginf(array).sum()
    assert record.zero == (array == 0).sum()
    places = np.linspace(
        0, array.size - 1, min(len(record.samples), array.size), dtype=int
    )
    np.testing.assert_array_equal(record.samples, array[places])
    if np.isnan(array).any():
        assert math.isnan(record.max) and math.isnan(record.mean)
        return
    assert (record.max, record.min) == (array.max(), array.min())
    if not np.isfinite(array).all():
        return
    assert record.absmax == np.abs(array).max()
    # exact to the last digits up to 65,536 elements
    near = 1e-12 if array.size <= 1 << 16 else 1e-7
    scale = near * max(np.abs(array).max(), 1e-300)
    for name, right in (
        ("mean", math.fsum(array) / array.size),
        ("std", array.std()),
        ("l2", math.sqrt(math.fsum(array * array))),
    ):
        assert record[name] == pytest.approx(right, rel=near, abs=scale), name


# ---- the recorder ----


@dataclasses.dataclass
class Event:
    kind: str  # forward, recompute, backward, grad
    object: str
    step: int
    io: str
    path: str
    tensor: object  # a copy; None where forward raised
    exact: bool = False  # a share, which a hook on a tensor does not see

    def key(self):
        if self.tensor is None:
            return self.kind, self.object, self.step, self.io, "raised"
        value = "share" if self.exact else hash_of(self.tensor)
        return (
            self.kind, self.object, self.step, self.io, self.path,
            tuple(self.tensor.shape), value,
        )


def hash_of(tensor):
    return tracerd.stats(tensor)["hash"]


class _Call:
    def __init__(self, module, step, again):
        self.module = module
        self.step = step
        self.again = again
        self.hooked = torch.is_grad_enabled()
        self.inputs = []
        self.task = None


class Recorder:
    """Sees what tracerd must see, by hooks of its own on module and
    tensor."""

    def __init__(self, model, optimizer=None):
        self.events = []
        self._names = weakref.WeakKeyDictionary()
        self._steps = weakref.WeakKeyDictionary()
        self._calls = {}  # module -> its first calls
        self._here = threading.local()
        self._lock = threading.Lock()
        self._model = model
        self._iteration = 0
        numbers = Counter()
        for module in model.modules():
            name = type(module).__name__
            numbers[name] += 1
            self._names[module] = f"{name}-{numbers[name]}"
            self._steps[module] = itertools.count(1)
            with contextlib.suppress(RuntimeError):  # of torch.jit.script
                module.register_forward_pre_hook(self._pre, with_kwargs=True)
                module.register_forward_hook(
                    self._post, with_kwargs=True, always_call=True
                )
        if optimizer is not None:
            optimizer.register_step_pre_hook(self._grads)

    def _see(self, kind, call, io, path, tensor, exact=False):
        if tensor is not None:
            tensor = tensor.detach().clone()
        name = "" if kind == "grad" else self._names[call.module]
        self.events.append(
            Event(kind, name, call.step, io, path, tensor, exact)
        )

    def _stack(self):
        if not hasattr(self._here, "stack"):
            self._here.stack = []
        return self._here.stack

    def _pre(self, module, args, kwargs):
        inputs = tensors_of(args) + tensors_of(kwargs)
        first = None
        again = graph_task() != -1
        if again:
            first = self._first(module, inputs)
            call = _Call(module, first.step, True)
            call.hooked = call.hooked and not first.hooked
        else:
            call = _Call(module, next(self._steps[module]), False)
            call.inputs = [hash_of(t) for _, t in inputs]
            self._calls.setdefault(module, []).append(call)
        self._stack().append(call)
        for path, t in inputs:
            self._see("recompute" if again else "forward", call, "input",
                      path, t)
        leaf = not any(True for _ in module.children())
        if call.hooked:
            self._watch(call, "output", inputs, leaf)

    def _first(self, module, inputs):
        """The call that has had these inputs."""
        hashes = [hash_of(t) for _, t in inputs]
        for call in self._calls[module]:
            if call.inputs == hashes:
                return call
        raise AssertionError("recomputed, but never computed")

    def _post(self, module, args, kwargs, result):
        stack = self._stack()
        call = stack.pop()
        while call.module is not module:
            call = stack.pop()
        kind = "recompute" if call.again else "forward"
        if result is None and sys.exc_info()[1] is not None:
            if not call.again:
                self._see(kind, call, "output", "", None)
            return
        outputs = tensors_of(result)
        for path, t in outputs:
            self._see(kind, call, "output", path, t)
        if call.hooked:
            self._watch(call, "input", outputs, False)

    def _watch(self, call, io, tensors, leaf):
        seen = []
        for path, tensor in tensors:
            if not tensor.requires_grad or any(tensor is t for t in seen):
                continue
            seen.append(tensor)
            if tensor.is_leaf and (
                io == "input" or isinstance(tensor, nn.Parameter)
            ):
                continue
            exact = leaf and not tensor.is_leaf
            tensor.register_hook(
                lambda g, p=path, e=exact, f=tensor.is_leaf: self._grad(
                    call, io, p, g, e, f
                )
            )

    def _grad(self, call, io, path, grad, exact, fixed):
        if grad is None:
            return
        if io == "input":
            call.task = graph_task()
        elif fixed and call.task != graph_task():
            return  # a leaf, used elsewhere too
        self._see("backward", call, io, path, grad, exact)

    def _grads(self, optimizer, args, kwargs):
        self._iteration += 1
        call = _Call(self._model, self._iteration, False)
        for path, p in self._model.named_parameters():
            if p.grad is not None:
                self._see("grad", call, "", path, p.grad)


# ---- looking ----


def key_of(record):
    """As Event.key() has it."""
    kind = record["pass"]
    if "recompute" in record.labels and kind == "forward":
        kind = "recompute"
    if "raised" in record.labels:
        return kind, record.object, record.step, record.io, "raised"
    exact = "exact" in record.labels
    return (
        kind, "" if kind == "grad" else record.object, record.step,
        record.io or "", record.path, tuple(record.shape),
        "share" if exact else record.hash,
    )


def compare(records, events):
    """Each event has its record and each record its event, and the figures
    are those of plain torch."""
    records = [r for r in records if r["pass"] != "user"]
    left = {}
    for r in records:
        left.setdefault(key_of(r), []).append(r)
    missing = []
    for e in events:
        key = e.key()
        # a share that is not to be told is the total, and says so
        keys = [key, (*key[:-1], hash_of(e.tensor))] if e.exact else [key]
        found = next((k for k in keys if left.get(k)), None)
        if found is None:
            missing.append(key)
            continue
        record = left[found].pop()
        if e.tensor is not None and found[-1] != "share":
            figures_agree(record, e.tensor)
    more = [k for k, rs in left.items() for _ in rs]
    assert not missing and not more, f"missing {missing}\nmore {more}"


class Look:
    """Runs trainings at one daemon."""

    def __init__(self, daemon, renumber):
        self.daemon = daemon
        self._renumber = renumber

    @contextlib.contextmanager
    def trace(self, model, optimizer=None, warns=None, **options):
        """A traced with-block; the Trace has `records` afterwards. Fails on
        any loss, and on warnings unless one (a text) is expected; with
        warns=any one warning may be, and losses that it tells of."""
        run = f"run{next(runs)}"
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            t = tracerd.attach(model, optimizer, run=run, **options)
            try:
                yield t
                assert t.flush(30), t.counters
                lost = t.counters.get("lost", {})
            finally:
                t.close()
        ours = [str(w.message) for w in told if "tracerd" in str(w.message)]
        if warns is any:
            assert len(ours) <= 1 and bool(ours) >= bool(lost), (lost, ours)
            assert set(lost) <= {"error"}, (lost, ours)
        else:
            assert lost == {}, (lost, ours)
        if warns is any:
            pass
        elif warns is None:
            assert ours == []
        else:
            assert len(ours) == 1 and warns in ours[0], ours
        t.records = sorted(self.daemon.query(run), key=lambda r: r.seq)

    def __call__(self, build, train, see=True, warns=None, **options):
        """The records of train(model, optimizer), see the head of the file.

        see=False: what they must be is said by the test."""
        plain = self._run(build, train)
        events = []
        if see:
            seen = self._run(build, train, events=events)
            assert seen == plain, "the recorder disturbs the training"
        records = []
        self._renumber()
        traced = self._run(
            build, train, records=records, warns=warns, options=options
        )
        assert traced == plain, "a traced training computes something else"
        if see:
            compare(records, events)
        return records

    def _run(self, build, train, events=None, records=None, warns=None,
             options=None):
        torch.manual_seed(7)
        model = build()
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = None
        if parameters:
            optimizer = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        torch.manual_seed(11)
        with warnings.catch_warnings(), contextlib.ExitStack() as stack:
            warnings.filterwarnings("ignore", message="(?!tracerd)")
            if events is not None:
                events.append(Recorder(model, optimizer))
            if records is not None:
                t = stack.enter_context(
                    self.trace(model, optimizer, warns=warns, **options)
                )
            result = train(model, optimizer)
        if events is not None:
            events[:] = events[0].events
        if records is not None:
            records[:] = t.records
        return (
            bits(result),
            bits(dict(model.state_dict())),
            bits([p.grad for p in model.parameters()]),
            bits(torch.get_rng_state()),
        )


def steps(model, optimizer, inputs, loss=None):
    """A usual loop; the losses."""
    losses = []
    for x in inputs:
        y = model(x)
        value = loss(y) if loss else y.pow(2).sum()
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


def batches(n=3, *shape):
    """Inputs that are all different."""
    return [torch.randn(*(shape or (3, 2))) for _ in range(n)]
