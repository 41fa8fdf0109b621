"""What attach() can be told: checked, and completed by the environment.

No torch is needed here, so that `python -m tracerd run` can refuse what
attach() would refuse before it starts a training.
"""

import difflib
import os
import re
from typing import NamedTuple

from . import _tracerd
from .names import globs
from .process import Figures, Policy
from .schedule import Schedule, number_of, ranges
from .tensors import histogram_of, samples_of, sampling_of

PASSES = ("forward", "backward", "grad", "local", "param", "optim", "user")
DEFAULT_PASSES = ("forward", "backward", "grad")
SAMPLES = 16
SPOOL_BYTES = 1 << 30
MIN_JOURNAL, MAX_JOURNAL = 1 << 20, 1 << 31

_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SWITCHES = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


class Options(NamedTuple):
    """Arguments of attach() in the form that the rest works with."""

    samples: int
    schedule: Schedule
    start: int
    ranks: list  # ranges, or None for all
    match: list
    ignore: list
    depth: int  # None: any
    leaf_only: bool
    passes: frozenset
    name: str
    tags: object
    figures: Figures
    policy: Policy
    threads: int  # None: as it is
    inside_compile: bool
    input_gradients: bool
    disabled: bool


def read(
    samples=SAMPLES,
    every=1,
    iterations=None,
    ranks=None,
    match=None,
    ignore=None,
    passes=DEFAULT_PASSES,
    name=None,
    start=1,
    tags=None,
    sampling="equidistant",
    histogram=None,
    threads=None,
    same=True,
    block_ms=0,
    spool=None,
    spool_bytes=SPOOL_BYTES,
    journal_bytes=None,
    depth=None,
    leaf_only=False,
    inside_compile=False,
    input_gradients=True,
):
    """Options from arguments of attach(); where one is at its default the
    environment decides. Raises ValueError or TypeError."""
    for value, what in ((match, "match"), (ignore, "ignore")):
        _check_globs(value, what)
    for value, what in (
        (same, "same"), (leaf_only, "leaf_only"),
        (inside_compile, "inside_compile"),
        (input_gradients, "input_gradients"),
    ):
        if not isinstance(value, bool):
            raise ValueError(f"{what}={value!r}: expected True or False")
    if every == 1:
        every = _said("EVERY", every, number_of)
    if samples == SAMPLES:
        samples = _said("SAMPLES", samples, _samples_said)
    if passes == DEFAULT_PASSES:
        passes = _said("PASSES", passes, _passes)
    iterations = ranges(iterations, "iterations")
    if iterations is None:
        iterations = _said("ITERATIONS", None, ranges)
    ranks = ranges(ranks, "ranks")
    if ranks is None:
        ranks = _said("RANKS", None, ranges)
    if depth is None:
        depth = _said("DEPTH", None, _depth)
    if not leaf_only:
        leaf_only = _said("LEAF_ONLY", False, switch_of)
    if not inside_compile:
        inside_compile = _said("INSIDE_COMPILE", False, switch_of)
    if input_gradients:
        input_gradients = _said("INPUT_GRADIENTS", True, switch_of)
    if threads is None:
        threads = _said("THREADS", None, _threads)
    if journal_bytes is None:
        journal_bytes = _said("JOURNAL_BYTES", None, _journal)
    return Options(
        samples=samples_of(samples),
        schedule=Schedule(every, iterations),
        start=number_of(start, "start"),
        ranks=ranks,
        match=globs(match or _said("MATCH", None)),
        ignore=globs(ignore or _said("IGNORE", None)),
        depth=_depth(depth, "depth"),
        leaf_only=leaf_only,
        passes=_passes(passes, "passes"),
        name=name or "",
        tags=tags,
        figures=Figures(
            sampling_of(sampling), histogram_of(histogram), same
        ),
        policy=_policy(
            block_ms, spool, spool_bytes, _journal(journal_bytes)
        ),
        threads=_threads(threads),
        inside_compile=inside_compile,
        input_gradients=input_gradients,
        disabled=os.environ.get("TRACERD_DISABLE", "") not in ("", "0"),
    )


def _said(name, otherwise, check=None):
    """What a variable says, checked under its name."""
    name = f"TRACERD_{name}"
    text = os.environ.get(name, "").strip()
    if not text:
        return otherwise
    return text if check is None else check(text, name)


def _check_globs(patterns, what):
    if patterns is None or isinstance(patterns, str):
        return
    if not isinstance(patterns, (list, tuple, set)) or not all(
        isinstance(p, str) for p in patterns
    ):
        raise TypeError(f"{what} must be a glob or a list of globs")


def _whole(value):
    """Whether it is an int, or the digits of one made to such."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = int(value)
    return value if type(value) is int else None


def _samples_said(text, what):
    number = _whole(text)
    if number is None or number > _tracerd.MAX_SAMPLES:
        raise ValueError(
            f"{what}={text!r}: expected 0 to {_tracerd.MAX_SAMPLES}"
        )
    return number


def _depth(value, what):
    if value is None:
        return None
    number = _whole(value)
    if number is None or number < 0:
        raise ValueError(f"{what}={value!r}: expected a number from 0")
    return number


def _threads(value, what="threads"):
    if value is None:
        return None
    number = _whole(value)
    if number is None or not 1 <= number <= _tracerd.MAX_THREADS:
        raise ValueError(
            f"{what}={value!r}: expected 1 to {_tracerd.MAX_THREADS}"
        )
    return number


def switch_of(text, what):
    """True or False from "1", "yes", "0", "off" and such."""
    value = _SWITCHES.get(text.strip().lower())
    if value is None:
        raise ValueError(f"{what}={text!r}: expected 1 or 0")
    return value


def bytes_of(text, what):
    """A number of bytes from "4096", "64M", "2G"."""
    found = re.fullmatch(r"(\d+) ?([KMG]?)(?:i?B)?", text.strip(), re.I)
    if found is None:
        raise ValueError(f"{what}={text!r}: expected bytes such as 64M")
    return int(found[1]) * _UNITS[found[2].upper()]


def _journal(value, what="journal_bytes"):
    if value is None:
        return 0  # as the client has it
    number = bytes_of(value, what) if isinstance(value, str) else value
    if (
        type(number) is not int
        or not MIN_JOURNAL <= number <= MAX_JOURNAL
        or number & (number - 1)
    ):
        raise ValueError(
            f"{what}={value!r}: expected a power of two from 1M to 2G"
        )
    return number


def _policy(block_ms, spool, spool_bytes, journal_bytes):
    for what, number, most in (
        ("block_ms", block_ms, (1 << 32) - 1),
        ("spool_bytes", spool_bytes, (1 << 63) - 1),
    ):
        if type(number) is not int or not 0 <= number <= most:
            raise ValueError(f"{what}={number!r}: expected 0 to {most}")
    path = os.fspath(spool) if isinstance(spool, os.PathLike) else spool
    if path is not None and (not isinstance(path, str) or "\0" in path):
        raise ValueError(f"spool={spool!r}: expected a directory")
    return Policy(block_ms, path, spool_bytes, journal_bytes)


def _passes(passes, what):
    if isinstance(passes, str):
        passes = [p.strip() for p in passes.split(",") if p.strip()]
    passes = frozenset(passes)
    unknown = sorted(str(p) for p in passes if p not in PASSES)
    if unknown:
        near = difflib.get_close_matches(unknown[0], PASSES, 1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ValueError(
            f"{what}: {unknown[0]!r} is none of {', '.join(PASSES)}{hint}"
        )
    return passes
