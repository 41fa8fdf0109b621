"""What is one per process: clients, warnings, the ends (exit and fork)."""

import atexit
import contextlib
import functools
import math
import os
import signal
import stat
import sys
import time
import warnings
from typing import NamedTuple

from . import _tracerd

DAEMON_WAIT_S = 2.0
LOSS_LOOK_S = 1.0
GONE_S = 2.0  # a daemon that is started again is not missed
IDLE_S = 15.0  # nor one whose disk is slow

# what can be done about records that were not kept, by cause
_HELP = {
    "ring_full": "the journal is full: a larger one (journal_bytes=), a "
    "spool (spool=) or waiting (block_ms=) keeps more",
    "no_space": "there is no disk for the journal",
    "quota": "the daemon takes no more different names",
}

_HERE = os.path.dirname(__file__)

_connections = {}  # run name as asked for -> Connection
_traces = []  # what close_all() closes


def warn(text):
    """One warning to the user; never an exception, whatever the filters."""
    text = f"tracerd: {text}"
    level = 2
    frame = sys._getframe(1)
    while frame and os.path.dirname(frame.f_code.co_filename) == _HERE:
        level += 1  # up to the line of the user that led here
        frame = frame.f_back
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=level)
    except Warning:
        print(text, file=sys.stderr)


def unseen():
    """Within it what is asked of tensors is not seen by modes of functions
    that the program has set."""
    torch = sys.modules.get("torch")
    if torch is None or not torch._C._len_torch_function_stack():
        return contextlib.nullcontext()
    return torch._C.DisableTorchFunction()


def failed(recorder, error, lost=1):
    """Has a recorder count and tell an error of ours, in its handler. One
    that is not ours goes on."""
    if of_a_signal(error):
        raise error
    recorder.failed(error, lost)


def _is_private(path):
    """Whether it is a directory of ours that nobody else may enter, or not
    there yet."""
    try:
        found = os.lstat(path)
    except OSError:
        return True
    return (
        stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & 0o077
    )


def of_a_signal(error):
    """Whether a signal handler of the program raised it, which happened to
    run in the middle of our code: an alarm that ends a step, say. False where
    no stack is left to find out."""
    codes = set()
    trace = error.__traceback__
    while trace is not None:
        codes.add(trace.tb_frame.f_code)
        trace = trace.tb_next
    try:
        return any(
            _code_of(signal.getsignal(number)) in codes
            for number in signal.valid_signals()
        )
    except RecursionError:
        return False


def _code_of(handler):
    while isinstance(handler, functools.partial):
        handler = handler.func
    if not callable(handler):
        return None  # SIG_DFL, or one that is not Python's
    call = handler if hasattr(handler, "__code__") else handler.__call__
    return getattr(getattr(call, "__func__", call), "__code__", None)


class Figures(NamedTuple):
    """What is computed of each tensor; the same for all of a client."""

    sampling: tuple  # code, argument
    histogram: int  # code
    same: bool  # a tensor seen again unchanged is not read again


class Policy(NamedTuple):
    """What a client does when its journal is full."""

    block_ms: int  # it waits so long for room
    spool: str  # directory; None: as the environment says
    spool_bytes: int  # the most of a file there
    journal_bytes: int  # 0: as the client has it


