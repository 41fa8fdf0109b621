"""What of a model is traced, and warnings about filters that leave nothing."""


from . import names
from .process import warn
from .schedule import contains

OF_PARAMETERS = frozenset(("grad", "local", "param", "optim"))


def is_idle(me, options, speaks):
    """Whether passes, iterations or ranks leave nothing on any rank; says
    so."""
    text = None
    if not options.passes:
        text = "passes is empty"
    elif options.ranks is not None and not any(
        contains(options.ranks, r) for r in range(max(me.world, me.rank + 1))
    ):
        text = (
            f"ranks={_text(options.ranks)} holds none of the ranks 0 to "
            f"{max(me.world - 1, me.rank)}"
        )
        speaks = me.rank == 0
    elif options.schedule.is_idle(options.start):
        text = (
            f"no iteration from {options.start} on is in "
            f"iterations={_text(options.schedule.parts)}"
        )
        if options.schedule.every > 1:
            text += f" with every={options.schedule.every}"
    if text and speaks:
        warn(f"nothing is traced: {text}")
    return bool(text)


def _text(parts):
    return ",".join(
        (f"{a}-{b}" if a != b else f"{a}") + (f":{s}" if s != 1 else "")
        for a, b, s in parts
    ) or "''"


def choose(things, options):
    """Marks the objects that are wanted."""
    for thing in things:
        thing.wanted = (
            (not options.match or names.matches(thing, options.match))
            and not names.matches(thing, options.ignore)
            and (not options.leaf_only or thing.leaf)
            and (
                options.depth is None
                or _depth(thing, options.name) <= options.depth
            )
        )


def _depth(thing, prefix):
    path = thing.path[len(prefix):].lstrip(".") if prefix else thing.path
    return path.count(".") + 1 if path else 0


def leaves_none(rows, options, speaks):
    """Whether no object of a model is wanted, or none with a parameter where
    only those matter; tells of globs that fit none."""
    things = [row.thing for row in rows if not row.wrapper]
    hints = []
    for what in ("match", "ignore"):
        idle = names.idle_patterns(things, getattr(options, what))
        for pattern, near in idle:
            hint = f"; nearest: {', '.join(near)}" if near else ""
            hints.append(f"{what}={pattern!r} fits no module{hint}")
    text = None
    if not any(thing.wanted for thing in things):
        text = "; ".join(hints) or (
            f"{_filters(options)} leaves none of {len(things)} modules"
        )
    elif _needs_parameters(options.passes) and not any(
        row.thing is not None and row.thing.wanted and _has_parameters(row)
        for row in rows
    ):
        text = (
            f"{_filters(options)} leaves no module with a parameter of its own"
        )
    if speaks:
        for said in [f"nothing is traced: {text}"] if text else hints:
            warn(said)
    return text is not None


def _needs_parameters(passes):
    passes = passes - {"user"}
    return passes and passes <= OF_PARAMETERS


def _has_parameters(row):
    return any(p is not None for p in row.module._parameters.values())


def _filters(options):
    said = [
        f"{what}={getattr(options, what)!r}"
        for what in ("match", "ignore", "depth", "leaf_only")
        if getattr(options, what) not in ([], None, False)
    ]
    return " and ".join(said) or f"passes={sorted(options.passes)}"
