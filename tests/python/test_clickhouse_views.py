"""What ClickHouse's views and docs/sql.md's queries say, in the release that
Debian has and in today's: the same as SQLite's."""

import json
import os
import random
import re
import sqlite3
import struct
import urllib.request

import pytest

from clickhouse_server import Server
from house_rows import FORMAT, rows, statements
from programs import TOP, Daemon, need, python
from test_clickhouse import as_sqlite, status, tracectl, wait_empty
from test_cookbook import ATTACH, SCRIPT, forms

VIEWS = (
    "v_record", "v_sample", "v_histogram", "v_object", "v_run", "v_loss",
    "v_pruned",
)
# bytes of a sample, by dtype
BYTES = dict(enumerate(
    (8, 4, 2, 2, 1, 1, 1, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1, 4, 8, 16, 1, 8, 1),
    1,
))
BINS = {1: 2047, 2: 255, 3: 31, 9: 255, 13: 64, 14: 8, 19: 2047, 23: 2047}


class Debian:
    """The server that Debian has."""

    def __init__(self, folder):
        need("tracerd", "tracectl")
        self.server = Server(f"{folder}/house")
        self.server.start()

    def run(self, sql, database="traced"):
        return self.server.ask(sql, database)

    def rows(self, sql):
        return rows(self.run(f"{sql} FORMAT {FORMAT}"))

    def dump(self, sql, path):
        url = f"http://127.0.0.1:{self.server.port}/?database=traced"
        urllib.request.urlretrieve(url, path, data=sql.encode())

    def close(self):
        self.server.__exit__()


class Today:
    """The release that chdb brings along."""

    def __init__(self, folder):
        chdb = pytest.importorskip("chdb.session")
        self.session = chdb.Session(f"{folder}/chdb")

    def run(self, sql, database="traced"):
        if database != "default":
            self.session.query(f"USE {database}")
        return str(self.session.query(sql))

    def rows(self, sql):
        return rows(str(self.session.query(sql, FORMAT)))

    def close(self):
        self.session.close()


@pytest.fixture(params=[Debian, Today])
def engine(request, folder):
    """It has the tables and views."""
    found = request.param(folder)
    try:
        make_tables(found)
        yield found
    finally:
        found.close()


def make_tables(engine):
    engine.run("CREATE DATABASE IF NOT EXISTS traced", "default")
    for name in ("tables", "views"):
        for statement in statements(name):
            engine.run(statement)


def exact(row):
    """Floats by their bits; a whole one and an int are the same."""
    return tuple(
        struct.pack("<d", x) if isinstance(x, (int, float)) else x
        for x in row
    )


def same(found, plain):
    for a, b in zip(found, plain):
        assert exact(a) == exact(b), (a, b)
    assert len(found) == len(plain)


def make_samples():
    """Rows (dtype, n, samples, sampling, sampling_arg): each dtype with all
    its bytes, or some and those at the ends; each way to choose."""
    chance = random.Random(7)
    made = []
    for dtype, size in BYTES.items():
        samples = bytes(range(256))
        if size > 1:
            ends = (b"\0", b"\xff", b"\0\x7c", b"\0\xfc", b"\x80\x7f",
                    b"\x80\xff", b"\x01\0", b"\xc0\x7f", b"\0\x80",
                    b"\xf0\x7f", b"\xf0\xff", b"\x0f\0")
            samples = b"".join(e.rjust(size, e[:1])[-size:] for e in ends)
            samples += b"".join(e.rjust(size, b"\0")[-size:] for e in ends)
            samples += chance.randbytes(size * 300)
        for sampling in (0, 1, 2):
            k = len(samples) // size
            n = k * 5 if sampling < 2 else chance.randrange(k, 1 << 40)
            arg = (0, 5, chance.getrandbits(63))[sampling]
            made.append((dtype, n, samples, sampling, arg))
    return made


def make_histograms():
    """Rows (dtype, histogram)."""
    chance = random.Random(8)
    made = []
    for dtype, bins in BINS.items():
        for kind, width in ((1, 1), (2, 2), (2, 4), (2, 8)):
            first = chance.randrange(bins)
            counts = [
                chance.getrandbits(8 * width - 1)
                for _ in range(min(40, bins - first))
            ]
            made.append((dtype, struct.pack("<BBBH", kind, dtype, width, first)
                         + b"".join(c.to_bytes(width, "little")
                                    for c in counts)))
    return made


