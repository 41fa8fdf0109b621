"""Runs in a ClickHouse: the same answers as from SQLite, and nothing lost or
twice whoever is killed."""

import contextlib
import json
import os
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

import waiting
from clickhouse_server import Server, keeper_of
from programs import TOP, Daemon, need, program, python
from test_durability import Training, whole

SCRIPT = TOP / "tests/python/steady_script.py"


@pytest.fixture
def keeper(folder, server):
    """A daemon that stores into it."""
    with keeper_of(folder, server.url()) as d:
        yield d


def tracectl(*args):
    return subprocess.run(
        [program("tracectl"), *map(str, args)],
        capture_output=True,
        timeout=120,
    )


def status(daemon):
    rows = daemon.tracectl("-o", "json", "status").stdout.splitlines()
    rows = [json.loads(row) for row in rows]
    return {row["key"]: row["value"] for row in rows}


def wait_empty(daemon, seconds=60):
    """Until nothing waits, and ends of streams have come too."""
    daemon.wait(lambda: status(daemon).get("queue_rows") == 0, seconds)


def as_sqlite(daemon, run, path):
    """The run's file as it would be without a ClickHouse: what waits in its
    queue is put where records are. All of it must wait."""
    with (
        sqlite3.connect(f"{daemon.data}/{run}.db") as source,
        sqlite3.connect(path) as db,
    ):
        source.backup(db)
        waiting.move(db)
    source.close()
    db.close()


RANGE = waiting.HAS_RANGE | waiting.HAS_ABS
ODD = (
    {
        "has": waiting.HAS_COUNTS | waiting.HAS_HASH, "n": 6, "nan": 3,
        "pinf": 2, "ninf": 1, "zero": 0, "subnormal": 0, "sample_n": 0,
        "samples": b"",
    },
    {
        "has": RANGE | waiting.HAS_HASH, "dtype": 13, "sample_n": 1,
        "samples": bytes.fromhex("0009005c0a00ff27"),
        "max": 9007199254740993, "min": -(2**63), "absmax": 7, "absmin": 7,
    },
    {
        "has": RANGE | waiting.HAS_HASH, "dtype": 17, "sample_n": 1,
        "samples": bytes.fromhex("ffffffffffffffff"),
        "max": -1, "min": -(2**63), "absmax": -1, "absmin": -(2**63),
    },
    {
        "dtype": 1, "mean": -0.0, "std": 1e-310, "l2": 0.1, "max": 1e300,
        "sample_n": 0, "samples": b"",
    },
    {
        "hash": -2, "labels": 1 << 22, "sampling": 2,
        "sampling_arg": 2**64 - 3,
    },
    {"has": 0, "sample_n": 0, "samples": b""},
)


def same(found, plain):
    """What was said, line by line, so that a difference is seen."""
    found, plain = found.stdout.splitlines(), plain.stdout.splitlines()
    for a, b in zip(found, plain):
        assert a == b, (a, b)
    assert len(found) == len(plain)


def make_odd(daemon, run):
    """Puts what few trainings have into records that wait, and an object that
    has none."""
    with sqlite3.connect(f"{daemon.data}/{run}.db") as db:
        db.execute("INSERT INTO object VALUES(NULL, 'Idle', 7, 'idle')")
        waiting.change(
            db, lambda i, m: m.update(ODD[i % 8] if i % 8 < len(ODD) else {})
        )
    db.close()


