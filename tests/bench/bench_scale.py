"""A large run: what it takes, and how soon it answers while it grows.

    bench_scale.py TRACERD TRACECTL BENCH_CLIENT [RECORDS]

Ranks write so many records ($TRD_RECORDS, else 10,000,000) in 10,000 steps to
a daemon. Meanwhile and afterwards this asks for single records and for the
history of one object, and looks at the write-ahead log and at the daemon's
memory; then it runs check, report and a comparison of the run with itself. It
fails where a limit below is passed that no machine's speed explains.
"""

import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

STEPS = 10_000
OBJECTS = 1000  # at most, of a rank
WAL_MB = 512
DAEMON_MB = 200
COMMAND_MB = 300
BYTES = 165  # a record on the disk
POINT = (
    "SELECT mean, samples FROM v_record WHERE step = ? AND pass = 'forward'"
    " AND class = 'Linear' AND instance = ? AND io = 'output' AND rank = ?"
)
NEWEST = "SELECT step, rank FROM v_record ORDER BY step DESC LIMIT 1"
HISTORY = (
    "WITH RECURSIVE at(step) AS (VALUES (1) UNION ALL SELECT step + 1 FROM at"
    " WHERE step < (SELECT step FROM v_record ORDER BY step DESC LIMIT 1))"
    " SELECT step, mean FROM at CROSS JOIN v_record USING (step)"
    " WHERE pass = 'forward' AND module = ? AND io = 'output' AND rank = 0"
    " ORDER BY step"
)


def layout(records):
    """(ranks, objects of each) for about so many records in STEPS."""
    each = max(1, records // STEPS // 2)
    ranks = (each + OBJECTS - 1) // OBJECTS
    return ranks, each // ranks


def percentile(times, part):
    return sorted(times)[int(len(times) * part)]


class Reader:
    """Asks a stored run, each question on a snapshot of its own."""

    def __init__(self, path, objects):
        self.db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.objects = objects
        self.chance = random.Random(1)

    def timed(self, sql, *values):
        begin = time.perf_counter()
        rows = self.db.execute(sql, values).fetchall()
        return 1e3 * (time.perf_counter() - begin), rows

    def point(self):
        """Of the rank that is ahead: others may not have come so far."""
        (last, rank), = self.db.execute(NEWEST)
        took, rows = self.timed(
            POINT, self.chance.randint(1, max(1, last - 1)),
            self.chance.randint(1, self.objects), rank,
        )
        return took, len(rows)

    def step_is_whole(self):
        return bool(self.db.execute(
            "SELECT 1 FROM record WHERE step = 2 LIMIT 1"
        ).fetchall())

    def history(self):
        took, rows = self.timed(
            HISTORY, f"layers.{self.chance.randrange(self.objects)}"
        )
        return took, len(rows)


def held(pid, what):
    """MB of a process, of /proc/PID/status."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) / 1024
    raise ValueError(what)


class Watch(threading.Thread):
    """The most the write-ahead log and the daemon ever took."""

    def __init__(self, wal, pid):
        super().__init__(daemon=True)
        self.wal, self.pid = wal, pid
        self.wal_mb = self.daemon_mb = 0.0
        self.done = threading.Event()

    def run(self):
        while not self.done.wait(0.05):
            if self.wal.exists():
                self.wal_mb = max(self.wal_mb, self.wal.stat().st_size / 1e6)
            self.daemon_mb = held(self.pid, "VmHWM")


def ask(reader, what, times, seconds):
    """Asks again and again for so long; all answers must have rows."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        took, rows = getattr(reader, what)()
        assert rows, f"no answer: {what}"
        times.append(took)
        time.sleep(0.01)


def told(when, points, histories):
    print(
        f"{when}: a record {percentile(points, 0.5):.2f} ms, p99"
        f" {percentile(points, 0.99):.2f} ms; a history"
        f" {percentile(histories, 0.5):.1f} ms, worst {max(histories):.1f} ms",
        flush=True,
    )


def command(*words):
    """Seconds and MB of a command that must end well."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    error = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) in (0, 1), error
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def start(tracerd, folder, data, *options):
    read, write = os.pipe()
    process = subprocess.Popen(
        [tracerd, "--foreground", "--dir", folder, "--data", data,
         "--ready-fd", str(write), *options],
        pass_fds=[write],
    )
    os.close(write)
    assert os.read(read, 16), "tracerd did not start"
    os.close(read)
    return process


def ask_meanwhile(writer, run, objects):
    """Milliseconds that points and histories took until the writer ended."""
    while not run.exists():
        assert writer.poll() is None
        time.sleep(0.1)
    reader = Reader(run, objects)
    while not reader.step_is_whole():
        assert writer.poll() is None
        time.sleep(0.1)
    points, histories = [], []
    while writer.poll() is None:
        ask(reader, "point", points, 1)
        ask(reader, "history", histories, 0.1)
    return points, histories


def write(client, folder, ranks, objects, run, daemon):
    """Writes the run and asks meanwhile."""
    began = time.perf_counter()
    writer = subprocess.Popen(
        [client, "write", folder, str(ranks), str(objects), str(STEPS)]
    )
    watch = Watch(Path(f"{run}-wal"), daemon.pid)
    watch.start()
    try:
        points, histories = ask_meanwhile(writer, run, objects)
    finally:
        writer.kill()
    seconds = time.perf_counter() - began
    assert writer.returncode == 0
    watch.done.set()
    watch.join()
    records = ranks * objects * 2 * STEPS
    print(f"{records} records of {ranks} ranks: {records / seconds:.0f} a"
          f" second; write-ahead log at most {watch.wal_mb:.0f} MB, daemon"
          f" {watch.daemon_mb:.0f} MB")
    told("while it grows", points, histories)
    assert watch.wal_mb < WAL_MB and watch.daemon_mb < DAEMON_MB
    return records


def ask_at_rest(tracectl, run, objects):
    points, histories = [], []
    reader = Reader(run, objects)
    ask(reader, "point", points, 5)
    ask(reader, "history", histories, 5)
    told("at rest", points, histories)
    name = f"forward-Linear-{objects}-{STEPS // 2}-output"
    opened = [command(tracectl, "-d", run, "query", name)[0]
              for _ in range(10)]
    print(f"tracectl query of one record: {1e3 * min(opened):.1f} ms")


def main():
    tracerd, tracectl, client = sys.argv[1:4]
    default = os.environ.get("TRD_RECORDS", 10_000_000)
    wanted = int(sys.argv[4] if len(sys.argv) > 4 else default)
    ranks, objects = layout(wanted)
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        data = os.path.join(folder, "data")
        run = Path(data, "bench.db")
        daemon = start(tracerd, folder, data)
        try:
            records = write(client, folder, ranks, objects, run, daemon)
        finally:
            daemon.terminate()
            daemon.wait()
        size = run.stat().st_size / records
        print(f"{size:.1f} bytes a record")
        ask_at_rest(tracectl, run, objects)
        page = os.path.join(folder, "page.html")
        for words in (("compare", run, run), ("check", run),
                      ("report", run, "--out", page)):
            took, mb = command(tracectl, *words)
            print(f"{words[0]}: {took:.1f} s, {records / took:.0f} records/s,"
                  f" {mb:.0f} MB", flush=True)
            assert mb < COMMAND_MB
        assert size < BYTES


if __name__ == "__main__":
    main()