def quoted(blob):
    return "'" + "".join(f"\\x{b:02x}" for b in blob) + "'"


def plain_run():
    """A SQLite run of one stream and no records."""
    db = sqlite3.connect(":memory:")
    db.executescript((TOP / "proto/schema.sql").read_text())
    db.execute("INSERT INTO path VALUES(1, '')")
    db.execute("INSERT INTO shape VALUES(1, '', 1)")
    db.execute(
        "INSERT INTO stream(id, attempt, rank, epoch, world, pid, start_time,"
        " boot_id, host, uid, client, real_ns, mono_ns, info, seq, dict_n,"
        " state) VALUES(0, 0, 0, 1, 1, 1, 1, '', '', 0, '', 0, 0, '', 1, 0,"
        " 'ended')"
    )
    return db


def put(db, engine, seq, dtype, n, samples, sampling, arg, histogram):
    db.execute(
        "INSERT INTO record(step, object, pass, stream, io, position, seq,"
        " t_ns, iteration, microbatch, labels, path, dtype, shape, n,"
        " samples) VALUES(1, 0, 5, 0, 0, 0, ?, 0, 1, 0, 0, 1, ?, 1, ?, ?)",
        (seq, dtype, n, samples),
    )
    db.execute(
        "INSERT INTO extra VALUES(0, ?, nullif(?, 0), ?, ?)",
        (seq, sampling, arg, histogram),
    )
    engine.run(
        "INSERT INTO record(run, step, pass, seq, dtype, n, samples,"
        f" sampling, sampling_arg, histogram) VALUES('r', 1, 5, {seq},"
        f" {dtype}, {n}, {quoted(samples)}, {sampling}, {arg},"
        f" {quoted(histogram or b'')})"
    )


def test_samples_are_decoded_as_in_sqlite(engine):
    db = plain_run()
    for seq, row in enumerate(make_samples(), 1):
        put(db, engine, seq, *row, None)
    sql = (
        "SELECT seq, sample, element, value, imag, bits, of_step, of_pass,"
        " of_rank FROM v_sample ORDER BY seq, sample"
    )
    found = engine.rows(sql)
    assert len(found) > 20000
    same(found, db.execute(sql).fetchall())
    db.close()


def test_histograms_are_read_as_in_sqlite(engine):
    db = plain_run()
    for seq, (dtype, histogram) in enumerate(make_histograms(), 1):
        put(db, engine, seq, dtype, 1, b"", 0, 0, histogram)
    sql = (
        "SELECT stream, seq, bin, exponent, count, kind FROM v_histogram"
        " ORDER BY stream, seq, bin"
    )
    found = engine.rows(sql)
    assert len(found) > 200
    assert found == db.execute(sql).fetchall()
    db.close()


def test_what_is_sent_twice_is_seen_once(engine):
    for _ in range(2):
        engine.run(
            "INSERT INTO record(run, step, seq, dtype, n, samples, histogram)"
            " VALUES('r', 1, 1, 2, 1, 'abcd', '\\x02\\x02\\x01\\0\\0\\x05')"
        )
    assert engine.rows("SELECT count() FROM record") in ([(2,)], [(1,)])
    for view in ("v_record", "v_sample", "v_histogram"):
        assert engine.rows(f"SELECT count() FROM {view}") == [(1,)]


