"""tracerd.load: the records of a stored run as a table."""

import math
import os
import sqlite3

import pytest
import torch
from torch import nn

import tracerd
from programs import python

pytest.importorskip("adbc_driver_sqlite")
pytest.importorskip("pandas")
SIMPLE = [
    "attempt", "rank", "seq", "ts_ns", "pass", "class", "instance", "object",
    "module", "step", "iteration", "microbatch", "recompute", "io", "position",
    "path", "dtype", "n", "nan", "pinf", "ninf", "zero", "subnormal", "name",
]
FIGURES = ["max", "min", "mean", "std", "l2", "absmax", "absmin"]
BAD = [float("nan"), float("inf"), -float("inf"), 1.5, -0.0, 1e-41]


def nasty():
    """Tensors of every dtype and every mix of what is not finite."""
    for mask in range(1, 64):
        yield f"mix{mask}", torch.tensor(
            [x for i, x in enumerate(BAD) if mask >> i & 1]
        )
    yield "none", torch.empty(0)
    ramp = torch.linspace(-3, 3, 17)
    for dtype in (
        torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int64,
        torch.uint8, torch.bool, torch.complex64, torch.complex128,
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz, torch.int16, torch.int32,
    ):
        yield str(dtype)[6:], ramp.abs().to(dtype)
    codes = torch.arange(256, dtype=torch.uint8)
    for dtype in (
        torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz,
        torch.float8_e5m2fnuz, torch.float8_e8m0fnu,
    ):
        yield f"all.{dtype}", codes.view(dtype)
    yield "large", torch.tensor([2**62, -(2**61)])
    yield "high", torch.tensor([2**63, 2**64 - 2**12], dtype=torch.uint64)
    yield "one", torch.tensor([7], dtype=torch.uint64)


@pytest.fixture
def stored(here):
    """A run of a few of everything; the daemon that has it."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.LSTM(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    t = tracerd.attach(model, optimizer, run="all", samples=256)
    for step in range(3):
        model(torch.randn(5, 3))[0].sum().backward()
        with torch.no_grad():
            model(torch.randn(5, 3))
        optimizer.step()
        for name, tensor in nasty() if step == 0 else ():
            t.record(name, tensor)
    t.close()
    here.wait(lambda: [r.state for r in here.runs()] == ["ended"])
    return here


def file_of(daemon, run="all"):
    return os.path.join(daemon.data, run + ".db")


def null(value):
    """As a table has a number of the JSON output."""
    if value is None or isinstance(value, float) and math.isnan(value):
        return None
    return value


def agree(table, records):
    """A table's rows are the records, in any order."""
    rows = {(row["attempt"], row["rank"], row["seq"]): row
            for row in table.to_pylist()}
    assert len(rows) == table.num_rows == len(records) > 0
    for r in records:
        row = rows[r.attempt, r.rank, r.seq]
        assert {n: row[n] for n in SIMPLE} == {n: r[n] for n in SIMPLE}
        assert row["shape"] == " ".join(map(str, r.shape))
        assert row["labels"] == " ".join(r.labels)
        assert (r.hash and int(r.hash, 16)) == row["hash"]
        for n in FIGURES:
            assert row[n] == null(r[n]), (r.name, n)
        flat = []
        for x in r.samples or ():
            flat += x if isinstance(x, list) else [x]
        assert [null(x) for x in row["samples"] or ()] == list(map(null, flat))


def test_all_records_as_the_query_has_them(stored):
    table = tracerd.load(
        "all", names=True, samples=True, arrow=True, data=stored.data
    )
    agree(table, stored.query("all"))


def test_a_condition_gives_the_same_columns(stored):
    path = file_of(stored)
    every, chosen = (
        tracerd.load(path, where, names=True, samples=True, arrow=True)
        for where in (None, "step > 0")
    )
    assert every.schema == chosen.schema
    by_seq = [("seq", "ascending")]
    every, chosen = every.sort_by(by_seq), chosen.sort_by(by_seq)
    for name in every.column_names:
        if name != "samples":  # NaN is never equal
            assert every[name].to_pylist() == chosen[name].to_pylist(), name
    agree(chosen, stored.query("all"))


def test_a_condition_chooses(stored):
    some = tracerd.load(
        file_of(stored), "module = '0' AND pass = 'forward' -- all", names=True
    )
    assert set(some["object"]) == {"Linear-1"}
    assert some["step"].tolist() == sorted([1, 2, 3, 4, 5, 6] * 2)
    assert set(some["name"]) == {
        f"forward-Linear-1-{step}-{io}"
        for step in range(1, 7) for io in ("input", "output")
    }
    none = tracerd.load(file_of(stored), "step < 0", samples=True)
    assert len(none) == 0 and "samples" in none.columns