COMMANDS = (
    ("runs",),
    ("query", "*"),
    ("query", "forward-Linear-1-2-output"),
    ("query", "backward-*", "--rank", "1"),
    ("query", "grad-*", "--iteration", "3"),
    ("query", "forward-Linear-7-2"),
    ("query", "*", "--limit", "7"),
    ("query", "*", "--limit", "1000000000000"),
    ("query", "*ward-L*", "--limit", "40"),
    ("query", "backward-Linear-1", "--rank", "1", "--limit", "3"),
    ("query", "f?rward-Linear-1", "--limit", "3"),
    ("query", "forward-Idle-7"),
    ("query", "forward-Idle-7-2-output"),
    ("query", "forward-Idel-7"),
    ("query", "forward-idle"),
    ("query", "f*-1-[2]*"),
    ("query", "*ward-L?near-1"),
    ("query", "*-3-out*"),
    ("query", "grad-*", "--attempt", "0", "--microbatch", "0"),
    ("query", "grad-*", "--rank", "7"),
    ("query", "forward-Linear-1-99"),
    ("query", "forward-Linar-1-2"),
    ("query", "param-100%_it's\\-1"),
    ("query", "nothing*at*all"),
    ("sql", "SELECT * FROM v_record ORDER BY rank, seq"),
    ("sql", "SELECT * FROM v_run"),
    ("sql", "SELECT * FROM v_object"),
    ("export",),
    ("check", "same"),
)


def views_are_the_same(server, reference):
    """What v_record of either says, as text; blobs and long labels aside."""
    with sqlite3.connect(reference) as db:
        head = [row[1] for row in db.execute("PRAGMA table_info(v_record)")]
        names = [
            f"`{n}`" for n in head
            if n not in ("samples", "histogram", "hash", "sampling")
        ]
        sql = f"SELECT {', '.join(names)} FROM v_record ORDER BY rank, seq"
        plain = db.execute(sql).fetchall()
    db.close()
    text = server.ask(
        sql + " SETTINGS output_format_json_quote_64bit_integers = 0,"
        " output_format_json_quote_denormals = 1 FORMAT JSONCompact",
        "traced",
    )
    store = json.loads(text)["data"]
    assert len(store) == len(plain)
    for a, b in zip(store, plain):
        for name, x, y in zip(names, a, b):
            if isinstance(y, (int, float)):
                x = float(x)
                assert x == y or x == float(y), (name, x, y)
            else:
                assert x == ("" if y is None and x == "" else y), (name, x, y)


def test_every_command_says_what_it_says_of_sqlite(keeper, server, folder):
    python(SCRIPT, "same", 5, 0, folder=keeper.dir, ranks=2)
    held = status(keeper)
    assert held["queue_rows"] == held["records"] > 100
    assert held["store_down"] == 1
    make_odd(keeper, "same")
    reference = f"{folder}/same.db"
    as_sqlite(keeper, "same", reference)
    server.start()
    wait_empty(keeper)
    keeper.stop()
    for command in COMMANDS:
        if command == ("check", "same"):
            plain = tracectl("-o", "json", "check", reference)
        else:
            plain = tracectl("-d", reference, "-o", "json", *command)
        store = tracectl("--store", server.url(), "-o", "json", *command)
        assert store.returncode == plain.returncode, (command, store)
        assert store.stdout == plain.stdout, command
        assert store.stderr == plain.stderr, command
    views_are_the_same(server, reference)
    both = tracectl(
        "--store", server.url(), "-o", "json", "compare", reference, "same"
    )
    assert both.returncode == 0, both


def rows(server):
    """How many records, and how many different ones."""
    text = server.ask("SELECT seq FROM record FINAL ORDER BY seq", "traced")
    return [int(line) for line in text.split()]


def test_the_server_is_killed_and_comes_back(keeper, server):
    server.start()
    training = Training(keeper.dir, "server", 60, 0.05)
    for lines in (10, 30):
        training.wait_lines(lines)
        server.kill()
        time.sleep(0.5)
        server.start()
    assert training.end() == ""
    wait_empty(keeper)
    found = rows(server)
    assert whole(found) and len(found) == training.submitted


def test_the_daemon_is_killed_and_comes_back(keeper, server):
    server.start()
    training = Training(keeper.dir, "daemon", 60, 0.05)
    for lines in (5, 15, 25, 35):
        training.wait_lines(lines)
        keeper.kill()
        keeper.start()
    assert training.end() == ""
    keeper.wait(lambda: status(keeper)["clients"] == 0)
    wait_empty(keeper)
    found = rows(server)
    assert whole(found) and len(found) == training.submitted
    out = tracectl("--store", server.url(), "-o", "json", "runs").stdout
    (run,) = [json.loads(line) for line in out.splitlines()]
    assert (run["records"], run["losses"]) == (training.submitted, 0)
    assert run["state"] == "ended"


