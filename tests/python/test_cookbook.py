"""The queries of docs/sql.md, each against a real run whose figures are
known: cookbook_script.py says which."""

import math
import re
import sqlite3
from pathlib import Path

import pytest

from programs import TOP, python

SCRIPT = Path(__file__).parent / "cookbook_script.py"
DOCUMENT = TOP / "docs" / "sql.md"
QUERY = re.compile(
    r"^([^\n]*):\n\n```sql\n(.*?)```\n"
    r"(?:\nIn ClickHouse:\n\n```sql\n(.*?)```\n)?",
    re.M | re.S,
)
INF = math.inf
ROOT = math.sqrt(5)

# By the line before the query.
EXPECTED = {
    "Ranks, and how they ended": [
        (0, 0, "ended", 68, 0, 0), (0, 1, "ended", 68, 0, 0),
    ],
    "The modules, as they are numbered": [
        ("Model-1", ""), ("Linear-1", "a"), ("ReLU-1", "dead"),
        ("Linear-2", "b"),
    ],
    "How many tensors and elements of which dtype each pass has": [
        ("backward", "float32", 48, 80), ("forward", "float32", 64, 112),
        ("grad", "float32", 16, 48), ("user", "float16", 8, 32),
    ],
    "What is missing, and why": [],
    "What a process said of itself (a JSON object: versions, devices, "
    "switches)": [(0, 1), (1, 1)],
    "All of one call of a layer": [
        (0, "input", 4, 2, 3, 2 * ROOT), (0, "output", 6, 6, 6, 6),
        (1, "input", 4, 2, 3, 2 * ROOT), (1, "output", 10, 10, 10, 10),
    ],
    "Its history": [
        (1, 3, 3, 3), (2, 6, 6, 6), (3, 9, 9, 9), (4, INF, INF, INF),
    ],
    "The same of a very large run (one search a step instead of two)": [
        (1, 3, 3, 3), (2, 6, 6, 6), (3, 9, 9, 9), (4, INF, INF, INF),
    ],
    "The last three of it": [(4, 4 * ROOT), (3, 3 * ROOT), (2, 2 * ROOT)],
    "Samples of it (`of_step = r.step` makes it quick)": [(0, 2), (1, 4)],
    "Samples of two calls side by side": [(0, 1, 2, 1), (1, 2, 4, 2)],
    "How its magnitudes are spread, where histograms were asked for": [
        (1, 1), (2, 1),
    ],
    "The first values that are not finite": [
        (4, 0, "forward-Linear-2-4-output", 0, 1, 0),
        (4, 0, "forward-Model-1-4-output", 0, 1, 0),
        (4, 0, "backward-Linear-2-4-output", 0, 1, 0),
    ],
    "How many tensors had some, by iteration": [(4, 0, 12, 34)],
    "What changed most between two iterations, by norm": [
        (0, "forward", "", "0", 1.5), (0, "forward", "a", "0", 1.5),
        (0, "forward", "a", "0", 1.5),
    ],
    "Layers that gave nothing but zeros": [(0, "dead", 4), (1, "dead", 4)],
    "How much of a tensor is subnormal, of what is not zero": [
        (0, "small", 2 / 3), (1, "small", 2 / 3),
    ],
    "The largest magnitudes of 16-bit tensors": [("float16", "small", 1)],
    "The norm of all gradients, by iteration": [
        (0, i, round(i * math.sqrt(15), 4)) for i in (1, 2, 3)
    ] + [(1, i, round(i * math.sqrt(30), 4)) for i in (1, 2, 3)],
    "The share each parameter has in it": [
        ("a.weight", 0.833), ("b.weight", 0.167),
    ],
    "Gradients that are not the same on all ranks": [
        (i, "a.weight", 2) for i in (1, 2, 3)
    ],
    "The first tensors whose bits differ": [
        (3, 0, f"forward-{name}-3-{io}", 6, 12) for name, io in (
            ("Model-1", "input"), ("Linear-1", "input"),
            ("Linear-1", "output"),
        )
    ],
    "How many, by iteration": [
        (1, 34, 0), (2, 34, 0), (3, 34, 18), (4, 34, 0),
    ],
}
ATTACH = "ClickHouse has all runs in one table"
CLOCKS = "How far ranks are apart in an iteration, in seconds by their clocks"


@pytest.fixture(scope="module")
def stored(room):
    """The runs cookbook and other, of two ranks one after the other."""
    for run, scale in (("cookbook", 1), ("other", 2)):
        for rank in (0, 1):
            python(SCRIPT, run, scale, folder=room.dir, RANK=rank,
                   WORLD_SIZE=2, LOCAL_RANK=rank, SLURM_JOB_ID=run)
    room.wait(lambda: [r.state for r in room.runs()] == ["ended"] * 2)
    return room


def forms():
    """(SQLite's, ClickHouse's or '') by the line before."""
    text = DOCUMENT.read_text()
    found = {name: pair for name, *pair in QUERY.findall(text)}
    own = sum(house != "" for _, house in found.values())
    assert len(found) + own == text.count("```sql")
    assert {*found} == {*EXPECTED, ATTACH, CLOCKS}
    return found


def blocks():
    return {name: query for name, (query, _) in forms().items()}


def test_each_query_answers_as_it_should(stored, monkeypatch):
    monkeypatch.chdir(stored.data)
    db = sqlite3.connect("cookbook.db")
    for name, query in blocks().items():
        rows = db.execute(query).fetchall()
        if name == CLOCKS:
            assert [i for i, _ in rows] == [1, 2, 3, 4]
            assert all(seconds > 0 for _, seconds in rows)
        elif name != ATTACH:
            assert len(rows) == len(EXPECTED[name]), name
            for row, expected in zip(rows, EXPECTED[name], strict=True):
                assert row == pytest.approx(expected), name
    db.close()


def test_each_query_goes_through_tracectl(stored):
    for name, query in blocks().items():
        if "other" in query:
            continue
        said = stored.tracectl("-r", "cookbook", "-o", "csv", "sql", query)
        assert said.returncode == (0 if EXPECTED.get(name, 1) else 1), name
        head, *rows = said.stdout.splitlines()
        assert len(rows) == len(EXPECTED.get(name, range(4))), name


def test_what_was_pruned_is_told(stored, tmp_path):
    path = tmp_path / "pruned.db"
    source = sqlite3.connect(Path(stored.data) / "cookbook.db")
    copy = sqlite3.connect(path)
    source.backup(copy)
    copy.close()
    source.close()
    stored.tracectl("prune", path, "--keep-last", "1", ok=[0])
    db = sqlite3.connect(path)
    assert db.execute(blocks()["What is missing, and why"]).fetchall() == [
        (0, "pruned: last 1", 51), (1, "pruned: last 1", 51),
    ]
    db.close()
