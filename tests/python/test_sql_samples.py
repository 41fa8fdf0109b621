"""tracectl sql: functions that read samples."""

import json
import subprocess

import pytest
import torch
from torch import nn

import tracerd
from programs import program
from test_load import nasty


@pytest.fixture
def stored(here):
    t = tracerd.attach(nn.Linear(1, 1), run="all", samples=256)
    for name, tensor in nasty():
        t.record(name, tensor)
    # between two doubles, whose nearest one finds only who rounds once
    unsigned = [2**64 - 1, 2**63, 2**63 + 1025, 2**63 + 3073, 5]
    t.record("unsigned", torch.tensor(unsigned, dtype=torch.uint64))
    t.close()
    here.wait(lambda: [r.state for r in here.runs()] == ["ended"])
    return here


def ask(daemon, statement, alone=False):
    """Rows of a statement, from the daemon or, alone, from the file."""
    source = ["-d", daemon.data] if alone else ["-s", daemon.dir]
    out = subprocess.run(
        [
            program("tracectl"), *source, "-r", "all", "-o", "json", "sql",
            statement,
        ],
        check=True, stdout=subprocess.PIPE, timeout=60,
    ).stdout
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("alone", [False, True])
def test_as_the_view_reads_them(stored, alone):
    found = ask(
        stored,
        "SELECT r.name, s.sample, s.value, s.imag,"
        " sample(r.samples, r.dtype, s.sample) AS x,"
        " sample(r.samples, r.dtype, s.sample, 1) AS y,"
        " sample_count(r.samples, r.dtype) AS n"
        " FROM v_record r JOIN v_sample s ON s.of_step = r.step"
        " AND s.stream = r.stream AND s.seq = r.seq"
        " WHERE r.pass = 'user'", alone,
    )
    assert len(found) > 1500
    for row in found:
        assert (row["x"], row["y"]) == (row["value"], row["imag"]), row
    assert [
        row["value"] for row in found if row["name"] == "user-unsigned-1"
    ] == [2.0**64, 2.0**63, 2.0**63 + 2048, 2.0**63 + 4096, 5]
    counts = {row["name"]: row["n"] for row in found}
    assert counts["user-float16-1"] == 17


def test_all_of_a_record_as_json(stored):
    [row] = ask(
        stored,
        "SELECT sample_list(samples, dtype) AS all_of_them,"
        " sample_list(samples, 2) AS by_number,"
        " (SELECT count(*) FROM json_each(sample_list(samples, dtype))) AS n"
        " FROM v_record WHERE name = 'user-mix63-1'",
    )
    assert json.loads(row["all_of_them"]) == [
        "nan", "inf", "-inf", 1.5, 0.0, 9.999665841421895e-42
    ]
    assert row["by_number"] == row["all_of_them"] and row["n"] == 6
    rows = ask(
        stored,
        "SELECT name, sample_list(samples, dtype) AS x FROM v_record"
        " WHERE name IN ('user-complex64-1', 'user-large-1', 'user-none-1')"
        " ORDER BY name",
    )
    assert [json.loads(r["x"])[:2] for r in rows[:2]] == [
        [[3, 0], [2.625, 0]], [2**62, -(2**61)]
    ]
    assert rows[2]["x"] in (None, "[]")


def test_what_cannot_be_read(stored):
    def bad(what):
        done = stored.tracectl("-r", "all", "sql", f"SELECT {what}", ok=(2,))
        return done.stderr

    assert "not a dtype" in bad("sample(x'00', 'float33', 0)")
    assert "not a dtype" in bad("sample_list(x'00', 99)")
    assert "so many" in bad("sample_count(zeroblob(100000), 'int8')")
    [row] = ask(
        stored,
        "SELECT sample(x'0000803f', 'float32', 0) AS one,"
        " sample(x'0000803f', 'float32', 1) AS beyond,"
        " sample(x'0000803f', 'float32', -1) AS before,"
        " sample(NULL, 'float32', 0) AS none,"
        " sample(x'00', 'float32', 0) AS short",
    )
    assert row == dict(one=1, beyond=None, before=None, none=None, short=None)
