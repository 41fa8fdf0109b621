"""Which forward call a recomputed one repeats.

Activation checkpointing runs a part of the forward pass again inside the
backward pass. The repetition carries the step, iteration and micro-batch of
the call it repeats, which need not be the latest one (pipeline schedules run
the forward of the next micro-batch first). Two facts tell:
- the first module of a region gets the very memory that it got before;
- inside a region the calls come in the order they came in before.
"""

from torch import Tensor


class Call:
    """One call of one module, as its records need it."""

    __slots__ = (
        "__weakref__",
        "active",
        "again",
        "edges",
        "hooked",
        "iteration",
        "key",
        "labels",
        "microbatch",
        "repeated",
        "serial",
        "step",
        "task",
        "thing",
    )

    def __init__(self, thing, step, iteration, microbatch, labels, active):
        self.thing = thing
        self.step = step
        self.iteration = iteration
        self.microbatch = microbatch
        self.labels = labels
        self.active = active
        self.hooked = False  # its tensors have gradient hooks
        self.edges = None  # of its inputs, until it ends
        self.again = False  # it is itself a repetition
        self.serial = -1
        self.key = None
        self.repeated = False
        self.task = -1  # backward pass in which its output's gradient came

    def repetition(self, labels):
        call = Call(
            self.thing, self.step, self.iteration, self.microbatch,
            labels, self.active,
        )
        call.again = True
        call.serial = self.serial
        return call


class Log:
    """The latest forward calls of one model, in order.

    Used under the interpreter lock by any thread; a lost race costs a wrong
    step on a repetition, never memory. Holds `room` calls at most.
    """

    SCAN = 1024

    def __init__(self, room):
        size = 1
        while size < room:
            size *= 2
        self._calls = [None] * size
        self._next = 0
        self._by_key = {}
        self._last = {}

    def add(self, call, key):
        serial = self._next
        self._next = serial + 1
        place = serial & (len(self._calls) - 1)
        old = self._calls[place]
        if old is not None and self._by_key.get(old.key) is old:
            del self._by_key[old.key]
        call.serial = serial
        call.key = (call.thing, key)
        self._calls[place] = call
        self._by_key[call.key] = call
        self._last[call.thing] = call

    def _at(self, serial):
        call = self._calls[serial & (len(self._calls) - 1)]
        return call if call is not None and call.serial == serial else None

    def find(self, thing, key, before, inside):
        """The call that a new call of `thing` repeats, or None.

        before: the repetition that came before on this thread, or None.
        inside: whether it is called from within a repetition.
        """
        found = None
        if before is not None and inside:
            found = self._scan(thing, before)
        elif before is not None:
            following = self._at(before.serial + 1)
            if (
                following is not None
                and following.thing is thing
                and not following.repeated
                and following.microbatch == before.microbatch
                and following.iteration == before.iteration
            ):
                found = following
        if found is None:
            found = self._by_key.get((thing, key))
        if found is None:
            found = self._last.get(thing)
        if found is not None:
            found.repeated = True
        return found

    def _scan(self, thing, before):
        end = min(before.serial + 1 + self.SCAN, self._next)
        for serial in range(before.serial + 1, end):
            call = self._at(serial)
            if call is None or call.microbatch != before.microbatch:
                break
            if call.thing is thing:
                return call
        return None


def memory_of(tensors):
    """What two calls with the same input share: the address of the first
    tensor that has one."""
    for _, tensor in tensors:
        tensor = getattr(tensor, "_local_tensor", tensor)
        if type(tensor) is not Tensor:
            continue  # a wrapper without memory of its own
        try:
            address = tensor.data_ptr()
        except Exception:
            continue
        if address:
            return address
    return 0
