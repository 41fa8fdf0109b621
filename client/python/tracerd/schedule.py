"""Which iterations and ranks are traced."""


def ranges(value, what):
    """Ranges from "A-B,C", "A-B:STEP", a number, a range or an iterable of
    any of these: a sorted list of (first, last, step), both ends included;
    None for all.

    Raises ValueError for anything else.
    """
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = [p for p in value.split(",") if p.strip()]
    elif isinstance(value, (int, range)):
        value = [value]
    try:
        parts = [part for item in value for part in _parts(item, what)]
    except (TypeError, OverflowError):
        raise _wrong(value, what) from None
    return _joined(sorted(parts))


def _parts(item, what):
    if isinstance(item, range):
        if item.step < 0:
            item = item[::-1]
        return [(item[0], item[-1], item.step)] if item else []
    if isinstance(item, str):
        return [_part(item, what)]
    if isinstance(item, bool) or int(item) != item:
        raise _wrong(item, what)
    return [(int(item), int(item), 1)]


def _part(text, what):
    pair, colon, step = text.strip().partition(":")
    first, dash, last = pair.partition("-")
    try:
        part = int(first), int(last if dash else first), int(step or 1)
    except ValueError:
        part = 1, 0, 1
    if part[0] > part[1] or part[2] < 1 or bool(colon) != bool(step):
        raise _wrong(text, what)
    return part


def _wrong(value, what):
    return ValueError(
        f"{what}={value!r}: expected numbers and ranges such as "
        "1-10,20,100-200:10"
    )


def _joined(parts):
    """The same numbers in fewer parts: a list of all that are wanted may be
    long, and it is looked through at each iteration."""
    kept = []
    for first, last, step in parts:
        if kept and step == kept[-1][2] == 1 and first <= kept[-1][1] + 1:
            kept[-1] = kept[-1][0], max(last, kept[-1][1]), 1
        else:
            kept.append((first, last, step))
    return kept


def number_of(value, what):
    """A whole number from 1. Raises ValueError for anything else."""
    try:
        number = 0 if isinstance(value, bool) else int(value)
    except (TypeError, ValueError, OverflowError):
        number = 0
    if number < 1:
        raise ValueError(f"{what}={value!r}: expected a number from 1")
    return number


def contains(parts, number):
    """Whether a number lies in the ranges; None holds all."""
    return parts is None or any(
        a <= number <= b and (number - a) % step == 0 for a, b, step in parts
    )


class Schedule:
    """every=N takes iterations 1, 1+N, ...; both conditions must hold."""

    __slots__ = ("every", "parts")

    def __init__(self, every, parts):
        """parts: from ranges(), None for all."""
        self.every = number_of(every, "every")
        self.parts = parts

    def wants(self, iteration):
        return (iteration - 1) % self.every == 0 and contains(
            self.parts, iteration
        )

    def is_idle(self, start):
        """Whether no iteration from `start` on is wanted."""
        if self.parts is None:
            return False
        for first, last, step in self.parts:
            at = max(first, start)
            at += (first - at) % step
            # what both ask for comes again after every * step numbers
            for _ in range(self.every):
                if at > last:
                    break
                if (at - 1) % self.every == 0:
                    return False
                at += step
        return True