class Connection:
    """A client that all traces of one run in this process share."""

    def __init__(self, me, info, figures, policy):
        self.key = me.run
        self.figures = figures
        self.policy = policy
        self.client = _tracerd.open(
            me.run, me.job, info, me.rank, me.world, me.attempt,
            policy.journal_bytes, True, None, *figures.sampling,
            figures.histogram, figures.same, policy.block_ms, policy.spool,
            policy.spool_bytes,
        )
        error = self.client.counters().get("spool_error")
        if error:
            where = policy.spool or os.environ.get("TRACERD_SPOOL")
            warn(f"there is no spool in '{where}': {error}")
        self.users = 0
        self.speaks = True  # this process warns for its machine
        self.settled = False  # a daemon answered, or its absence was told
        self.since = None
        self._lost_told = False
        self._lost_looked = 0.0
        self._gone_told = False
        self._committed = -1
        self._committed_at = 0.0  # when that many were

    def look(self):
        """Warns once when no daemon has answered for a while. Cheap; called
        once a forward pass until it is settled."""
        if self.settled:
            return
        now = time.monotonic()
        if self.since is None:
            self.since = now
        elif now - self.since > DAEMON_WAIT_S:
            self._tell()
        elif self.client.counters()["connects"]:
            self.settled = True

    def _tell(self):
        self.settled = True
        counters = self.client.counters()
        if counters["connects"] or not counters["submitted"]:
            return
        if not self.speaks:
            return
        room = counters["journal_bytes"] >> 20
        where = os.environ.get("TRACERD_DIR")
        start = f"tracerd --dir {where}" if where else "tracerd"
        why = counters["last_error"]
        if where and not _is_private(where):
            # nor is there a journal in it: no daemon can take that later
            warn(
                f"'{where}' must be a directory of this user alone: chmod "
                f"700 '{where}', then {start}. Training goes on, and its "
                "records are lost when it ends"
            )
            return
        if why == _tracerd.REFUSED:
            what, then = why, "for `tracectl import`"
        else:
            what = "no daemon answers" + (f" ({why})" if why else "")
            then = f"for a daemon that is started later: {start}"
        warn(
            f"{what}. Training goes on, and the journal keeps up to {room} "
            f"MiB of records {then}"
        )

    def look_for_losses(self, now=None):
        """Warns once when records are being lost, and once when the daemon
        takes none any more. Cheap; called at the end of each iteration."""
        if self._lost_told:
            return
        now = time.monotonic() if now is None else now
        if now - self._lost_looked < LOSS_LOOK_S:
            return
        self._lost_looked = now
        counters = self.client.counters()
        self._look_for_daemon(counters, now)
        lost = dict(counters.get("lost") or {})
        lost.pop("error", None)  # told where it happened
        if not lost:
            return
        self._lost_told = True
        cause = max(lost, key=lost.get)
        warn(
            f"{sum(lost.values())} records were lost so far, most of them by "
            f"{cause}{': ' * (cause in _HELP)}{_HELP.get(cause, '')}. "
            "Training goes on; `tracectl status` counts them"
        )

    def _look_for_daemon(self, counters, now):
        """Of one that has answered before. now: infinite at the end."""
        if self._gone_told or not self.speaks or not counters["connects"]:
            return
        if now == math.inf:
            # one that was killed just now seems to be there a while yet
            self.client.flush(100)
            counters = self.client.counters()
        waiting = counters["submitted"] - counters["committed"]
        there = counters["connected"]
        if now == math.inf:
            patient = there or not waiting
        elif not waiting or counters["committed"] != self._committed:
            self._committed = counters["committed"]
            self._committed_at = now
            patient = True
        else:
            left = IDLE_S if there else GONE_S
            patient = now - self._committed_at < left
        if patient:
            return
        self._gone_told = True
        warn(
            ("the daemon takes no records; `tracectl status` says why"
             if there else "the daemon is gone")
            + f". Training goes on, and {waiting} records wait in the journal "
            "for it"
        )

    def release(self):
        """One user less; the last one closes the client (200 ms)."""
        self.users -= 1
        if self.users > 0:
            return
        _connections.pop(self.key, None)
        try:
            self.look_for_losses(math.inf)
            if not self.settled:
                counters = self.client.counters()
                if not counters["connects"]:
                    # one that is there and busy is given more time
                    self.client.flush(100 if counters["last_error"] else 1000)
                self._tell()
        finally:
            self.client.close()


def connect(me, info, figures, policy):
    """The Connection for a Context, made if there is none; one that is there
    keeps the Figures and the Policy it was made with."""
    connection = _connections.get(me.run)
    if connection is None:
        connection = _connections[me.run] = Connection(
            me, info, figures, policy
        )
    elif connection.figures != figures:
        warn(
            "sampling, histogram and same are those of the first attach() to "
            f"run {me.run}"
        )
    elif connection.policy != policy:
        warn(
            "block_ms, spool, spool_bytes and journal_bytes are those of the "
            f"first attach() to run {me.run}"
        )
    connection.users += 1
    return connection


def keep(trace):
    """Has the trace closed at exit."""
    _traces.append(trace)


def forget(trace):
    if trace in _traces:
        _traces.remove(trace)


@atexit.register
def close_all():
    while _traces:
        _traces.pop().close()


def _in_child():
    # The hooks came along with the fork, the sender thread did not: a
    # worker that runs the model must not add to its parent's records.
    for trace in _traces:
        trace._disown()
    _traces.clear()
    _connections.clear()


os.register_at_fork(after_in_child=_in_child)
