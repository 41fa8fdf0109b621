"""The boundary of what torch.compile() compiles.

Compiled code runs no hooks that are put on later, and those put on before
are compiled away. What goes in and what comes out is seen from outside: on
the module that torch.compile() returned, and round the call of one that was
compiled in place by its own compile().
"""

import functools
import sys
import threading
import weakref

import torch
from torch.compiler import is_compiling

from . import names
from .hooks import PostHook, PreHook, _raised

CALL = "_compiled_call_impl"  # what Module.compile() leaves


def in_place(module):
    """Whether Module.compile() was called on it."""
    return module.__dict__.get(CALL) is not None


def is_bare(module):
    """Whether it was, and no Boundary is round its call."""
    call = module.__dict__.get(CALL)
    return call is not None and not isinstance(call, Boundary)


def is_compiled(module):
    return names.is_compiled(module) or in_place(module)


def finish(hook, output, caller):
    """What a PostHook does, in a class derived from it. caller: the frame
    that called the hook."""
    error = None
    if output is None:
        # the caller is handling an exception of this very call
        error = _raised(caller)
    hook.leave(output, error)


class _Mine(threading.local):
    depth = 0


_mine = _Mine()


def _finish(hook, output, caller):
    try:
        finish(hook, output, caller)
    except RecursionError:
        hook.missed += 1


class OuterPre(PreHook):
    """Before the module that torch.compile() returned, where the one in it
    was traced before."""

    __slots__ = ()

    def __call__(self, module, args, kwargs):
        if not is_compiling():
            _mine.depth += 1
            PreHook.__call__(self, module, args, kwargs)


class OuterPost(PostHook):
    __slots__ = ()

    def __call__(self, module, args, kwargs, output):
        if not is_compiling():
            _mine.depth -= 1
            _finish(self, output, sys._getframe(1))


class InnerPre(PreHook):
    """On modules within it, which may be called by themselves, too: silent
    where the call came through the other."""

    __slots__ = ()

    def __call__(self, module, args, kwargs):
        if not is_compiling() and not _mine.depth:
            PreHook.__call__(self, module, args, kwargs)


class InnerPost(PostHook):
    __slots__ = ()

    def __call__(self, module, args, kwargs, output):
        if not is_compiling() and not _mine.depth:
            _finish(self, output, sys._getframe(1))


INNER = (InnerPre, InnerPost)


class Boundary:
    """In the place of what Module.compile() left: the same call, seen.

    A copy or a pickle of the module has neither."""

    def __init__(self, module, pre, post, look):
        """pre, post: hooks; look: called before each pass, or None."""
        self.module = module
        self.call = module.__dict__[CALL]
        self.pre = pre
        self.post = post
        self.look = look
        module.__dict__[CALL] = self

    def __call__(self, *args, **kwargs):
        if is_compiling():  # it is within what another call compiles
            self.pre(self.module, args, kwargs)
            result = self.call(*args, **kwargs)
            self.post(self.module, args, kwargs, result)
            return result
        if self.look is not None:
            self.look(self.module, args)
        self.pre(self.module, args, kwargs)
        result = None
        try:
            result = self.call(*args, **kwargs)
        finally:
            # here, as the hook looks for the error of the frame it is in
            self.post(self.module, args, kwargs, result)
        return result

    def remove(self):
        if self.module.__dict__.get(CALL) is self:
            self.module.__dict__[CALL] = self.call


# ---- Module.compile() called later ----

_told = weakref.WeakSet()  # trees
_original = None


def watch(tree):
    """Tells a tree of modules that are compiled in place from now on, by
    tree.compiled_in_place(module)."""
    global _original
    _told.add(tree)
    if _original is not None:
        return
    original = torch.nn.Module.compile

    @functools.wraps(original)
    def compile(self, *args, **kwargs):
        result = original(self, *args, **kwargs)
        for tree in list(_told):
            tree.compiled_in_place(self)
        return result

    _original = original
    torch.nn.Module.compile = compile


def unwatch(tree):
    global _original
    _told.discard(tree)
    if not _told and _original is not None:
        if getattr(torch.nn.Module.compile, "__wrapped__", None) is _original:
            torch.nn.Module.compile = _original
            _original = None
