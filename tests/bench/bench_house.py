"""Records a second into a ClickHouse.

    bench_house.py TRACERD TRACECTL BENCH_CLIENT [RECORDS]

One rank writes so many records (2,000,000) to a daemon with a store. Beside
it, the rate at which one curl inserts the same rows as RowBinary into an
equal table, their bytes on the server's disk, and what questions cost through
tracectl: of one record, of an object's history, and check and compare, which
read all of the run, beside the same of a SQLite file.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "python"))
from bench_scale import start

from clickhouse_server import Server

OBJECTS = 500


def waiting(tracectl, folder):
    """Rows in the daemon's queue, and those the engine has."""
    said = subprocess.run(
        [tracectl, "-s", folder, "-o", "json", "status"],
        stdout=subprocess.PIPE, text=True,
    ).stdout.splitlines()
    said = {row["key"]: row["value"] for row in map(json.loads, said)}
    return said.get("queue_rows"), said.get("forwarded", 0)


def traced(programs, folder, records):
    """Seconds until the engine has all of them, and until the daemon had."""
    tracectl, client = programs
    begin = time.perf_counter()
    subprocess.run(
        [client, "write", folder, "1", str(OBJECTS),
         str(records // OBJECTS // 2)],
        check=True,
    )
    stored = time.perf_counter() - begin
    while waiting(tracectl, folder) != (0, records):
        time.sleep(0.1)
    return time.perf_counter() - begin, stored


def raw(server, folder):
    """Seconds of one curl for the same rows."""
    rows = f"{folder}/rows"
    url = f"http://127.0.0.1:{server.port}/?database=traced"
    subprocess.run(
        ["curl", "-sS", "-f", "-o", rows, "--data-binary",
         "SELECT * FROM record FINAL FORMAT RowBinary", url],
        check=True,
    )
    best = float("inf")
    for _ in range(3):
        server.ask("DROP TABLE IF EXISTS raw", "traced")
        server.ask("CREATE TABLE raw AS record", "traced")
        begin = time.perf_counter()
        subprocess.run(
            ["curl", "-sS", "-f", "-T", rows, "-X", "POST",
             f"{url}&query=INSERT%20INTO%20raw%20FORMAT%20RowBinary"],
            check=True,
        )
        best = min(best, time.perf_counter() - begin)
    return best, os.path.getsize(rows)


def cpu(pid):
    """Seconds of all its threads."""
    parts = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")


def asked(tracectl, *words, times=1):
    """Seconds, the best of so many times."""
    best = float("inf")
    for _ in range(times):
        begin = time.perf_counter()
        subprocess.run([tracectl, *words], stdout=subprocess.DEVNULL)
        best = min(best, time.perf_counter() - begin)
    return best


def in_sqlite(tracerd, client, folder, records):
    """A file with the same run."""
    os.mkdir(folder, 0o700)
    daemon = start(tracerd, folder, f"{folder}/data")
    try:
        subprocess.run(
            [client, "write", folder, "1", str(OBJECTS),
             str(records // OBJECTS // 2)],
            check=True,
        )
    finally:
        daemon.terminate()
        daemon.wait()
    return f"{folder}/data/bench.db"


def questions(tracectl, server, path):
    object_name = f"forward-Linear-{OBJECTS}"
    store = ("--store", server.url())
    said = []
    for name, times, words in (
        ("one record", 5, ("query", f"{object_name}-7-output")),
        ("a history", 3, ("query", object_name)),
        ("check", 1, ("check", "bench")),
        ("compare", 1, ("compare", "bench", path)),
    ):
        plain = [path if word == "bench" else word for word in words]
        said.append(
            f"{name} {asked(tracectl, *store, *words, times=times):.2f} s"
            f" (SQLite {asked(tracectl, '-d', path, *plain, times=times):.2f})"
        )
    return ", ".join(said)


def main():
    tracerd, *programs = sys.argv[1:4]
    records = int(sys.argv[4]) if len(sys.argv) > 4 else 2_000_000
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        with Server(f"{folder}/house") as server:
            server.start()
            daemon = start(
                tracerd, folder, f"{folder}/data", "--store", server.url()
            )
            try:
                all_there, stored = traced(programs, folder, records)
                spent = cpu(daemon.pid)
            finally:
                daemon.terminate()
                daemon.wait()
            there = server.ask("SELECT count() FROM record FINAL", "traced")
            assert int(there) == records
            plain, size = raw(server, folder)
            disk = int(server.ask(
                "SELECT sum(bytes_on_disk) FROM system.parts WHERE active"
                " AND table = 'record'"
            ))
            print(
                f"{records} records: {records / all_there:.0f} a second until"
                f" the engine has them ({records / stored:.0f} until they are"
                f" durable), {records / spent:.0f} a CPU second of the daemon;"
                f" raw inserts {records / plain:.0f}, ratio"
                f" {plain / all_there:.2f}\n{size / records:.0f} bytes a"
                f" record sent, {disk / records:.1f} on the engine's disk"
            )
            path = in_sqlite(tracerd, programs[1], f"{folder}/plain", records)
            print(questions(programs[0], server, path))


if __name__ == "__main__":
    main()