def test_views_have_the_columns_of_sqlite(engine):
    db = plain_run()
    for view in VIEWS:
        head = [row[0] for row in engine.rows(f"DESCRIBE TABLE {view}")]
        columns = db.execute(f"PRAGMA table_info({view})").fetchall()
        assert head == ["run"] + [column[1] for column in columns]
        assert engine.rows(f"SELECT * FROM {view}") == []
    db.close()


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """An engine of Debian's with the runs cookbook and other, and a folder
    with the files that SQLite has of them."""
    folder = tmp_path_factory.mktemp("views")
    path = folder / "tracerd"
    os.mkdir(path, 0o700)
    house = Debian(folder)
    try:
        house.server.kill()
        with Daemon(str(path), "--store", house.server.url()) as keeper:
            for run, scale in (("cookbook", 1), ("other", 2)):
                for rank in (0, 1):
                    python(SCRIPT, run, scale, folder=keeper.dir, RANK=rank,
                           WORLD_SIZE=2, LOCAL_RANK=rank, SLURM_JOB_ID=run)
            keeper.wait(lambda: status(keeper)["clients"] == 0)
            for run in ("cookbook", "other"):
                as_sqlite(keeper, run, folder / f"{run}.db")
            house.server.start()
            wait_empty(keeper)
        yield house, folder
    finally:
        house.close()


@pytest.fixture
def today(stored, folder):
    """The same in today's release."""
    house, _ = stored
    engine = Today(folder)
    try:
        make_tables(engine)
        for table in ("record", "stream", "loss", "object"):
            path = f"{folder}/{table}"
            house.dump(f"SELECT * FROM {table} FORMAT {FORMAT}", path)
            engine.run(
                f"INSERT INTO {table} SELECT * FROM file('{path}', {FORMAT})"
            )
        yield engine
    finally:
        engine.close()


def with_run(query):
    """What docs/sql.md says of a query without a form of its own."""
    query, n = re.subn(r"\bWHERE ", "WHERE run = 'cookbook' AND ", query)
    if not n:
        query, n = re.subn(
            r"FROM v_\w+", r"\g<0> WHERE run = 'cookbook'", query
        )
    assert n == 1
    return query


def each_query_answers_as_in_sqlite(engine, folder, monkeypatch):
    monkeypatch.chdir(folder)
    db = sqlite3.connect("cookbook.db")
    for name, (plain, house) in forms().items():
        expected = db.execute(plain).fetchall()
        if name != ATTACH:
            query = (house or with_run(plain)).strip().rstrip(";")
            found = engine.rows(query)
            assert found == expected, (name, found)
    db.close()


def test_each_query_answers_as_in_sqlite(stored, monkeypatch):
    each_query_answers_as_in_sqlite(*stored, monkeypatch)


def test_each_query_answers_so_in_a_current_release(
    stored, today, monkeypatch
):
    each_query_answers_as_in_sqlite(today, stored[1], monkeypatch)


class Careful(Server):
    """Refuses to read many rows for one answer."""

    LIMIT = 50_000

    def configure(self, profile="default"):
        super().configure(profile)
        users = self.folder / "users.xml"
        limit = f"<max_rows_to_read>{self.LIMIT}</max_rows_to_read>"
        users.write_text(
            users.read_text().replace("<default><max", f"<default>{limit}<max")
        )


def test_a_question_of_one_record_reads_few_rows(folder):
    need("tracectl")
    with Careful(f"{folder}/house") as server:
        server.start()
        server.ask("CREATE DATABASE traced")
        for name in ("tables", "views"):
            for statement in statements(name):
                server.ask(statement, "traced")
        server.ask(
            "INSERT INTO stream(run, epoch, seq, state) VALUES"
            " ('long', 1, 200000, 'ended')", "traced",
        )
        # what is sent again comes as parts of their own
        for _ in range(2):
            for first in range(0, 200_000, Careful.LIMIT):
                server.ask(
                    "INSERT INTO record(run, epoch, seq, step, object, pass,"
                    " class, instance, module, io, dtype, n) SELECT 'long',"
                    f" 1, number + {first} + 1 AS s, intDiv(s - 1, 100) + 1,"
                    " (s - 1) % 100 + 1 AS o, 1, 'Linear', o, concat('m',"
                    " toString(o)), 2, 2, 1 FROM (SELECT number FROM"
                    f" system.numbers LIMIT {Careful.LIMIT})", "traced",
                )
        store = ("--store", server.url(), "-o", "json")
        found = tracectl(*store, "query", "forward-Linear-7-1500-output")
        assert found.returncode == 0, found
        (row,) = map(json.loads, found.stdout.splitlines())
        assert (row["module"], row["seq"]) == ("m7", 149_907)
        whole = tracectl(*store, "query", "*")
        assert whole.returncode == 3
        assert b"code 158" in whole.stderr
