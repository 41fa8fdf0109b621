"""Stand-ins for the client, and an independent recorder."""

import dataclasses
import weakref
from collections import UserDict

import torch
from torch import nn

import tracerd
from tracerd import _tracerd

PASS = {number: name for name, number in _tracerd.PASSES.items()}
IO = ("", "input", "output")


class Record(dict):
    """Fields as `tracectl -o json` has them, by attribute too."""

    __getattr__ = dict.__getitem__


class Client:
    """Answers like _tracerd.Client and keeps the records in a list."""

    def __init__(self, records, *opened_with):
        self.records = records
        self.opened_with = opened_with
        self.sites = [None]
        self.notes = [""]
        self.lost_n = 0

    def site(self, *site):
        self.sites.append(site)
        return len(self.sites) - 1

    def note(self, text):
        self.notes.append(text)
        return len(self.notes) - 1

    def _keep(self, head, figures, shape):
        site, step, iteration, microbatch, labels, note = head
        pass_, io, position, number, class_name, module, path = self.sites[
            site
        ]
        bits = _tracerd.LABEL_BITS.items()
        record = Record(figures or {})
        record.update(
            {
                "pass": PASS[pass_],
                "object": f"{class_name}-{number}" if class_name else "",
                "module": module,
                "step": step,
                "iteration": iteration,
                "microbatch": microbatch,
                "io": IO[io],
                "position": position,
                "path": path,
                "shape": list(shape),
                "labels": sorted(name for name, bit in bits if labels & bit),
                "note": self.notes[note],
            }
        )
        self.records.append(record)
        return True

    def record(self, *args):
        tensor, k = args[6:]
        figures = _tracerd.stats(tensor, k)
        if figures is None:
            return False
        return self._keep(args[:6], figures, figures["shape"])

    record_once = record

    def record_all(self, *args):
        sites, step, iteration, microbatch, labels, tensors, k, _ = args
        odd = [
            at
            for at, (_, tensor) in enumerate(tensors)
            if not self.record(
                sites[at], step, iteration, microbatch, labels, 0, tensor, k
            )
        ]
        return odd or None

    def record_as(self, *args):
        tensor, k, shape = args[6:]
        figures = _tracerd.stats(tensor, k)
        if figures is None:
            return False
        return self._keep(args[:6], figures, shape)

    def record_shape(self, *args):
        dtype, shape = args[6:]
        return self._keep(args[:6], {"dtype": dtype}, shape)

    def record_figures(self, *args):
        dtype, shape, figures, samples = args[6:]
        figures = {"dtype": dtype, "figures": figures, "bits": samples}
        return self._keep(args[:6], figures, shape)

    def open_device(self, index, k):
        return False

    def watch(self, function):
        pass

    def forget(self):
        pass

    def saved(self):
        return 0, 0

    def lost(self, n, cause="error"):
        self.lost_n += n

    def flush(self, timeout_ms):
        return 0

    def counters(self):
        n = len(self.records)
        return {
            "connects": 1, "connected": True, "submitted": n, "committed": n
        }

    def run_name(self):
        return self.opened_with[0]

    def close(self):
        pass


def tensors_of(value):
    """All tensors of nested containers; written apart from the product."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_of(item)
    elif isinstance(value, UserDict):
        yield from tensors_of(value.data)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from tensors_of(getattr(value, field.name))


class Witness:
    """Sees what a tracer must see, by hooks of its own.

    events: (pass, object, step, io, shape, copy of the tensor). Put it on
    the model before the tracer, so that both see the same moments.
    """

    def __init__(self, model):
        self.events = []
        self.steps = weakref.WeakKeyDictionary()
        self.names = weakref.WeakKeyDictionary()
        numbers = {}
        for module in model.modules():
            class_name = type(module).__name__
            numbers[class_name] = numbers.get(class_name, 0) + 1
            self.names[module] = f"{class_name}-{numbers[class_name]}"
            self.steps[module] = 0
            module.register_forward_pre_hook(self._pre, with_kwargs=True)
            module.register_forward_hook(self._post, with_kwargs=True)

    def _see(self, kind, module, step, io, tensor):
        tensor = tensor.detach().clone()
        self.events.append(
            (kind, self.names[module], step, io, list(tensor.shape), tensor)
        )

    def _pre(self, module, args, kwargs):
        self.steps[module] += 1
        self._call(module, "input", "output", (args, kwargs))

    def _post(self, module, args, kwargs, result):
        self._call(module, "output", "input", result)

    def _call(self, module, io, gradient_io, values):
        step = self.steps[module]
        seen = []
        for tensor in tensors_of(values):
            self._see("forward", module, step, io, tensor)
            if not tensor.requires_grad or any(tensor is t for t in seen):
                continue
            seen.append(tensor)
            tensor.register_hook(
                lambda g: self._see("backward", module, step, gradient_io, g)
            )

    def keys(self):
        return sorted(e[:5] for e in self.events)


def keys_of(records):
    """The records of forward and backward, as Witness.keys() has them."""
    return sorted(
        (r["pass"], r["object"], r["step"], r["io"], r["shape"])
        for r in records
        if r["pass"] in ("forward", "backward")
        and "recompute" not in r["labels"]
    )


def pick(records, **wanted):
    return [
        r
        for r in records
        if all(r["pass" if k == "pass_" else k] == v for k, v in wanted.items())
    ]


def traced(model, run, **options):
    """Attaches, runs and closes; what a Witness saw."""
    witness = Witness(model)
    with tracerd.attach(model, **options):
        run(model)
    return witness


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.act = nn.ReLU()
        self.b = nn.Linear(2, 2)

    def forward(self, x):
        return self.act(self.b(self.act(self.a(x))))


def model_of_layers():
    return nn.ModuleDict(
        {"enc": nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
         "head": nn.Linear(2, 1)}
    )


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = model_of_layers()

    def forward(self, x):
        return self.parts["head"](self.parts["enc"](x))


def train(model, n, trace):
    for _ in range(n):
        model(torch.ones(1, 2)).sum().backward()
        trace.step()
