"""What goes wrong in tracing never surfaces in the training: the same bits,
one warning, and the loss is counted."""

import resource
import sys
import warnings

import pytest
import torch
from torch import nn

import tracerd
from programs import Daemon


def trained(attach=None, meanwhile=None, n=3):
    """Losses and weights of a training, and the warnings meanwhile."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters())
    figures = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        t = attach(model, optimizer) if attach else None
        for i in range(n):
            if meanwhile and i == 1:
                meanwhile()
            loss = model(torch.randn(3, 4)).pow(2).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            figures.append(loss.detach())
        if t:
            t.close()
    texts = [
        str(w.message) for w in told if "tracerd" in str(w.message)
    ]
    return figures + [p.detach() for p in model.parameters()], texts


PLAIN, _ = trained()


def same_bits(figures):
    return all(map(torch.equal, figures, PLAIN))


def connected(trace):
    """A busy machine may be slow to connect."""
    trace.record("first", 1.0)
    assert trace.flush(60)
    return trace


def attach(**options):
    return lambda model, optimizer: connected(
        tracerd.attach(model, optimizer, run="trouble", **options)
    )


def broken(*args, **kwargs):
    raise ZeroDivisionError("on purpose")


def test_an_error_in_the_recording_path(here, monkeypatch):
    from tracerd import steps

    figures, told = trained(
        attach(), lambda: monkeypatch.setattr(steps, "_gradient", broken)
    )
    assert same_bits(figures)
    assert len(told) == 1 and "ZeroDivisionError: on purpose" in told[0]
    here.wait(lambda: "lost.error" in here.tracectl("status").stdout)
    status = here.tracectl("status", ok=(1,)).stdout
    counts = dict(line.split() for line in status.splitlines()
                  if line.startswith("lost"))
    assert counts == {"lost": "2", "lost.error": "2"}


@pytest.mark.parametrize(
    ("module", "name"),
    [("tracerd.names", "walk"), ("tracerd.attach", "info"),
     ("tracerd.hooks", "Recorder"), ("tracerd.steps", "Steps")],
)
def test_an_error_while_attaching(here, monkeypatch, module, name):
    monkeypatch.setattr(sys.modules[module], name, broken)
    figures, told = trained(attach())
    assert same_bits(figures)
    assert told == ["tracerd: not tracing: ZeroDivisionError: on purpose"]


@pytest.mark.parametrize("name", ["advance", "put_list", "site"])
def test_an_error_at_the_end_of_an_iteration(here, monkeypatch, name):
    from tracerd.hooks import Recorder

    figures, told = trained(
        attach(passes=("grad",)),
        lambda: monkeypatch.setattr(Recorder, name, broken, raising=True),
    )
    assert same_bits(figures)
    # sites are made in the first iteration
    assert len(told) == (0 if name == "site" else 1)


def test_errors_of_a_scaler_and_of_new_modules(here, monkeypatch):
    from tracerd import names
    from tracerd.steps import Steps

    model = nn.Sequential(nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tracerd.attach(model, optimizer, run="trouble"):
            monkeypatch.setattr(names, "walk", broken)
            monkeypatch.setattr(Steps, "_record_scale", broken)
            monkeypatch.setattr(Steps, "_is_ours", broken)
            model.append(nn.ReLU())
            scaler.scale(model(torch.ones(1, 2)).sum()).backward()
            scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
    assert len([w for w in told if "on purpose" in str(w.message)]) == 1


def test_a_record_without_a_name(here):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tracerd.attach(nn.Linear(1, 1), run="nameless") as t:
            for name in ("", "", "named"):
                t.record(name, 1.0)
            assert t.flush(60)
            assert t.counters["lost"] == {"error": 2}
    texts = [str(w.message) for w in told if "tracerd" in str(w.message)]
    assert len(texts) == 1 and "needs a name" in texts[0]
    assert [r.name for r in here.query("nameless", "user-*")] == [
        "user-named-1"
    ]


def test_no_daemon_at_all(monkeypatch, tmp_path, fresh):
    monkeypatch.setenv("TRACERD_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    figures, told = trained(
        lambda m, o: tracerd.attach(m, o, run="trouble")
    )
    assert same_bits(figures)
    assert len(told) == 1 and "no daemon answers" in told[0]


def test_a_directory_that_is_open_to_others_keeps_no_records(
    monkeypatch, tmp_path, fresh
):
    monkeypatch.setenv("TRACERD_DIR", str(tmp_path))
    tmp_path.chmod(0o755)
    figures, told = trained(
        lambda m, o: tracerd.attach(m, o, run="trouble")
    )
    assert same_bits(figures)
    assert len(told) == 1 and f"chmod 700 '{tmp_path}'" in told[0]
    assert "are lost" in told[0] and "journal" not in told[0]
    assert not list(tmp_path.iterdir())


def test_a_daemon_that_is_killed(folder, monkeypatch, fresh):
    monkeypatch.setenv("TRACERD_DIR", folder)
    traces = []

    def attached(model, optimizer):
        traces.append(attach()(model, optimizer))
        return traces[0]

    with Daemon(folder) as daemon:

        def kill():
            assert traces[0].flush()
            daemon.kill()

        figures, told = trained(attached, kill)
        assert same_bits(figures)
        # a training this short may be over before that is seen
        assert len(told) <= 1
        assert all("the daemon is gone" in text for text in told)


def test_no_room_for_a_journal(here):
    """As on a full disk, no file may grow: the journal is memory then."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def attach_without_room(model, optimizer):
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
        try:
            t = tracerd.attach(model, optimizer, run="trouble")
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return connected(t)

    figures, told = trained(attach_without_room)
    assert same_bits(figures) and told == []
    here.wait(lambda: len(here.query("trouble", "grad-*-3")) == 4)


def test_a_journal_that_overflows_is_told_once(monkeypatch, tmp_path, fresh):
    monkeypatch.setenv("TRACERD_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    traces = []

    def attached(model, optimizer):
        t = tracerd.attach(
            model, optimizer, run="trouble", samples=4096, journal_bytes="1M"
        )
        t._connection.settled = True  # not that no daemon answers, too
        traces.append(t)
        return t

    def fill():
        value = torch.arange(4096.0)
        for _ in range(100):
            traces[0].record("x", value)
        assert traces[0].counters["lost"]["ring_full"] > 0

    figures, told = trained(attached, fill)
    assert same_bits(figures)
    assert len(told) == 1
    assert "records were lost" in told[0] and "journal_bytes=" in told[0]


def test_tensors_that_no_one_can_read(here):
    class Odd(nn.Module):
        def forward(self, x):
            return x, torch.nested.nested_tensor([x[0], x[1, :2]])

    model = Odd()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tracerd.attach(model, run="odd") as t:
            model(torch.ones(2, 3))
            t.record("meta", torch.empty(3, device="meta"))
            assert t.flush() and not t.counters["lost"]
    assert not [w for w in told if "tracerd" in str(w.message)]
    labels = {r["name"]: r["labels"] for r in here.query("odd")}
    assert "unsupported" in labels["forward-Odd-1-1-output.1"]
    assert "nodata" in labels["user-meta-1"]
