"""What holds after every fault, as tests/lib/oracle.h has it for C."""

import os
import sqlite3
import time
from pathlib import Path

# what must not be, counted
RULES = {
    "streams whose numbers are not covered":
        "SELECT count(*) FROM stream s WHERE s.seq !="
        " (SELECT count(*) FROM record r WHERE r.stream = s.id)"
        " + (SELECT total(last - seq + 1) FROM loss l WHERE l.stream = s.id)",
    "records above their stream's mark":
        "SELECT count(*) FROM record r JOIN stream s ON s.id = r.stream"
        " WHERE r.seq > s.seq OR r.seq < 1",
    "records that are there twice":
        "SELECT count(*) - (SELECT count(*) FROM"
        " (SELECT DISTINCT stream, seq FROM record)) FROM record",
    "records that are lost, too":
        "SELECT count(*) FROM record r JOIN loss l ON l.stream = r.stream"
        " AND r.seq BETWEEN l.seq AND l.last",
    "damage":
        "SELECT integrity_check != 'ok' FROM pragma_integrity_check",
}


def ask(daemon, run, sql, *args):
    """The rows of an answer; none where the run is not there yet."""
    path = Path(daemon.data, f"{run}.db")
    if not path.exists():
        return []
    db = sqlite3.connect(path, timeout=10)
    try:
        return db.execute(sql, args).fetchall()
    except sqlite3.OperationalError:
        return []
    finally:
        db.close()


def whole(daemon, run):
    """The run's file and the numbers of all its streams."""
    for what, sql in RULES.items():
        assert ask(daemon, run, sql) == [(0,)], (run, what, daemon.log())


def stored(daemon, run, pid):
    """How many records of a process there are."""
    ((n,),) = ask(
        daemon, run, "SELECT count(*) FROM record r JOIN stream s"
        " ON s.id = r.stream WHERE s.pid = ?", pid,
    ) or [(0,)]
    return n


def wait_stored(daemon, run, pid, n, seconds=60):
    """Waits until at least n records of a process are stored; how many."""
    end = time.monotonic() + seconds
    while stored(daemon, run, pid) < n:
        assert time.monotonic() < end, (
            stored(daemon, run, pid), n, daemon.log(),
        )
        time.sleep(0.05)
    return stored(daemon, run, pid)


def held(fault, cases, how):
    """A line for the table of faults (tests/fault/faults.txt): this one was
    injected so often, in this way, and the invariants held."""
    print(f"fault {fault}: {cases} cases: {how}: held")
    path = os.environ.get("TRD_FAULTS_HELD")
    if path:
        with open(path, "a") as f:
            f.write(f"{fault}\t{cases}\t{how}\n")
