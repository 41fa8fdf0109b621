"""sampling, histogram, threads and same, as arguments and in the
environment."""

import numpy as np
import pytest
import torch
from torch import nn

import tracerd
from tracerd import _tracerd
from tracerd.attach import Trace

WRONG = [
    "every", "random", "middle", "", None, 3, ("every",), ("every", 0),
    ("every", -1), ("every", 1.5), ("every", True), ("equidistant", 1),
    ("random", -1), ("random", 1 << 64), ("random", "x"), ("every", 1, 2),
    (None, 1),
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_wrong_sampling_is_refused(wrong):
    with pytest.raises(ValueError, match="sampling="):
        tracerd.stats(torch.ones(3), sampling=wrong)
    with pytest.raises(ValueError, match="sampling="):
        tracerd.attach(nn.Linear(1, 1), sampling=wrong)


@pytest.mark.parametrize("wrong", ["all", "", 1, 0, ("rows",), "Rows"])
def test_a_wrong_histogram_is_refused(wrong):
    with pytest.raises(ValueError, match="histogram="):
        tracerd.stats(torch.ones(3), histogram=wrong)
    with pytest.raises(ValueError, match="histogram="):
        tracerd.attach(nn.Linear(1, 1), histogram=wrong)


@pytest.mark.parametrize("wrong", [0, -1, 65, 1.5, True, "two", ""])
def test_a_wrong_number_of_threads_is_refused(wrong, monkeypatch):
    with pytest.raises(ValueError, match="threads="):
        tracerd.attach(nn.Linear(1, 1), threads=wrong)
    if isinstance(wrong, str) and wrong:
        monkeypatch.setenv("TRACERD_THREADS", wrong)
        with pytest.raises(ValueError, match="TRACERD_THREADS="):
            tracerd.attach(nn.Linear(1, 1))


@pytest.mark.parametrize("wrong", [-1, 4097, 1.0, "16", True, None])
def test_a_wrong_number_of_samples_is_refused(wrong):
    with pytest.raises(ValueError, match="samples="):
        tracerd.stats(torch.ones(3), wrong)
    with pytest.raises(ValueError, match="samples="):
        tracerd.attach(nn.Linear(1, 1), samples=wrong)


def test_samples_at_a_distance():
    x = torch.arange(100.0)
    got = tracerd.stats(x, 4, sampling=("every", 30))
    assert got["samples"] == [0, 30, 60, 90]
    assert got["sampling"] == ["every", 30]
    assert tracerd.stats(x, 3, ("every", 30))["samples"] == [0, 30, 60]
    assert tracerd.stats(x, 3, ("every", 1000))["samples"] == [0]
    assert "sampling" not in tracerd.stats(x)


def test_random_samples_are_those_of_the_seed():
    x = torch.arange(1000)
    one = tracerd.stats(x, 10, ("random", 1))
    assert one["sampling"] == ["random", 1]
    assert one == tracerd.stats(x, 10, ("random", 1))
    assert one["samples"] != tracerd.stats(x, 10, ("random", 2))["samples"]
    for i, place in enumerate(one["samples"]):
        assert 100 * i <= place < 100 * (i + 1)


def exponents(values):
    """{exponent: count} of normal numbers."""
    _, exponent = np.frexp(np.abs(values))
    numbers, counts = np.unique(exponent - 1, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str
)
def test_a_histogram_counts_exponents(dtype):
    torch.manual_seed(0)
    x = torch.randn(5000, dtype=torch.float64).to(dtype)
    want = exponents(x.double().numpy())
    for kind, name in ((True, "rows"), ("rows", "rows"), ("exact", "exact")):
        got = tracerd.stats(x, histogram=kind)["histogram"]
        assert list(got) == ["kind", "first_exponent", "counts"]
        assert got["kind"] == name
        assert {
            got["first_exponent"] + i: count
            for i, count in enumerate(got["counts"])
            if count
        } == want


def test_a_histogram_of_little_or_nothing():
    got = tracerd.stats(torch.empty(0), histogram="exact")["histogram"]
    assert got == {"kind": "exact", "first_exponent": None, "counts": []}
    got = tracerd.stats(torch.tensor([0, 1, 5, -4]), histogram="exact")
    assert sum(got["histogram"]["counts"]) == 4
    packed = torch.zeros(3, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    assert tracerd.stats(packed, histogram="exact")["histogram"] is None
    assert "histogram" not in tracerd.stats(torch.ones(3))
    assert "histogram" not in tracerd.stats(torch.ones(3), histogram=False)


def test_they_reach_the_client(recorded, monkeypatch):
    opened = []
    real = _tracerd.open

    def open_client(*args):
        opened.append(args)
        return real(*args)

    monkeypatch.setattr(_tracerd, "open", open_client)
    tracerd.attach(nn.Linear(1, 1), run="plain").close()
    tracerd.attach(
        nn.Linear(1, 1), run="all", sampling=("every", 9), histogram="exact",
        same=False, block_ms=7, spool="", spool_bytes=1 << 20,
        journal_bytes="2M",
    ).close()
    assert [args[6] for args in opened] == [0, 2 << 20]
    assert [args[9:] for args in opened] == [
        (0, 0, 0, True, 0, None, 1 << 30), (1, 9, 2, False, 7, "", 1 << 20),
    ]


def test_two_traces_of_a_run_share_one_way_to_look(recorded, capsys):
    one = tracerd.attach(nn.Linear(1, 1), run="shared")
    tracerd.attach(nn.Linear(1, 1), run="shared").close()
    assert capsys.readouterr().err == ""
    other = nn.Linear(1, 1)
    tracerd.attach(other, run="shared", sampling=("every", 2)).close()
    assert "first attach() to run shared" in capsys.readouterr().err
    tracerd.attach(other, run="shared", block_ms=1).close()
    assert "first attach() to run shared" in capsys.readouterr().err
    one.close()


@pytest.mark.parametrize(
    "option",
    [{"block_ms": -1}, {"block_ms": 1 << 32}, {"block_ms": 1.0},
     {"block_ms": True}, {"spool_bytes": -1}, {"spool_bytes": "1G"},
     {"spool": 3}, {"spool": b"x"}, {"spool": "a\0b"}],
    ids=str,
)
def test_a_wrong_policy_is_refused(option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"{name}=.*expected"):
        tracerd.attach(nn.Linear(1, 1), run="wrong", **option)


def test_a_directory_of_others_makes_no_spool(here, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.warns(RuntimeWarning, match="there is no spool"):
        t = tracerd.attach(nn.Linear(1, 1), run="open", spool=tmp_path)
    assert t.counters["spool_error"]
    t.close()


def test_a_policy_is_stored(here, tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("TRACERD_SPOOL", str(tmp_path))
    with tracerd.attach(nn.Linear(1, 1), run="policy", block_ms=250) as t:
        t.record("x", torch.ones(3))
        assert t.flush()
        assert t.counters["spool_error"] is None
        assert t.counters["spool_used_bytes"] == 0
        assert t.counters["blocked_ns"] == 0
    out = here.tracectl(
        "-r", "policy", "-o", "csv", "sql",
        "SELECT block_ms, spool_bytes FROM v_run",
    ).stdout
    assert out.split()[1:] == [f"250,{1 << 30}"]
    assert list(tmp_path.iterdir()) == []


def test_threads_change_no_figure(monkeypatch):
    x = torch.randn(4_000_000)
    one = tracerd.stats(x)
    try:
        monkeypatch.setenv("TRACERD_DISABLE", "1")
        monkeypatch.setenv("TRACERD_THREADS", " 2 ")
        assert isinstance(tracerd.attach(nn.Linear(1, 1)), Trace)
        assert tracerd.stats(x) == one
        tracerd.attach(nn.Linear(1, 1), threads=3)
        assert tracerd.stats(x) == one
    finally:
        _tracerd.threads(1)


def test_the_kernel_has_a_name():
    assert _tracerd.kernel() in ("avx512", "avx2", "neon", "c")


def test_sampling_and_histogram_are_stored(here):
    x = torch.arange(1.0, 40_001)
    with tracerd.attach(
        nn.Linear(1, 1), run="stored", samples=5, sampling=("every", 1000),
        histogram="exact",
    ) as t:
        t.record("x", x)
        t.record("x", x)
        assert t.flush() and not any(t.counters["lost"].values())
    for r in here.query("stored", "user-*"):
        assert r.samples == [1, 1001, 2001, 3001, 4001]
        if r.get("histogram"):  # by the program that answers
            assert sum(r.histogram["counts"]) == 40_000


@pytest.mark.parametrize(
    "option",
    [{"same": "no"}, {"same": torch.ones(2)}, {"start": float("inf")},
     {"start": 0}, {"every": 0}, {"every": "x"}],
    ids=str,
)
def test_a_wrong_number_or_switch_is_named(option):
    name = next(iter(option))
    with pytest.raises(ValueError, match=f"{name}=.*expected"):
        tracerd.attach(torch.nn.Linear(2, 2), run="wrong", **option)


def test_a_wrong_environment_is_named(monkeypatch):
    monkeypatch.setenv("TRACERD_EVERY", "x")
    with pytest.raises(ValueError, match="TRACERD_EVERY='x'"):
        tracerd.attach(torch.nn.Linear(2, 2), run="wrong")


def test_the_environment_fills_in(recorded, monkeypatch):
    monkeypatch.setenv("TRACERD_PASSES", "forward,param")
    monkeypatch.setenv("TRACERD_DEPTH", "1")
    monkeypatch.setenv("TRACERD_LEAF_ONLY", "yes")
    monkeypatch.setenv("TRACERD_SAMPLES", "2")
    monkeypatch.setenv("TRACERD_IGNORE", "1")
    monkeypatch.setenv("TRACERD_JOURNAL_BYTES", "4M")
    model = nn.Sequential(
        nn.Linear(4, 4), nn.ReLU(), nn.Sequential(nn.Linear(4, 4))
    )
    with tracerd.attach(model) as t:
        assert t._connection.client.opened_with[6] == 4 << 20
        model(torch.ones(4)).sum().backward()
        t.step()
    assert {(r["pass"], r.object, len(r.samples)) for r in recorded} == {
        ("forward", "Linear-1", 2), ("param", "Linear-1", 2)
    }
    recorded.clear()
    with tracerd.attach(
        model, passes=("grad",), depth=5, ignore="nothing*,0", samples=3,
        leaf_only=False, journal_bytes=1 << 20,
    ) as t:
        model(torch.ones(4)).sum().backward()
        t.step()
    assert {(r["pass"], r.module, len(r.samples)) for r in recorded} == {
        ("grad", "2.0", 3)
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [("PASSES", "grads"), ("DEPTH", "-1"), ("LEAF_ONLY", "2"),
     ("INSIDE_COMPILE", "x"), ("INPUT_GRADIENTS", "2"), ("SAMPLES", "5000"),
     ("SAMPLES", "x"), ("JOURNAL_BYTES", "3M"),
     ("ITERATIONS", "5-1"), ("RANKS", "x"), ("THREADS", "0")],
)
def test_a_wrong_variable_is_named(monkeypatch, name, text):
    monkeypatch.setenv(f"TRACERD_{name}", text)
    with pytest.raises(ValueError, match=f"TRACERD_{name}"):
        tracerd.attach(nn.Linear(1, 1), run="wrong")


@pytest.mark.parametrize("said", ["argument", "variable"])
def test_gradients_of_outputs_alone(recorded, monkeypatch, said):
    options = {"passes": "backward"}
    if said == "argument":
        options["input_gradients"] = False
    else:
        monkeypatch.setenv("TRACERD_INPUT_GRADIENTS", "off")
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tracerd.attach(model, **options) as t:
        model(torch.ones(1, 2)).sum().backward()
        t.step()
    # the gradient of an output is what the backward pass has as input
    assert sorted((r.object, r.io) for r in recorded) == [
        ("Linear-1", "input"), ("ReLU-1", "input"), ("Sequential-1", "input")
    ]


def test_inside_compile_by_the_environment(recorded, monkeypatch):
    monkeypatch.setenv("TRACERD_INSIDE_COMPILE", "1")
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    with tracerd.attach(model, passes="forward") as t:
        torch.compile(model, backend="eager")(torch.ones(1, 2))
        t.step()
    inside = [r for r in recorded if "materialized" in r.labels]
    assert {r.object for r in inside} >= {"Linear-1", "ReLU-1"}


@pytest.mark.parametrize("name", ["inside_compile", "input_gradients"])
def test_switches_are_true_or_false(name):
    with pytest.raises(ValueError, match=f"{name}=2: expected True or"):
        tracerd.attach(nn.Linear(1, 1), **{name: 2})


def test_a_wrong_pass_is_told_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean backward"):
        tracerd.attach(nn.Linear(1, 1), passes=("bakward",))


def test_a_journal_of_the_size_asked_for(here):
    with tracerd.attach(nn.Linear(1, 1), run="j", journal_bytes="1M") as t:
        assert t.counters["journal_bytes"] == 1 << 20
