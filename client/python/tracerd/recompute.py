"""Which forward call a recomputed one repeats.

Activation checkpointing runs a part of the forward pass again inside the
backward pass. The repetition carries the step, iteration and micro-batch of
the call it repeats, which need not be the latest one (pipeline schedules run
the forward of the next micro-batch first). Two facts tell:
- the first module of a region gets the very memory that it got before;
- inside a region the calls come in the order they came in before.
"""

from torch import Tensor

from ._tracerd import Call


def repetition(first, labels):
    """The Call that repeats another one."""
    call = Call(
        first.thing, first.step, first.iteration, first.microbatch, labels,
        first.active,
    )
    call.again = True
    call.serial = first.serial
    return call


class Index:
    """Finds calls in the log of a Recorder, which holds the latest ones in
    order. What the hooks wrote there is only looked at when something is
    repeated.

    Used under the interpreter lock by any thread; a lost race costs a wrong
    step on a repetition, never memory.
    """

    SCAN = 1024

    def __init__(self, room):
        self._room = room
        self._next = 0  # serial of the first call not looked at yet
        self._by_key = {}  # (Object, address) -> serial
        self._last = {}  # Object -> its latest call

    def _look(self, log):
        end = log.next_serial
        for serial in range(self._next, end):
            call = log.logged(serial)
            if call is not None:
                self._by_key[call.thing, call.address] = serial
                self._last[call.thing] = call
        self._next = end
        if len(self._by_key) > 4 * self._room:
            self._by_key = {
                key: serial
                for key, serial in self._by_key.items()
                if log.logged(serial) is not None
            }

    def find(self, log, thing, address, before, inside):
        """The call that a new call of `thing` repeats, or None.

        address: of the first input, see memory_of().
        before: the repetition that came before on this thread, or None.
        inside: whether it is called from within a repetition.
        """
        self._look(log)
        found = None
        if before is not None and inside:
            found = self._scan(log, thing, before)
        elif before is not None:
            following = log.logged(before.serial + 1)
            if (
                following is not None
                and following.thing is thing
                and not following.repeated
                and following.microbatch == before.microbatch
                and following.iteration == before.iteration
            ):
                found = following
        if found is None:
            found = log.logged(self._by_key.get((thing, address), -1))
        if found is None:
            found = self._last.get(thing)
        if found is not None:
            found.repeated = True
        return found

    def _scan(self, log, thing, before):
        for serial in range(before.serial + 1, before.serial + 1 + self.SCAN):
            call = log.logged(serial)
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
