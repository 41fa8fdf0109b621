"""Exceptions of the training: they stay what they are, and the records say
where they came."""

import contextlib
import signal
import sys
import traceback
import weakref

import pytest
import torch
from torch import nn

from recording import pick
from seen import batches, steps


def state(records, name):
    """(step, io, raised) of the forward records of an object."""
    return [
        (r.step, r.io, "raised" in r.labels)
        for r in pick(records, object=name, pass_="forward")
    ]


def test_a_wrong_batch_between_two_right_ones(look):
    def build():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))

    def train(model, optimizer):
        told = []
        for x in (torch.ones(1, 2), torch.ones(1, 3), torch.ones(1, 2)):
            try:
                model(x).sum().backward()
            except RuntimeError as error:
                told.append(str(error))
        return told

    records = look(build, train)
    assert state(records, "Linear-1") == [
        (1, "input", False), (1, "output", False),
        (2, "input", False), (2, "output", True),
        (3, "input", False), (3, "output", False),
    ]
    assert state(records, "Linear-2") == [
        (i, io, False) for i in (1, 2) for io in ("input", "output")
    ]
    # the second call of Linear-2 is in the third of the model
    assert [
        r.microbatch for r in pick(records, object="Linear-2", io="output")
        if r["pass"] == "forward"
    ] == [1, 3]


class Raises(nn.Module):
    def __init__(self, error, when):
        super().__init__()
        self.l = nn.Linear(2, 2)
        self.error = error
        self.when = when
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        if self.calls in self.when:
            raise self.error
        return self.l(x)


class Odd(Exception):
    """Whose text cannot be had."""

    def __str__(self):
        raise AssertionError("nobody may ask")

    __repr__ = __str__


class Falsy(Exception):
    def __bool__(self):
        return False


ERRORS = {
    "value": ValueError("wrong"),
    "stop iteration": StopIteration(3),
    "generator exit": GeneratorExit(),
    "interrupt": KeyboardInterrupt(),
    "exit": SystemExit(3),
    "memory": MemoryError(),
    "recursion": RecursionError("deep"),
    "odd": Odd(),
    "falsy": Falsy(),
    "base": BaseException("bare"),
}
if sys.version_info >= (3, 11):
    ERRORS["group"] = ExceptionGroup("both", [ValueError(1)])  # noqa: F821


@pytest.mark.parametrize("kind", ERRORS)
def test_every_kind_of_exception_reaches_its_handler(look, kind):
    error = ERRORS[kind]

    def build():
        return nn.Sequential(nn.Linear(2, 2), Raises(error, {2, 3}),
                             nn.Linear(2, 1))

    def train(model, optimizer):
        seen = []
        for x in batches(5):
            error.__traceback__ = error.__context__ = None
            try:
                seen += steps(model, optimizer, [x])
            except BaseException as caught:
                assert caught is error
                assert caught.__context__ is None
                names = [
                    f.name for f in traceback.extract_tb(error.__traceback__)
                ]
                assert names[-1] == "forward"
                seen.append("caught")
        return seen

    records = look(build, train, see=False)
    outer = pick(records, object="Sequential-1", pass_="forward")
    ends = [r for r in outer if r.io == "output" and not r.labels]
    assert [r.step for r in ends] == [1, 4, 5]
    assert [r.iteration for r in ends] == [1, 2, 3]
    last = pick(records, object="Linear-3", pass_="forward", io="output")
    assert [r.step for r in last] == [1, 2, 3]
    if isinstance(error, Exception):
        raised = [r for r in outer if "raised" in r.labels]
        assert [r.step for r in raised] == [2, 3]


def test_a_parent_handles_the_exception_of_its_child(look):
    class Tries(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = Raises(ValueError("no"), {1, 3, 5})
            self.other = nn.Linear(2, 2)

        def forward(self, x):
            try:
                return self.first(x)
            except ValueError:
                return self.other(x)

    records = look(Tries, lambda m, o: steps(m, o, batches(4)))
    assert [s for s in state(records, "Raises-1") if s[1] == "output"] == [
        (1, "output", True), (2, "output", False),
        (3, "output", True), (4, "output", False),
    ]
    assert all(not raised for _, _, raised in state(records, "Tries-1"))
    assert [
        r.step for r in pick(records, object="Linear-2", pass_="backward")
        if r.io == "input"
    ] == [1, 2]


def test_a_child_is_tried_again_until_it_works(look):
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = Raises(ValueError(), {1, 2, 3, 5})

        def forward(self, x):
            while True:
                try:
                    return self.child(x)
                except ValueError:
                    pass

    records = look(Again, lambda m, o: steps(m, o, batches(2)))
    ends = [s for s in state(records, "Raises-1") if s[1] == "output"]
    assert [(step, bad) for step, _, bad in ends] == [
        (1, True), (2, True), (3, True), (4, False), (5, True), (6, False),
    ]


def test_an_exception_in_backward(look):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, fail):
            ctx.fail = fail
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            if ctx.fail:
                raise ValueError("in backward")
            return g, None

    class Layer(nn.Module):
        fail = False

        def forward(self, x):
            return Fails.apply(x, self.fail)

    def train(model, optimizer):
        told = []
        for i, x in enumerate(batches(4)):
            model[1].fail = i in (1, 2)
            try:
                model(x).sum().backward()
            except ValueError as error:
                told.append(str(error))
            optimizer.step()
            optimizer.zero_grad()
        return told

    records = look(
        lambda: nn.Sequential(nn.Linear(2, 2), Layer(), nn.Linear(2, 2)),
        train,
    )
    back = pick(records, object="Linear-1", pass_="backward", io="input")
    assert [(r.step, r.iteration) for r in back] == [(1, 1), (4, 4)]


