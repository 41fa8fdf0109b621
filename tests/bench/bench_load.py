"""Records a second and memory of tracerd.load().

    bench_load.py SCHEMA [RECORDS]

Loads a run of so many records (1,000,000) into pandas, beside what the
sqlite3 module needs for the same figures as rows of Python.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
import time

from bench_compare import make

sys.path.insert(0, os.path.join(os.environ["TRD_BUILD"], "client/python"))
ROWS = (
    "SELECT step, object, pass, stream, io, position, seq, t_ns, iteration,"
    " microbatch, labels, path, dtype, shape, n, nan, pinf, ninf, zero,"
    " subnormal, max, min, absmin, mean, std, l2, hash FROM record"
)


def load(path):
    """Seconds, and MB of the largest the process was."""
    script = (
        "import resource, sys, time\nimport tracerd\n"
        "tracerd.load(sys.argv[1], 'seq = 1')\n"  # imports what it needs
        "begin = time.perf_counter()\nframe = tracerd.load(sys.argv[1])\n"
        "print(time.perf_counter() - begin, len(frame),"
        " resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, path], check=True,
        stdout=subprocess.PIPE,
        env=dict(os.environ, PYTHONPATH=sys.path[0]),
    )
    seconds, rows, megabytes = map(float, done.stdout.split())
    return seconds, rows, megabytes


def rows_alone(path):
    begin = time.perf_counter()
    db = sqlite3.connect(path)
    for _ in db.execute(ROWS):
        pass
    db.close()
    return time.perf_counter() - begin


def main():
    records = int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    with open(sys.argv[1]) as f:
        schema = f.read()
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        path = os.path.join(folder, "run.db")
        make(path, schema, records, 0)
        runs = [load(path) for _ in range(3)]
        assert {rows for _, rows, _ in runs} == {records}
        best = min(s for s, _, _ in runs)
        plain = min(rows_alone(path) for _ in range(2))
        print(
            f"{records / best:.0f} records/s, {best / plain:.2f} of the time"
            f" of rows, {max(m for _, _, m in runs):.0f} MB"
        )


if __name__ == "__main__":
    main()
