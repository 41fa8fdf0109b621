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
from itertools import chain

import torch
from torch.compiler import is_compiling
from torch.nn.modules import module as torch_module

from . import _tracerd, choice, compiled, hidden, names
from .hooks import Inert, PostHook, PreHook
from .process import failed, warn

INSIDE = frozenset(("forward", "backward"))
NAMED = 8  # of modules in a warning
PLAIN = (PreHook, PostHook)
GRAD = _tracerd.PASSES["grad"] * 4  # slot of Object.sites
# of nn.MultiheadAttention, which takes its weights and never calls it
_NEVER_CALLED = torch.nn.modules.linear.NonDynamicallyQuantizableLinear


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

    __slots__ = (
        "handles", "hidden", "hooks", "module", "refused", "thing", "wrapper"
    )

    def __init__(self, row):
        self.module = weakref.ref(row.module)
        self.thing = row.thing
        self.wrapper = row.wrapper
        self.refused = False
        self.handles = []
        self.hidden = None  # where they are not counted
        self.hooks = None  # the classes of the hooks

    def clear(self):
        for handle in self.handles:
            handle.remove()
        self.handles = []
        if self.hidden is not None:
            self.hidden.remove()
            self.hidden = None


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
        # id of a module -> what torch.compile() put round it later: a weak
        # OptimizedModule and its handles, for each time
        self._shells = {}
        self._inside = None  # inside.Inside, where that was asked for
        self._inside_told = False
        self.stale = False
        self._handles = []
        self._hidden = []  # of roots
        self.owners = []  # (weak module, Object), in module order
        self.turns = 0  # changes when the model has
        self._links = []  # what all places hold, see moved()
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
        if self._options.inside_compile:
            self._inside = _inside(recorder)
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
        if self._options.passes & INSIDE:
            compiled.watch(self)
        if self.several:
            self._list = None  # the models may go

    def _look_at(self, root):
        if compiled.in_place(root):
            return  # its Boundary looks
        # a ScriptModule takes none: new modules are seen at the step
        with contextlib.suppress(Exception):
            if id(root) in hidden.layers([root]):
                self._hidden.append(hidden.Hidden(root))
            self._handles.append(
                root.register_forward_pre_hook(LookHook(self))
            )

    # ---- changes ----

    def _registered(self, module, name, submodule):
        """A weak filter, called for any module of the process: ids may be
        those of modules that are gone, which costs one walk too many."""
        if id(module) in self._places:
            self.stale = True
        elif name == "_orig_mod" and self.recorder is not None:
            try:
                self._wrap(module, submodule)
            except Exception as error:
                failed(self.recorder, error, 0)

    def _wrap(self, shell, module):
        """torch.compile() was called on what is traced already: from now on
        it is seen from outside. Called by itself it is seen as before."""
        between = []
        while names.is_wrapper(module) and id(module) not in self._places:
            inner = next(module.children(), None)
            if inner is None:
                return
            between.append(module)
            module = inner
        place = self._places.get(id(module))
        if (
            place is None or place.module() is not module
            or not self._options.passes & INSIDE or self._inside is not None
        ):
            return
        handles = [shell.register_forward_pre_hook(LookHook(self))]
        handles += self._register(
            shell, compiled.OuterPre(self.recorder, place.thing),
            compiled.OuterPost(self.recorder, place.thing),
        )
        for old in between:
            self._drop_shell(old)
        shells = self._shells.setdefault(id(module), [])
        shells.append((weakref.ref(shell), handles))
        self._tell_boundary()
        self.follow()

    def _drop_shell(self, module):
        """Forgets a shell, and those that are gone."""
        for key, shells in list(self._shells.items()):
            for shell, handles in list(shells):
                if shell() is module or shell() is None:
                    shells.remove((shell, handles))
                    for handle in handles:
                        handle.remove()
            if not shells:
                del self._shells[key]

    def compiled_in_place(self, module):
        """module.compile() was called, or may have been."""
        place = self._places.get(id(module))
        if (
            place is None or place.module() is not module
            or not compiled.is_bare(module)
        ):
            return
        try:
            place.clear()
            self.follow()
        except Exception as error:
            failed(self.recorder, error, 0)

    def look_for_compile(self):
        """Some leave the trace of Module.compile() without calling it. Also
        whether what was compiled before attach() hides what is in it."""
        if not self._options.passes & INSIDE:
            return
        for place in list(self._places.values()):
            module = place.module()
            if module is not None and compiled.is_bare(module):
                self.compiled_in_place(module)
        second = self.recorder.iteration == self._options.start + 2
        if second and self._inside is not None:
            self._inside.look(
                any(
                    compiled.is_compiled(m)
                    for m in (p.module() for p in self._places.values())
                    if m is not None
                )
            )

    def look(self):
        """Follows the model, if it has changed. Cheap when it has not."""
        if self.recorder is None or self.recorder.closed:
            return
        if self.before_pass is not None:
            self.before_pass()
        elif self.stale:
            self.follow()

    def moved(self):
        """Whether somebody wrote to a module's _modules, which calls no hook
        of torch's. Looked at between iterations."""
        return self._links_now() != self._links

    def _links_now(self):
        """Ids of all children, those of one module after the other's."""
        modules = [place.module() for place in self._places.values()]
        return [
            *map(id, chain.from_iterable(
                m._modules.values() for m in modules if m is not None
            ))
        ]

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
        for row in rows:
            # what torch.compile() returned was put into the model
            self._drop_shell(row.module)
        wanted = self._wanted(rows)
        hide = self._inside is None and hidden.layers(r.module for r in rows)
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
            hooks = wanted.get(key)
            if hooks is not place.hooks:
                place.clear()
                place.hooks = hooks
            if hooks and not place.handles and not place.refused:
                self._take_strays(row.module)
                self._hook(row.module, place, hide and key in hide)
                if place.refused:
                    refused.append(row.thing.path or row.thing.name)
        for key, place in self._places.items():
            if places.get(key) is not place:
                place.clear()
        self._places, self.owners = places, owners
        self._links = self._links_now()
        if refused:
            warn(
                "these modules take no hooks (torch.jit.script?) and are "
                "not traced: " + ", ".join(refused[:NAMED])
            )

    def _wanted(self, rows):
        """Classes of hooks by the ids of the modules that get them."""
        passes = self._options.passes
        if not passes & (INSIDE | {"local"}):
            return {}
        wanted, root = {}, None
        outer = [r for r in rows if compiled.is_compiled(r.module)]
        shelled = [r.raw for r in rows if id(r.module) in self._shells]
        classes = self._classes(rows)
        for row in rows:
            if row.thing is None or (row.wrapper and row not in outer):
                continue
            above = [r for r in outer if _below(row.raw, r.raw)]
            # compiled code runs no hooks put on later, but may take along
            # what stands there before
            if above and (
                self._inside is None
                or any(row.thing is r.thing for r in above)
            ):
                continue
            if root is None:
                root = row.thing
            elif not passes & INSIDE or (
                not row.thing.wanted and type(row.module) not in classes
            ):
                continue
            # the root gets them also where it is not wanted: they count
            if self._inside is not None:
                hooks = self._inside.hooks
            elif any(row.raw == s or _below(row.raw, s) for s in shelled):
                hooks = compiled.INNER
            else:
                hooks = PLAIN
            wanted[id(row.module)] = hooks
        if root is not None:
            self.recorder.root = root
        if outer and self._inside is None:
            self._tell_boundary()
        return wanted

    def _classes(self, rows):
        """Classes of which each module gets hooks: a graph that the compiler
        made for one of them may serve the others."""
        if self._inside is None:
            return ()
        return {
            type(r.module) for r in rows
            if r.thing is not None and r.thing.wanted
        }

    def _tell_boundary(self):
        if self._inside_told:
            return
        self._inside_told = True
        warn(
            "of a compiled module the inputs, outputs and gradients are "
            "traced, what happens inside is not; inside_compile=True "
            "traces that, too"
        )

    def _take_strays(self, module):
        """Takes away hooks that somebody took along from another module."""
        for name in hidden.DICTS:
            hooks = module.__dict__.get(name) or {}
            for key, hook in list(hooks.items()):
                mine = getattr(hook, "recorder", None) is self.recorder
                if isinstance(hook, Inert) and mine:
                    del hooks[key]

    def _hook(self, module, place, hide=False):
        recorder, thing = self.recorder, place.thing
        pre, post = (hook(recorder, thing) for hook in place.hooks)
        if hide:
            place.hidden = hidden.Hidden(module)
        try:
            if compiled.in_place(module):
                look = LookHook(self) if thing is recorder.root else None
                place.handles.append(
                    compiled.Boundary(module, pre, post, look)
                )
            else:
                place.handles += self._register(module, pre, post)
            if self._inside is not None:
                place.handles += self._inside.number(
                    module, thing, place.handles
                )
        except RuntimeError:
            place.clear()
            place.refused = True

    def _register(self, module, pre, post):
        handles = [module.register_forward_pre_hook(pre, with_kwargs=True)]
        try:
            handles.append(
                module.register_forward_hook(
                    post, with_kwargs=True, always_call=True
                )
            )
        except RuntimeError:
            handles[0].remove()
            raise
        return handles

    def tell_uncalled(self):
        """Names modules whose parameters got gradients, although none of
        their hooks ever ran."""
        recorder = self.recorder
        if not (recorder and recorder.calls and self._options.passes & INSIDE):
            return
        if (recorder.client.counters().get("lost") or {}).get("error"):
            return  # hooks ran that came to nothing, and it was said
        found = []
        for place in self._places.values():
            module, thing = place.module(), place.thing
            if (
                module is not None and place.handles and thing.wanted
                and place.hooks is not compiled.INNER
                and type(module) is not _NEVER_CALLED
                and _can_be_called(module)
                and any(slot == GRAD for slot, _, _ in thing.sites)
                and next(thing.count) == 1
            ):
                found.append(thing.path or thing.name)
        if found:
            more = len(found) - NAMED
            warn(
                "of these modules no call was seen, but they got gradients "
                "(compiled before, or used by forward() or their weights): "
                + ", ".join(found[:NAMED])
                + (f" and {more} more" if more > 0 else "")
            )

    def close(self):
        """Takes all hooks away."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        compiled.unwatch(self)
        for shells in self._shells.values():
            for handle in chain.from_iterable(h for _, h in shells):
                handle.remove()
        self._shells = {}
        for place in self._places.values():
            place.clear()
        for where in self._hidden:
            where.remove()
        self._hidden = []
        self._places = {}
        self.before_pass = None


def _can_be_called(module):
    """Not so nn.ParameterList."""
    forward = getattr(module.forward, "__func__", None)
    return forward is not torch.nn.Module.forward


def _below(raw, outer):
    return raw != outer and (not outer or raw.startswith(outer + "."))


def _inside(recorder):
    """inside.Inside; None, and it is told, where torch is too old."""
    try:
        from .inside import Inside

        return Inside(recorder)
    except (ImportError, AttributeError) as error:
        warn(f"this torch has no inside_compile ({error})")
        return None
