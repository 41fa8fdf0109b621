"""Attaches to the models of a script that says nothing of tracing.

A model is found when an optimizer gets its parameters: then it is there, and
no pass of the training has run. See `python -m tracerd run`.
"""

import functools
import gc
import json
import os
import weakref

from .process import warn

_traced = weakref.WeakSet()  # modules of attached models
_count = 0


def watch(optimizer_class):
    """Looks at each optimizer that is made. Once is enough."""
    original = optimizer_class.__init__

    @functools.wraps(original)
    def init(self, *args, **kwargs):
        original(self, *args, **kwargs)
        try:
            _seen(self)
        except Exception as error:
            warn(f"not tracing: {type(error).__name__}: {error}")

    optimizer_class.__init__ = init


def _seen(optimizer):
    global _count
    from .attach import attach

    models = _models(
        {id(p) for g in optimizer.param_groups for p in g["params"]}
    )
    if not models:
        return
    options = json.loads(os.environ.get("TRACERD_AUTO") or "{}")
    _count += 1
    if _count > 1:
        name = options.get("name")
        options["name"] = (f"{name}." if name else "") + f"model{_count}"
    for model in models:
        _traced.update(model.modules())
    attach(models[0] if len(models) == 1 else models, optimizer, **options)


def _models(wanted):
    """The topmost modules that hold parameters with these ids and are not
    traced yet; of two that hold the same the smaller one."""
    from torch.nn import Module

    modules = [m for m in gc.get_objects() if issubclass(type(m), Module)]
    parents = {}
    owners = []
    for module in modules:
        inside = module.__dict__
        for child in (inside.get("_modules") or {}).values():
            if child is not None:
                parents.setdefault(id(child), []).append(module)
        own = (inside.get("_parameters") or {}).values()
        if module not in _traced and any(id(p) in wanted for p in own):
            owners.append(module)
    tops = {}
    for owner in owners:
        for top in _tops(owner, parents):
            tops.setdefault(id(top), (top, set()))[1].add(id(owner))
    found, covered = [], set()
    for top, owned in sorted(
        tops.values(), key=lambda t: (-len(t[1]), _size(t[0]))
    ):
        if not owned & covered:
            found.append(top)
            covered |= owned
    order = {id(m): at for at, m in enumerate(modules)}
    return sorted(found, key=lambda m: order[id(m)])


def _size(module):
    return sum(1 for _ in module.modules())


def _tops(module, parents):
    """The modules above a module that no other holds."""
    tops, left, seen = [], [module], set()
    while left:
        at = left.pop()
        if id(at) in seen:
            continue
        seen.add(id(at))
        above = parents.get(id(at))
        if above:
            left += above
        else:
            tops.append(at)
    return tops
