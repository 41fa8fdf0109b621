"""Seconds, memory and the size of the page of `tracectl report`.

    bench_report.py TRACECTL [ITERATIONS]

Makes two runs of a transformer of 48 blocks, 2322 records an iteration, of so
many iterations (430: a million records), one with a fault, and writes the
page of one and of both.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
import made_run


def report(tracectl, page, *runs):
    """Seconds, and the largest resident set in MB."""
    begin = time.perf_counter()
    process = subprocess.Popen([tracectl, "report", *runs, "--out", page])
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0
    return time.perf_counter() - begin, usage.ru_maxrss / 1024


def main():
    tracectl = sys.argv[1]
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 430
    model = made_run.transformer(48)
    far = made_run.fault("blocks.31.attn.proj", model)
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        a, b, page = (os.path.join(folder, n) for n in
                      ("a.db", "b.db", "page.html"))
        made_run.make(a, made_run.Run(model, steps))
        made_run.make(b, made_run.Run(model, steps, shift=far))
        for runs in ((a,), (a, b)):
            done = [report(tracectl, page, *runs) for _ in range(3)]
            size = os.path.getsize(page) / 1e6
            print(f"{len(runs)} of {steps} iterations:"
                  f" {min(s for s, _ in done):.1f} s,"
                  f" {max(m for _, m in done):.0f} MB, page {size:.1f} MB")
            assert size < 10 and max(m for _, m in done) < 300


if __name__ == "__main__":
    main()
