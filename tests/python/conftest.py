"""What the tests of the Python module share.

They use the installed module and programs, or those of a build directory:
    TRD_BUILD=build python -m pytest tests/python
TRD_TRACERD and TRD_TRACECTL name single programs. A test that needs a
program that is not there is skipped.
"""

import os
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

if os.environ.get("TRD_BUILD"):
    folder = str(Path(os.environ["TRD_BUILD"]).resolve() / "client/python")
    sys.path.insert(0, folder)
    paths = [folder, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)

try:
    import torch

    import tracerd  # noqa: F401
except ImportError as error:
    pytest.exit(f"cannot import: {error}", returncode=77)

import programs  # noqa: E402
import recording  # noqa: E402
import seen  # noqa: E402
from oracle import held  # noqa: E402, F401

torch.set_num_threads(1)
for name in [n for n in os.environ if n.startswith("TRACERD_")]:
    del os.environ[name]
# no test speaks to a daemon of the user's by mistake
nowhere = tempfile.TemporaryDirectory(prefix="trd-nowhere")
os.environ["TRACERD_DIR"] = nowhere.name


@pytest.fixture
def fresh(monkeypatch):
    """Objects are numbered from 1 again; and again with each call of it."""
    import itertools
    import weakref
    from collections import defaultdict

    from tracerd import names

    def renew():
        monkeypatch.setattr(
            names, "_next_number", defaultdict(lambda: itertools.count(1))
        )
        monkeypatch.setattr(names, "_numbers", weakref.WeakKeyDictionary())

    renew()
    return renew


@pytest.fixture
def recorded(monkeypatch, fresh):
    """A list that gets what attach() records, without a daemon. Fails the
    test on any warning and on any loss."""
    from tracerd import _tracerd, process

    records = []
    clients = []

    def open_client(*args):
        clients.append(recording.Client(records, *args))
        return clients[-1]

    monkeypatch.setattr(_tracerd, "open", open_client)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="tracerd")
        yield records
    process.close_all()
    assert sum(c.lost_n for c in clients) == 0


@pytest.fixture
def folder():
    """A short private directory for sockets and journals."""
    with tempfile.TemporaryDirectory(prefix="trd") as path:
        yield path


@pytest.fixture
def daemon(folder):
    """A running tracerd; see programs.Daemon."""
    programs.need("tracerd", "tracectl")
    with programs.Daemon(folder) as d:
        yield d


@pytest.fixture
def server(folder):
    """A ClickHouse that is not yet started."""
    from clickhouse_server import Server

    programs.need("tracerd", "tracectl")
    with Server(f"{folder}/house") as s:
        yield s


@pytest.fixture
def here(daemon, monkeypatch, fresh):
    """The same, and this process records to it."""
    from tracerd import process

    monkeypatch.setenv("TRACERD_DIR", daemon.dir)
    yield daemon
    process.close_all()


@pytest.fixture(scope="module")
def room():
    """A daemon that all tests of a file share."""
    programs.need("tracerd", "tracectl")
    with (
        tempfile.TemporaryDirectory(prefix="trd") as path,
        programs.Daemon(path) as d,
    ):
        yield d


@pytest.fixture
def look(room, monkeypatch, fresh):
    """Trainings with and without tracerd; see seen.Look."""
    from tracerd import process

    monkeypatch.setenv("TRACERD_DIR", room.dir)
    yield seen.Look(room, fresh)
    process.close_all()