def test_pandas_has_whole_numbers_and_categories(stored):
    frame = tracerd.load(file_of(stored))
    assert "name" not in frame and "samples" not in frame
    assert str(frame["hash"].dtype) == str(frame["nan"].dtype) == "UInt64"
    assert str(frame["module"].dtype) == "category"
    assert str(frame["max"].dtype) == "float64"
    r = stored.query("all", "forward-Linear-1-2-output")[0]
    row = frame[(frame["object"] == "Linear-1") & (frame["step"] == 2)
                & (frame["pass"] == "forward") & (frame["io"] == "output")]
    assert row["hash"].tolist() == [int(r.hash, 16)]
    assert row["max"].tolist() == [r.max]


def test_text_that_was_imported(daemon):
    log = f"{daemon.dir}/old.log"
    with open(log, "w") as f:
        for i, figures in enumerate((
            "nan,nan,nan,nan", "inf,0.00000,inf,nan", "1.00000,-inf,-inf,nan",
            "1.00000,-1.00000,0.00000,0.50000",
        )):
            f.write(
                f"12000000000{i},{i + 1},forward-Linear-{i + 1}-1-input,0,"
                f"[2, 2]-{figures},0.50000,nan,inf,-1.00000\n"
            )
    daemon.tracectl("import", log, "--run", "old")
    for where in (None, "1"):
        agree(
            tracerd.load(
                "old", where, names=True, samples=True, arrow=True,
                data=daemon.data,
            ),
            daemon.query("old"),
        )


def test_unsigned_figures_above_2_to_63_are_no_negative_ones(stored):
    with sqlite3.connect(file_of(stored)) as db:
        rows = db.execute(
            "SELECT max, min, absmax, absmin, finite_max, finite_min"
            " FROM v_record WHERE name LIKE 'user-high-%'"
        ).fetchall()
    db.close()
    high, low = 2.0**64 - 2**12, 2.0**63
    assert rows == [(high, low, high, low, high, low)]


def test_arrow_keeps_the_memory_that_it_had(stored):
    import pyarrow as pa

    before = pa.default_memory_pool().backend_name
    tracerd.load(file_of(stored))
    with pytest.raises(ValueError):
        tracerd.load(file_of(stored), "no_such_column = 1")
    assert pa.default_memory_pool().backend_name == before


def test_pages_follow_each_other(stored, monkeypatch):
    from tracerd import database
    from tracerd import stored as reader

    monkeypatch.setattr(reader, "_PAGE", 7)
    monkeypatch.setattr(database, "_BATCH", 3)
    table = tracerd.load(
        file_of(stored), names=True, samples=True, arrow=True
    )
    agree(table, stored.query("all"))


def test_named_runs_lie_where_the_environment_says(stored, monkeypatch):
    monkeypatch.setenv("TRACERD_DATA", stored.data)
    assert len(tracerd.load("all", "seq = 1")) == 1
    monkeypatch.delenv("TRACERD_DATA")
    monkeypatch.setenv("XDG_STATE_HOME", stored.dir)
    with pytest.raises(FileNotFoundError, match="tracerd/all.db"):
        tracerd.load("all")


def test_what_is_no_run_is_refused(stored, tmp_path):
    other = tmp_path / "other.db"
    sqlite3.connect(other).execute("CREATE TABLE t(x)")
    with pytest.raises(ValueError, match="not a stored run"):
        tracerd.load(other)
    text = tmp_path / "text.db"
    text.write_text("no database at all " * 100)
    with pytest.raises(ValueError, match="text.db"):
        tracerd.load(text)
    with pytest.raises(FileNotFoundError, match="none.db"):
        tracerd.load(tmp_path / "none.db")
    with pytest.raises(ValueError, match="no_such_column"):
        tracerd.load(file_of(stored), "no_such_column = 1")
    with sqlite3.connect(tmp_path / "new.db") as new:
        sqlite3.connect(file_of(stored)).backup(new)
        new.execute("PRAGMA user_version = 99")
    with pytest.raises(ValueError, match="form 99"):
        tracerd.load(tmp_path / "new.db")


def test_nothing_is_imported_before_it_is_needed(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, tracerd\n"
        "assert not {'pyarrow', 'pandas', 'adbc_driver_sqlite'}"
        " & set(sys.modules)\n"
    )
    python(script)
