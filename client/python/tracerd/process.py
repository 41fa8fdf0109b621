"""What is one per process: clients, warnings, the ends (exit and fork)."""

import atexit
import os
import sys
import time
import warnings
from typing import NamedTuple

from . import _tracerd

DAEMON_WAIT_S = 2.0

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


class Connection:
    """A client that all traces of one run in this process share."""

    def __init__(self, me, info, figures, policy):
        self.key = me.run
        self.figures = figures
        self.policy = policy
        self.client = _tracerd.open(
            me.run, me.job, info, me.rank, me.world, me.attempt, 0, True,
            None, *figures.sampling, figures.histogram, figures.same,
            *policy,
        )
        error = self.client.counters().get("spool_error")
        if error:
            warn(f"there is no spool: {error}")
        self.users = 0
        self.speaks = True  # this process warns for its machine
        self.settled = False  # a daemon answered, or its absence was told
        self.since = None

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
        if why == _tracerd.REFUSED:
            what, then = why, "for `tracectl import`"
        else:
            what = "no daemon answers" + (f" ({why})" if why else "")
            then = f"for a daemon that is started later: {start}"
        warn(
            f"{what}. Training goes on, and the journal keeps up to {room} "
            f"MiB of records {then}"
        )

    def release(self):
        """One user less; the last one closes the client (100 ms)."""
        self.users -= 1
        if self.users > 0:
            return
        _connections.pop(self.key, None)
        if not self.settled:
            if not self.client.counters()["connects"]:
                self.client.flush(100)
            self._tell()
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
            "block_ms, spool and spool_bytes are those of the first attach() "
            f"to run {me.run}"
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
