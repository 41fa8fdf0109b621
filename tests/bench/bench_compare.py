"""Pairs a second and memory of `tracectl compare`.

    bench_compare.py TRACECTL SCHEMA [RECORDS]

Makes run files of so many records (1,000,000) over 200 objects straight from
the schema: two that are equal, and one where every hash differs by rounding.
Beside it stands what SQLite alone needs to read the same rows, since no
comparison can be faster.
"""

import os
import resource
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time

OBJECTS, SAMPLES = 200, 16
COLUMNS = (
    "step, object, pass, stream, io, position, seq, t_ns, iteration,"
    " microbatch, labels, path, dtype, shape, nan, pinf, ninf, zero,"
    " subnormal, max, min, absmin, mean, std, l2, hash, samples"
)


def make(path, schema, records, shift):
    db = sqlite3.connect(path)
    db.executescript("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF;")
    db.executescript(schema)
    db.executemany(
        "INSERT INTO meta VALUES(?, ?)",
        [("name", os.path.basename(path)[:-3]), ("created_ns", 1)],
    )
    db.execute("INSERT INTO path VALUES(1, '0')")
    db.execute("INSERT INTO shape VALUES(1, '64 64', 4096)")
    db.executemany(
        "INSERT INTO object VALUES(?, 'Linear', ?, 'layers.' || ?)",
        [(i, i, i) for i in range(1, OBJECTS + 1)],
    )
    db.execute(
        "INSERT INTO stream(id, attempt, rank, epoch, world, pid, start_time,"
        " boot_id, host, uid, client, real_ns, mono_ns, info, seq, dict_n,"
        " state) VALUES(0, 0, 0, 1, 1, 1, 1, '', '', 0, '', 0, 0, '', ?, 0,"
        " 'ended')",
        (records,),
    )
    samples = struct.pack(f"<{SAMPLES}f", *(1 + shift for _ in range(SAMPLES)))

    def rows():
        seq, step = 0, 0
        while seq < records:
            step += 1
            for thing in range(1, OBJECTS + 1):
                for pass_, io in ((1, 1), (1, 2), (2, 1), (2, 2)):
                    seq += 1
                    yield (
                        step, thing, pass_, 0, io, 0, seq, seq, step, 1, 0, 1,
                        2, 1, 0, 0, 0, 0, 0, 2.0 + shift, -2.0, 1e-3, 0.1,
                        1.0 + shift, 64.0 + shift, seq + (shift > 0), samples,
                    )
                    if seq == records:
                        return

    marks = ", ".join("?" * 27)
    db.executemany(f"INSERT INTO record({COLUMNS}) VALUES({marks})", rows())
    db.commit()
    db.close()


def read_alone(paths):
    begin = time.perf_counter()
    for path in paths:
        db = sqlite3.connect(path)
        db.execute(
            "SELECT count(*), sum(hash & 1), sum(length(samples)), max(l2)"
            " FROM record"
        ).fetchall()
        db.close()
    return time.perf_counter() - begin


def compare(tracectl, a, b):
    begin = time.perf_counter()
    done = subprocess.run(
        [tracectl, "compare", a, b], stdout=subprocess.PIPE, check=False
    )
    seconds = time.perf_counter() - begin
    return seconds, done.stdout.decode().split()[0]


def main():
    tracectl, schema = sys.argv[1:3]
    records = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
    with open(schema) as f:
        schema = f.read()
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        a, b, c = (os.path.join(folder, f"{n}.db") for n in "abc")
        make(a, schema, records, 0)
        make(b, schema, records, 0)
        make(c, schema, records, 2.0**-23)
        plain = min(read_alone((a, b)) for _ in range(3))
        print(f"{records} pairs; reading alone {plain:.2f} s")
        for other, want in ((b, "same"), (c, "rounding")):
            runs = [compare(tracectl, a, other) for _ in range(3)]
            assert {v for _, v in runs} == {want}
            best = min(s for s, _ in runs)
            print(
                f"{want:9} {records / best:10.0f} pairs/s,"
                f" {best / plain:.1f} times reading alone"
            )
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"largest process {usage.ru_maxrss / 1024:.0f} MB")


if __name__ == "__main__":
    main()
