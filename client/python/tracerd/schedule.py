"""Which iterations and ranks are traced."""


def ranges(value, what):
    """Ranges from "A-B,C", a number, a range or an iterable of numbers:
    a sorted list of (first, last), both included; None for all.

    Raises ValueError for anything else.
    """
    if value is None or value == "":
        return None
    if isinstance(value, int):
        value = [value]
    if isinstance(value, str):
        parts = [_part(p, what) for p in value.split(",") if p.strip()]
    elif isinstance(value, range) and value.step == 1:
        parts = [(value.start, value.stop - 1)]
    else:
        parts = [(int(v), int(v)) for v in value]
    return sorted(parts)


def number_of(value, what):
    """A whole number from 1. Raises ValueError for anything else."""
    try:
        number = 0 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if number < 1:
        raise ValueError(f"{what}={value!r}: expected a number from 1")
    return number


def _part(text, what):
    first, dash, last = text.strip().partition("-")
    try:
        pair = int(first), int(last if dash else first)
    except ValueError:
        pair = 1, 0
    if pair[0] > pair[1]:
        raise ValueError(
            f"{what}={text!r}: expected numbers and ranges such as 1-10,20"
        )
    return pair


def contains(pairs, number):
    """Whether a number lies in the ranges; None holds all."""
    return pairs is None or any(a <= number <= b for a, b in pairs)


class Schedule:
    """every=N takes iterations 1, 1+N, ...; both conditions must hold."""

    __slots__ = ("every", "pairs")

    def __init__(self, every, iterations):
        self.every = number_of(every, "every")
        self.pairs = ranges(iterations, "iterations")

    def wants(self, iteration):
        return (iteration - 1) % self.every == 0 and contains(
            self.pairs, iteration
        )
