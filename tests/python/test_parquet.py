"""tracectl export --format parquet: what tracerd.load() has, in a file."""

import os
import stat
import sys

import pytest
import torch
from torch import nn

import tracerd

pytest.importorskip("adbc_driver_sqlite")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture
def stored(here, monkeypatch):
    """A run of three steps with a NaN and a complex tensor; the daemon."""
    monkeypatch.setenv("TRACERD_PYTHON", sys.executable)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    t = tracerd.attach(model, optimizer, run="all", samples=16)
    for step in range(3):
        model(torch.randn(5, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    t.record("odd", torch.tensor([1.0, float("nan"), float("inf")]))
    t.record("pair", torch.tensor([1 + 2j, 3 - 4j]))
    t.close()
    here.wait(lambda: [r.state for r in here.runs()] == ["ended"])
    return here


def by_seq(table):
    return table.sort_by([("rank", "ascending"), ("seq", "ascending")])


def plain(table):
    """Rows without NaN, which is never equal."""
    rows = by_seq(table).to_pylist()
    for row in rows:
        row["samples"] = row["samples"] and [repr(x) for x in row["samples"]]
    return rows


def test_the_file_has_what_load_gives(stored, tmp_path):
    out = tmp_path / "all.parquet"
    stored.tracectl("export", "all", "--format", "parquet", "--out", str(out))
    wanted = tracerd.load(
        "all", names=True, samples=True, arrow=True, data=stored.data
    )
    table = pq.read_table(out)
    assert table.column_names == wanted.column_names
    assert table.schema.equals(wanted.schema)
    assert plain(table) == plain(wanted)
    assert len(table) > 30
    assert stat.S_IMODE(os.stat(out).st_mode) == 0o644
    assert os.listdir(tmp_path) == ["all.parquet"]


def test_one_row_group_a_page(stored, tmp_path, monkeypatch):
    from tracerd import parquet
    from tracerd import stored as reader

    monkeypatch.setattr(reader, "_PAGE", 10)
    path = os.path.join(stored.data, "all.db")
    out = tmp_path / "few.parquet"
    n = parquet.write(path, str(out))
    file = pq.ParquetFile(out)
    assert file.metadata.num_rows == n
    assert file.num_row_groups == -(-n // 10)
    wanted = tracerd.load(path, names=True, samples=True, arrow=True)
    assert plain(file.read()) == plain(wanted)


def test_one_rank_and_attempt(stored, tmp_path):
    out = tmp_path / "some.parquet"
    out.write_text("before")
    export = ["export", "all", "--format", "parquet", "--out", str(out)]
    none = stored.tracectl(*export, "--rank", "7", ok=[1])
    assert none.stderr == "tracectl: no record to export\n"
    assert out.read_text() == "before"
    stored.tracectl(*export, "--rank", "0", "--attempt", "0")
    wanted = tracerd.load("all", arrow=True, data=stored.data)
    assert len(pq.read_table(out)) == len(wanted)
    assert os.listdir(tmp_path) == ["some.parquet"]


def test_what_cannot_be_is_said(stored, tmp_path, monkeypatch):
    out = tmp_path / "x.parquet"
    export = ["export", "all", "--format", "parquet"]
    said = stored.tracectl(*export, ok=[2])
    assert "needs --out FILE" in said.stderr
    export += ["--out", str(out)]
    said = stored.tracectl(*export[:-1], tmp_path / "no" / "x.parquet", ok=[3])
    assert "cannot write: " in said.stderr
    monkeypatch.setenv("TRACERD_PYTHON", "/nowhere/python3")
    said = stored.tracectl(*export, ok=[3])
    assert said.stderr == (
        "tracectl: cannot run '/nowhere/python3': no such file; "
        "TRACERD_PYTHON names a python3 that can import tracerd and pyarrow\n"
    )
    (tmp_path / "pyarrow.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("TRACERD_PYTHON", sys.executable)
    paths = [str(tmp_path), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    said = stored.tracectl(*export, ok=[3])
    assert "cannot write Parquet: none here; it needs the packages" in (
        said.stderr
    )
    assert not out.exists()