def test_a_server_that_stands_still_holds_up_nobody(keeper, server):
    server.start()
    training = Training(keeper.dir, "still", 60, 0.02)
    training.wait_lines(5)
    server.halt()
    assert training.end() == ""
    keeper.wait(lambda: status(keeper)["store_down"] == 1)
    held = status(keeper)
    assert held["records"] == training.submitted
    assert held["queue_rows"] > 0
    assert "the store takes nothing for" in held["problem"]
    server.go_on()
    wait_empty(keeper)
    keeper.wait(lambda: status(keeper)["store_down"] == 0)
    found = rows(server)
    assert whole(found) and len(found) == training.submitted


def test_a_server_that_only_reads_is_told_and_gets_all_later(keeper, server):
    server.start(profile="reader")
    training = Training(keeper.dir, "reader", 10, 0)
    assert training.end() == ""
    keeper.wait(lambda: status(keeper)["store_down"] == 1)
    held = status(keeper)
    assert held["queue_rows"] == training.submitted
    assert "its error 164" in held["problem"]
    server.kill()
    server.start()
    wait_empty(keeper)
    found = rows(server)
    assert whole(found) and len(found) == training.submitted


def test_refused_rows_are_kept_with_the_reason(keeper, server):
    server.start()
    assert Training(keeper.dir, "before", 2, 0).end() == ""
    wait_empty(keeper)
    server.ask(
        "CREATE MATERIALIZED VIEW picky ENGINE = Null AS"
        " SELECT throwIf(seq % 50 = 7) AS x FROM record",
        "traced",
    )
    training = Training(keeper.dir, "picky", 20, 0)
    assert training.end() == ""
    wait_empty(keeper)
    wanted = [s for s in range(1, training.submitted + 1) if s % 50 == 7]
    keeper.wait(
        lambda: status(keeper)["forward_refused"] == len(wanted) > 3
    )
    assert "refused" in status(keeper)["problem"]
    keeper.stop()
    with sqlite3.connect(f"{keeper.data}/picky.db") as db:
        kept = db.execute("SELECT seq, reason FROM refused ORDER BY seq")
        kept = kept.fetchall()
        assert db.execute("SELECT count(*) FROM queue").fetchone() == (0,)
    db.close()
    assert [seq for seq, _ in kept] == wanted
    assert all("(code 395)" in reason for _, reason in kept)
    # the engine may have half of what it refused; of the rest, all once
    text = server.ask(
        "SELECT seq FROM record FINAL WHERE run = 'picky'"
        " AND seq % 50 != 7 ORDER BY seq",
        "traced",
    )
    rest = [s for s in range(1, training.submitted + 1) if s % 50 != 7]
    assert [int(line) for line in text.split()] == rest


def make_queue_old(path):
    """As daemons had it when they queued a column for each figure."""
    more = "sampling, sampling_arg, histogram"
    with sqlite3.connect(path) as db:
        waiting.move(db)
        info = db.execute("PRAGMA table_info(record)")
        names = ", ".join(row[1] for row in info)
        db.executescript(
            "DROP TABLE queue; DROP TABLE refused;"
            f"CREATE TABLE queue({names}, id INTEGER PRIMARY KEY, total,"
            f" {more}); CREATE TABLE refused({names}, id, total, {more},"
            f" reason); INSERT INTO queue({names}, total) SELECT {names}, 0"
            " FROM record; DELETE FROM record;"
        )
    db.close()