def test_an_exception_in_a_hook_of_the_user(look):
    def build():
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
        calls = []

        def hook(*args):
            calls.append(1)
            if len(calls) == 2:
                raise ValueError("the user's")

        model[0].register_forward_hook(hook)
        return model

    def train(model, optimizer):
        told = []
        for x in batches(3):
            try:
                told += steps(model, optimizer, [x])
            except ValueError as error:
                told.append(str(error))
        return told

    records = look(build, train, see=False)
    last = pick(records, object="Linear-2", pass_="forward", io="output")
    assert [(r.step, r.microbatch, r.iteration) for r in last] == [
        (1, 1, 1), (2, 2, 2),
    ]


def test_an_exception_inside_a_generator_of_modules(look):
    """forward() is left in the middle by closing a generator."""

    class Streams(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(2, 2)

        def parts(self, x):
            for _ in range(3):
                x = self.l(x)
                yield x

        def forward(self, x):
            for y in self.parts(x):
                return y  # closes it

    records = look(Streams, lambda m, o: steps(m, o, batches(3)))
    assert [s[0] for s in state(records, "Linear-1")] == [1, 1, 2, 2, 3, 3]


def test_raised_again_after_a_result_of_none(look):
    """A module that returns None while an exception is handled has not
    raised it."""

    class Silent(nn.Module):
        def forward(self, x):
            return None

    class Top(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(2, 2)
            self.silent = Silent()

        def forward(self, x):
            try:
                raise ValueError
            except ValueError:
                self.silent(x)
            return self.l(x)

    records = look(
        Top, lambda m, o: steps(m, o, batches(2)), see=False
    )
    assert state(records, "Silent-1") == [
        (1, "input", False), (2, "input", False),
    ]


def test_a_signal_that_raises_comes_at_any_place(look):
    """A timer interrupts the training now here, now there, also within the
    hooks: the exception reaches the loop, and tracing goes on."""

    class Stop(BaseException):
        pass

    def handler(number, frame):
        raise Stop

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    x = torch.randn(4, 8)
    old = signal.signal(signal.SIGALRM, handler)
    stopped = 0
    try:
        with look.trace(model, optimizer) as t:
            for i in range(150):
                # torch's own step() leaves them off where it is interrupted
                # on its way out
                torch.set_grad_enabled(True)
                try:
                    signal.setitimer(
                        signal.ITIMER_REAL, 2e-5 * (i % 50 + 1)
                    )
                    model(x).sum().backward()
                    optimizer.step()
                    while True:
                        pass
                except Stop:
                    stopped += 1
            torch.set_grad_enabled(True)
            before = t.iteration
            for _ in range(3):  # as if nothing had been
                model(x).sum().backward()
                optimizer.step()
            assert t.iteration == before + 3
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert stopped == 150
    for n in range(before, before + 3):
        last = pick(t.records, iteration=n)
        if n == before:
            continue  # may have begun before
        found = sorted((r["pass"], r.object, r.io or "") for r in last)
        assert found == sorted(
            [("forward", o, io) for o in (
                "Sequential-1", "Linear-1", "ReLU-1", "Linear-2",
            ) for io in ("input", "output")]
            + [("backward", o, "input") for o in (
                "Sequential-1", "Linear-1", "ReLU-1", "Linear-2",
            )]
            + [("backward", o, "output") for o in ("ReLU-1", "Linear-2")]
            + [("grad", o, "") for o in ("Linear-1", "Linear-2")] * 2
        ), n


def test_exceptions_are_not_kept_alive(look):
    """Nor what their frames hold."""
    kept = []

    class Big:
        pass

    def build():
        return nn.Sequential(Raises(ValueError, {1, 2, 3}))

    model = build()
    with look.trace(model):
        for x in batches(3):
            big = Big()
            kept.append(weakref.ref(big))
            with contextlib.suppress(ValueError):
                model(x)
            del big
        assert [k() for k in kept] == [None] * 3
        assert sys.exc_info() == (None, None, None)
