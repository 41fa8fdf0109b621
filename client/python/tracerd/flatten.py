"""Tensors of nested arguments and results, each with its path.

A path is what stands in the names of records: "0", "hidden_states",
"1.cache.key". Only containers whose walk has no side effect are entered;
a generator or an unknown object is left alone.
"""

import dataclasses
from collections import UserDict

from torch import Tensor

MAX_DEPTH = 8
MAX_TENSORS = 1024
MAX_VISITS = 16384


def flatten(value):
    """List of (path, tensor) of a module's result, in stable order.

    A lone tensor has the path "0". None and non-tensors are skipped; they
    take no position.
    """
    if isinstance(value, Tensor):
        return [("0", value)]
    found = []
    _walk(value, "", 0, found, [MAX_VISITS])
    return found


def flatten_call(args, kwargs):
    """The same for the arguments of a call: positional ones by number, then
    the named ones by name."""
    if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        return [("0", args[0])]
    found = []
    budget = [MAX_VISITS]
    _walk(args, "", 0, found, budget)
    if kwargs:
        _walk(kwargs, "", 0, found, budget)
    return found


def _walk(value, path, depth, found, budget):
    for key, item in _items(value):
        budget[0] -= 1
        if budget[0] < 0 or len(found) >= MAX_TENSORS:
            return
        if item is None:
            continue
        where = f"{path}.{key}" if path else str(key)
        if isinstance(item, Tensor):
            found.append((where, item))
        elif depth < MAX_DEPTH and not isinstance(item, _PLAIN):
            _walk(item, where, depth + 1, found, budget)


_PLAIN = (str, bytes, int, float, complex)


def _items(value):
    # dict.items() and tuple.__iter__ go round whatever a subclass does on
    # access, such as computing an entry when it is first asked for
    if isinstance(value, dict):
        return list(dict.items(value))
    if isinstance(value, UserDict):
        return _items(value.data)
    if isinstance(value, tuple):
        names = getattr(type(value), "_fields", None)
        parts = tuple.__iter__(value)
        if isinstance(names, tuple) and len(names) == len(value):
            return list(zip(names, parts, strict=True))
        return enumerate(list(parts))
    if isinstance(value, list):
        return enumerate(list(list.__iter__(value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        slots = (f.name for f in dataclasses.fields(value))
        return [(name, getattr(value, name, None)) for name in slots]
    return ()
