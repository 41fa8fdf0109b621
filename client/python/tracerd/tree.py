"""The modules of a traced model, as they come and go.

Hooks stand where something is wanted. A module that is put into the model
later (an adapter, a layer made in the first forward pass, a quantized one in
another's place) is seen by torch's hook on the registration of modules; the
model is then walked again before its next forward pass or step. Names and
counts of what was there stay. No module is kept alive.
"""

import contextlib
import threading
import weakref

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module

from . import choice, names
from .hooks import Inert, PostHook, PreHook
from .process import failed, warn

INSIDE = frozenset(("forward", "backward"))


class LookHook(Inert):
    """Before the forward pass of a model: what is new in it?"""

    __slots__ = ("tree",)

    def __init__(self, tree):
        self.tree = tree

    def __call__(self, module, args):
        if is_compiling():
            return
        try:
            self.tree.look()
        except Exception as error:
            failed(self.tree.recorder, error, 0)


class _Place:
    """A module, what stands for it, and the hooks on it."""

    __slots__ = ("handles", "module", "refused", "thing", "wrapper")

    def __init__(self, row):
        self.module = weakref.ref(row.module)
        self.thing = row.thing
        self.wrapper = row.wrapper
        self.refused = False
        self.handles = []

    def clear(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []


class Tree:
    """The modules below one or several roots."""

    def __init__(self, model, options):
        """model: a module, or a list of them. Places no hook yet."""
        self.several = isinstance(model, (list, tuple))
        self._roots = [
            weakref.ref(m) for m in (model if self.several else [model])
        ]
        self._list = torch.nn.ModuleList(model) if self.several else None
        self._options = options
        self.recorder = None
        self._lock = threading.Lock()
        self._places = {}  # id of a living module -> _Place
        self._compiled_told = False
        self._inside_told = False
        self.stale = False
        self._handles = []
        self.owners = []  # (weak module, Object), in module order
        self.turns = 0  # changes when the model has
        self.before_pass = None  # called before a forward pass of a root
        self.rows = self._walk({})

    @property
    def top(self):
        """What was given, as one module; None when it is gone."""
        return self._list if self.several else self._roots[0]()

    def _walk(self, known):
        if self.several:
            living = [root() for root in self._roots]
            self._list = torch.nn.ModuleList(
                m for m in living if m is not None
            )
        top = self.top
        if top is None:
            return []
        rows = names.walk(top, self._options.name, known)
        things = [row.thing for row in rows if not row.wrapper]
        choice.choose(things, self._options)
        return rows

    def place(self, recorder):
        """Puts the hooks in place; until close() they follow the model."""
        self.recorder = recorder
        rows, self.rows = self.rows, None
        # before the hooks that record: a new iteration may begin here
        if self._options.passes & (INSIDE | {"local"}):
            for root in self._roots:
                self._look_at(root())
        self._settle(rows)
        register = getattr(
            torch_module, "register_module_module_registration_hook", None
        )
        if register is not None:
            self._handles.append(register(self._registered))
        if self.several:
            self._list = None  # the models may go

    def _look_at(self, root):
        # a ScriptModule takes none: new modules are seen at the step
        with contextlib.suppress(Exception):
            self._handles.append(
                root.register_forward_pre_hook(LookHook(self))
            )

    # ---- changes ----

    def _registered(self, module, name, submodule):
        """A weak filter, called for any module of the process: ids may be
        those of modules that are gone, which costs one walk too many."""
        if id(module) in self._places:
            self.stale = True
        elif name == "_orig_mod" and self._is_root(submodule):
            self.tell_compiled()

    def _is_root(self, module):
        return any(root() is module for root in self._roots)

    def tell_compiled(self):
        """torch.compile() was called on what is traced already."""
        if self._compiled_told or not self._options.passes & INSIDE:
            return
        self._compiled_told = True
        if self.recorder is not None:
            self.recorder.told_blind()
        warn(
            "the model was compiled after attach(); hooks put on before are "
            "not run in compiled code. Attach to what torch.compile() "
            "returned"
        )

    def look_for_compile(self):
        """Module.compile() leaves its trace in an attribute."""
        if self._compiled_told:
            return
        for root in self._roots:
            root = root()
            if getattr(root, "_compiled_call_impl", None) is not None:
                self.tell_compiled()

    def look(self):
        """Follows the model, if it has changed. Cheap when it has not."""
        if self.recorder is None or self.recorder.closed:
            return
        if self.before_pass is not None:
            self.before_pass()
        elif self.stale:
            self.follow()

    def follow(self):
        with self._lock:
            self.stale = False
            known = {}
            for key, place in list(self._places.items()):
                if place.module() is None:
                    del self._places[key]
                elif not place.wrapper:
                    known[key] = place.thing
            self._settle(self._walk(known))
            if self.several:
                self._list = None
            self.turns += 1

    def _settle(self, rows):
        """Hooks where they belong, and nowhere else."""
        wanted = self._wanted(rows)
        places, owners, refused = {}, [], []
        for row in rows:
            if row.thing is None:
                continue
            key = id(row.module)
            place = self._places.get(key)
            if place is None or place.thing is not row.thing:
                place = _Place(row)  # the old one is cleared below
            places[key] = place
            owners.append((place.module, row.thing))
            if key not in wanted:
                place.clear()
            elif not place.handles and not place.refused:
                self._hook(row.module, place)
                if place.refused:
                    refused.append(row.thing.path or row.thing.name)
        for key, place in self._places.items():
            if places.get(key) is not place:
                place.clear()
        self._places, self.owners = places, owners
        if refused:
            warn(
                "these modules take no hooks (torch.jit.script?) and are "
                "not traced: " + ", ".join(refused[:8])
            )

    def _wanted(self, rows):
        """Ids of the modules that get hooks."""
        passes = self._options.passes
        if not passes & (INSIDE | {"local"}):
            return set()
        wanted, root = set(), None
        compiled = [r.raw for r in rows if names.is_compiled(r.module)]
        for row in rows:
            if row.thing is None or (
                row.wrapper and row.raw not in compiled
            ):
                continue
            if any(_below(row.raw, c) for c in compiled):
                continue  # compiled code runs no hooks put on later
            if root is None:
                root = row.thing
            elif not row.thing.wanted or not passes & INSIDE:
                continue
            # the root gets them also where it is not wanted: they count
            wanted.add(id(row.module))
        if root is not None:
            self.recorder.root = root
        if compiled and not self._inside_told:
            self._inside_told = True
            warn(
                "of a compiled module the inputs, outputs and gradients are "
                "traced, what happens inside is not"
            )
        return wanted

    def _hook(self, module, place):
        recorder = self.recorder
        try:
            place.handles.append(
                module.register_forward_pre_hook(
                    PreHook(recorder, place.thing), with_kwargs=True
                )
            )
            place.handles.append(
                module.register_forward_hook(
                    PostHook(recorder, place.thing),
                    with_kwargs=True,
                    always_call=True,
                )
            )
        except RuntimeError:
            place.clear()
            place.refused = True

    def close(self):
        """Takes all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for place in self._places.values():
            place.clear()
        self._places = {}
        self.before_pass = None


def _below(raw, compiled):
    return raw != compiled and (
        not compiled or raw.startswith(compiled + ".")
    )
