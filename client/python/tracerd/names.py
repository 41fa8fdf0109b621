"""What the objects of a model are called.

An object is `Class-n`, the n-th instance of the class that this process
attached, in the order of model.modules(). Wrappers (DDP, FSDP, a compiled
module) are no objects, and their parts of a path are left out, so that the
same layer has the same path with and without them.
"""

import contextlib
import difflib
import itertools
import threading
import weakref
from collections import defaultdict
from fnmatch import fnmatchcase
from typing import NamedTuple

WRAPPER_PARTS = frozenset(
    ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
)

# (class, top of its module's name): the classes that only pass a call on
WRAPPERS = frozenset(
    (
        ("DistributedDataParallel", "torch"),
        ("DistributedDataParallel", "megatron"),
        ("DataParallel", "torch"),
        ("FullyShardedDataParallel", "torch"),
        ("OptimizedModule", "torch"),
        ("CheckpointWrapper", "torch"),
        ("OffloadWrapper", "torch"),
        ("DeepSpeedEngine", "deepspeed"),
        ("Float16Module", "megatron"),
    )
)

_lock = threading.Lock()
_next_number = defaultdict(lambda: itertools.count(1))
_numbers = weakref.WeakKeyDictionary()


class Object:
    """One module of a model and what is counted for it."""

    __slots__ = (
        "class_name",
        "count",
        "leaf",
        "number",
        "path",
        "round_iteration",
        "rounds",
        "sites",
        "wanted",
    )

    def __init__(self, class_name, number, path, old=None):
        """old: what stood for the module before; its counts go on."""
        self.class_name = class_name
        self.number = number
        self.path = path
        # next() is atomic, += is not
        self.count = old.count if old else itertools.count(1)
        self.sites = {}
        self.round_iteration = 0  # iteration that `rounds` belongs to
        self.rounds = 0  # calls from outside in that iteration
        self.wanted = True
        self.leaf = False  # has no modules in it

    @property
    def name(self):
        return f"{self.class_name}-{self.number}"


def is_wrapper(module):
    """Whether the module only passes its call on to the one inside."""
    return any(
        (c.__name__, c.__module__.partition(".")[0]) in WRAPPERS
        for c in type(module).__mro__
    )


def is_compiled(module):
    """Whether this is the module that torch.compile() returned."""
    return any(
        c.__name__ == "OptimizedModule" and c.__module__.startswith("torch.")
        for c in type(module).__mro__
    )


def class_of(module):
    """The class's name; fully_shard() puts a class of its own in front."""
    mro = type(module).__mro__
    if any(c.__name__ == "FSDPModule" for c in mro):
        for c in mro:
            if not any(b.__name__ == "FSDPModule" for b in c.__mro__):
                return c.__name__ or "Module"
    return type(module).__name__ or "Module"


def strip(path, wrapped=()):
    """The path without the parts that belong to wrappers.

    `wrapped` holds the paths of wrappers: a part "module" right below one
    is dropped too, and at the very front it always is.
    """
    parts = path.split(".") if path else []
    kept = []
    for i, part in enumerate(parts):
        if part in WRAPPER_PARTS:
            continue
        below = ".".join(parts[:i])
        if part == "module" and (below in wrapped or not kept):
            continue
        kept.append(part)
    return ".".join(kept)


def _number(module, class_name):
    with _lock:
        try:
            known = _numbers.get(module)
            if known and known[0] == class_name:
                return known[1]
        except TypeError:
            known = None  # a class with __eq__ and no __hash__
        number = next(_next_number[class_name])
        with contextlib.suppress(TypeError):
            _numbers[module] = (class_name, number)
        return number


def _object(class_name, number, path, leaf, old):
    if old is not None and old.class_name == class_name:
        if (old.number, old.path, old.leaf) == (number, path, leaf):
            return old
    else:
        old = None
    thing = Object(class_name, number, path, old)
    thing.leaf = leaf
    return thing


class Row(NamedTuple):
    """A module of a model; see walk()."""

    module: object
    thing: Object | None  # None: a wrapper round nothing
    wrapper: bool
    raw: str  # the path with all its parts


def walk(model, prefix="", known=None):
    """The modules of a model, a Row each.

    A wrapper stands with the object of what it wraps. A module under two
    names is listed once, as model.modules() has it. `prefix` is put before
    every path. known: Objects of an earlier walk by the ids of their
    modules, which stay where nothing has changed.
    """
    named = list(model.named_modules())
    wrapped = {path for path, module in named if is_wrapper(module)}
    rows = []
    by_path = {}
    for raw, module in named:
        path = strip(raw, wrapped)
        if prefix:
            path = f"{prefix}.{path}" if path else prefix
        thing = None
        if raw not in wrapped:
            class_name = class_of(module)
            thing = _object(
                class_name, _number(module, class_name), path,
                not any(True for _ in module.children()),
                (known or {}).get(id(module)),
            )
            by_path.setdefault(path, thing)
        rows.append((Row(module, thing, raw in wrapped, raw), path))
    return [
        row._replace(thing=row.thing or by_path.get(path))
        for row, path in rows
    ]


def globs(patterns):
    """A list of patterns from None, "a*,b" or an iterable of them."""
    if not patterns:
        return []
    if isinstance(patterns, str):
        patterns = patterns.split(",")
    return [p.strip() for p in patterns if p.strip()]


def matches(thing, patterns):
    """Whether a pattern fits the object's path, class or name."""
    words = (thing.path, thing.class_name, thing.name)
    return any(fnmatchcase(w, p) for p in patterns for w in words)


def idle_patterns(things, patterns):
    """Patterns that fit nothing: list of (pattern, nearest names)."""
    idle = []
    for p in patterns:
        if not any(matches(t, [p]) for t in things):
            idle.append((p, _nearest(things, p)))
    return idle


def _nearest(things, pattern):
    """Up to three names, of which at least a part is like the pattern's."""
    whole = {t.path for t in things if t.path} | {t.class_name for t in things}
    found = difflib.get_close_matches(pattern, sorted(whole), 3, 0.3)
    last = {}
    for path in sorted(whole):
        last.setdefault(path.rpartition(".")[2], path)
    bare = pattern.strip("*?.").rpartition(".")[2]
    for part in difflib.get_close_matches(bare, last, 3, 0.6):
        if last[part] not in found:
            found.append(last[part])
    return found[:3]
