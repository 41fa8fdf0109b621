"""Looking over the shoulders of gradient scalers.

A step that a scaler skips calls no hook of the optimizer, and between
scale() and unscale_() all gradients are scaled. torch has no hooks for that,
so the methods are wrapped while somebody watches.
"""

import functools
import sys

import torch

_watchers = []
_wrapped = []  # (class, name, original, ours)


def watch(watcher):
    """watcher has scales(), unscales(optimizer), scaler_begins(scaler,
    optimizer) and scaler_ended(optimizer), none of which raises."""
    _watchers.append(watcher)
    scaler = getattr(getattr(torch, "amp", None), "GradScaler", None)
    if not _wrapped and scaler is not None:
        for cls in _family(scaler):
            for name, wrap in _WRAPS.items():
                original = vars(cls).get(name)
                if original is not None:
                    ours = wrap(original)
                    setattr(cls, name, ours)
                    _wrapped.append((cls, name, original, ours))


def unwatch(watcher):
    if watcher in _watchers:
        _watchers.remove(watcher)
    if _watchers or sys.is_finalizing():
        return
    for cls, name, original, ours in _wrapped:
        if vars(cls).get(name) is ours:  # nobody else came after us
            setattr(cls, name, original)
    _wrapped.clear()


def _family(cls):
    yield cls
    for below in cls.__subclasses__():
        yield from _family(below)


def _wrap_scale(original):
    @functools.wraps(original)
    def scale(self, *args, **kwargs):
        if self.is_enabled():
            for watcher in list(_watchers):
                watcher.scales()
        return original(self, *args, **kwargs)

    return scale


def _wrap_unscale(original):
    @functools.wraps(original)
    def unscale_(self, optimizer, *args, **kwargs):
        if self.is_enabled():
            for watcher in list(_watchers):
                watcher.unscales(optimizer)
        return original(self, optimizer, *args, **kwargs)

    return unscale_


def _wrap_step(original):
    @functools.wraps(original)
    def step(self, optimizer, *args, **kwargs):
        if not self.is_enabled():
            return original(self, optimizer, *args, **kwargs)
        watchers = list(_watchers)
        for watcher in watchers:
            watcher.scaler_begins(self, optimizer)
        result = original(self, optimizer, *args, **kwargs)
        for watcher in watchers:
            watcher.scaler_ended(optimizer)
        return result

    return step


_WRAPS = {
    "scale": _wrap_scale, "step": _wrap_step, "unscale_": _wrap_unscale
}