def test_what_an_earlier_daemon_queued_is_kept_and_told(keeper, server):
    training = Training(keeper.dir, "old", 5, 0)
    assert training.end() == ""
    keeper.stop()
    make_queue_old(f"{keeper.data}/old.db")
    keeper.start()
    keeper.wait(lambda: status(keeper)["forward_refused"] > 0)
    assert status(keeper)["forward_refused"] == training.submitted
    assert f"records={training.submitted}" in keeper.log()
    assert "refused" in status(keeper)["problem"]
    server.start()
    later = Training(keeper.dir, "old", 5, 0)
    assert later.end() == ""
    wait_empty(keeper)
    found = rows(server)
    assert whole(found) and len(found) == later.submitted
    keeper.stop()
    with sqlite3.connect(f"{keeper.data}/old.db") as db:
        kept = db.execute(
            "SELECT count(hash), count(DISTINCT seq), min(reason) FROM refused"
        ).fetchone()
    db.close()
    assert kept[1] == training.submitted and "earlier" in kept[2]


def test_a_full_queue_makes_clients_keep_their_records(folder, server):
    path = f"{folder}/tracerd"
    os.mkdir(path, 0o700)
    config = Path(folder, "config")
    config.write_text(f"store = {server.url()}\nstore_queue_mb = 1\n")
    with Daemon(path, "--config", str(config)) as keeper:
        training = Training(keeper.dir, "full", 1500, 0)
        keeper.wait(lambda: status(keeper)["queue_full"] == 1, 60)
        assert "store_queue_mb is reached" in str(
            keeper.tracectl("-o", "json", "status").stdout
        )
        server.start()
        assert training.end() == ""
        # what the client still had comes after a moment without any
        keeper.wait(
            lambda: status(keeper)["records"] == training.submitted, 60
        )
        wait_empty(keeper)
        assert status(keeper)["queue_full"] == 0
        assert status(keeper)["queue_fills"] >= 1
        found = rows(server)
        assert whole(found) and len(found) == training.submitted


SHARD = (
    "<shard><replica><host>127.0.0.1</host><port>{}</port></replica></shard>"
)


def samples_of(references):
    """How many, the largest, and how many different ones."""
    found = set()
    for path in references:
        with sqlite3.connect(path) as db:
            found |= set(db.execute(
                "SELECT of_rank, seq, sample, element, value, bits"
                " FROM v_sample"
            ))
        db.close()
    return [
        len(found), max(row[3] for row in found),
        max(row[4] for row in found if row[4] is not None),
        len({row[5] for row in found}),
    ]


def test_two_nodes_store_into_two_shards(folder):
    need("tracerd", "tracectl")
    with (
        contextlib.ExitStack() as running,
        Server(f"{folder}/a") as a,
        Server(f"{folder}/b") as b,
    ):
        shards = SHARD.format(a.tcp_port) + SHARD.format(b.tcp_port)
        a.clusters = b.clusters = f"<both>{shards}</both>"
        daemons, references = [], []
        for rank, server in enumerate((a, b)):
            path = f"{folder}/node{rank}"
            os.mkdir(path, 0o700)
            url = server.url(tail="?cluster=both")
            node = running.enter_context(Daemon(path, "--store", url))
            daemons.append(node)
            env = {"RANK": rank, "WORLD_SIZE": 2, "LOCAL_RANK": 0}
            python(SCRIPT, "shards", 4, 0, folder=path, **env)
            references.append(f"{folder}/{rank}.db")
            as_sqlite(daemons[rank], "shards", references[rank])
        a.start()
        b.start()
        for d in daemons:
            wait_empty(d)
            d.stop()
        for server in (a, b):
            local = server.ask(
                "SELECT DISTINCT rank FROM record_local", "traced"
            )
            assert len(local.split()) == 1
            store = ("--store", server.url(), "-o", "json")
            for rank, reference in enumerate(references):
                plain = tracectl("-d", reference, "-o", "json", "query", "*")
                found = tracectl(*store, "query", "*", "--rank", rank)
                assert plain.returncode == 0, plain
                same(found, plain)
            (run,) = tracectl(*store, "runs").stdout.splitlines()
            assert json.loads(run)["ranks"] == 2
            text = server.ask(
                "SELECT count(), max(element), max(value), uniqExact(bits)"
                " FROM v_sample", "traced",
            )
            assert [*map(float, text.split())] == samples_of(references)
            for view in ("v_record", "v_histogram", "v_object", "v_pruned"):
                server.ask(f"SELECT * FROM {view} FORMAT Null", "traced")
