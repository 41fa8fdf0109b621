"""tracectl compare: where two runs part, and who is to blame."""

import json
import os
from pathlib import Path

import pytest
import torch
from torch import nn

import battery
import programs
import tracerd
from programs import TOP

CASES = TOP / "tests/cases"
NARROW = torch.bfloat16


def compare(daemon, a, b, *more):
    done = daemon.tracectl("-o", "json", "compare", a, b, *more)
    result = json.loads(done.stdout)
    good = result["verdict"] in ("same", "rounding")
    assert done.returncode == (0 if good else 1)
    counts = result["counts"]
    assert counts["compared"] == sum(
        counts[n] for n in ("equal", "rounding", "differ", "blind")
    )
    return result


# ---- the battery ----


@pytest.fixture(scope="module")
def studio():
    """A daemon with a run of each kind, and this process records to it."""
    import os
    import tempfile

    from tracerd import process

    programs.need("tracerd", "tracectl")
    before = os.environ["TRACERD_DIR"]
    with (
        tempfile.TemporaryDirectory(prefix="trd") as path,
        programs.Daemon(path) as d,
    ):
        os.environ["TRACERD_DIR"] = d.dir
        for kind in battery.KINDS:
            train(kind, battery.same, f"{kind}.base")
            train(kind, battery.same, f"{kind}.base16", dtype=NARROW)
        yield d
        process.close_all()
        os.environ["TRACERD_DIR"] = before


def train(kind, change, run, **options):
    """Objects are numbered as in a process of its own."""
    import itertools
    import weakref
    from collections import defaultdict

    from tracerd import names

    names._next_number = defaultdict(lambda: itertools.count(1))
    names._numbers = weakref.WeakKeyDictionary()
    battery.train(kind, change, run, **options)


def told(kind, name, result):
    c = result["culprit"]
    where = f"{c['module']} {c['pass']} {c['step']}" if c else "-"
    print(f"{kind:6} {name:16} {result['verdict']:9} {where}")


@pytest.mark.parametrize("kind", battery.KINDS)
def test_each_bug_names_its_module(studio, kind):
    wrong = []
    bugs, _ = battery.KINDS[kind][1]()
    for name, (change, module) in bugs.items():
        train(kind, change, f"{kind}.{name}")
        result = compare(studio, f"{kind}.base", f"{kind}.{name}")
        told(kind, name, result)
        culprit = result["culprit"]
        if result["verdict"] != "differs" or culprit["module"] != module:
            wrong.append((name, result["verdict"], culprit))
    assert not wrong


@pytest.mark.parametrize("kind", battery.KINDS)
def test_no_harmless_change_is_blamed(studio, kind):
    wrong = []
    _, harmless = battery.KINDS[kind][1]()
    for name, change in harmless.items():
        train(kind, change, f"{kind}.ok_{name}")
        result = compare(studio, f"{kind}.base", f"{kind}.ok_{name}")
        told(kind, name, result)
        if result["verdict"] not in ("same", "rounding"):
            wrong.append((name, result["verdict"], result["culprit"]))
        assert name != "again" or result["verdict"] == "same"
    assert not wrong


@pytest.mark.parametrize("kind", battery.KINDS)
def test_no_harmless_change_of_a_narrow_run_is_blamed(studio, kind):
    wrong = []
    _, harmless = battery.KINDS[kind][1]()
    for name, change in harmless.items():
        train(kind, change, f"{kind}.ok16_{name}", dtype=NARROW)
        result = compare(studio, f"{kind}.base16", f"{kind}.ok16_{name}")
        told(kind, name, result)
        if result["verdict"] not in ("same", "rounding"):
            wrong.append((name, result["verdict"], result["culprit"]))
    assert not wrong


@pytest.mark.parametrize(
    "kind, bug",
    [
        ("gpt", "mask"), ("gpt", "weight1_1"), ("llama", "scale_0"),
        ("llama", "row_1"), ("llama", "theta"), ("llama", "act"),
        ("rnn", "topk"), ("rnn", "scale_0"), ("cnn", "bn_eps"),
        ("cnn", "conv_w"),
    ],
)
def test_moments_find_what_rounding_of_elements_hides(studio, kind, bug):
    change, module = battery.KINDS[kind][1]()[0][bug]
    train(kind, change, f"{kind}.{bug}16", dtype=NARROW)
    result = compare(studio, f"{kind}.base16", f"{kind}.{bug}16")
    assert result["culprit"]["module"] == module


def test_a_bug_is_found_with_four_samples(studio):
    train("gpt", battery.same, "four", samples=4)
    gelu, module = battery.gpt_cases()[0]["gelu"]
    train("gpt", gelu, "four_gelu", samples=4)
    result = compare(studio, "four", "four_gelu")
    assert result["culprit"]["module"] == module


def test_gradients_alone_tell_the_block(studio):
    train("gpt", battery.same, "grads", passes=("grad",))
    for bug, block in (("gelu", "blocks.2."), ("eps", "blocks.1.")):
        change, _ = battery.gpt_cases()[0][bug]
        train("gpt", change, f"grads_{bug}", passes=("grad",))
        result = compare(studio, "grads", f"grads_{bug}")
        assert result["culprit"]["module"].startswith(block)
        assert result["culprit"]["pass"] == "grad"
    change = battery.gpt_cases()[1]["all"]
    train("gpt", change, "grads_ok", passes=("grad",))
    assert compare(studio, "grads", "grads_ok")["verdict"] == "rounding"


def test_a_wrong_gradient_is_found_by_backward_records_alone(studio):
    train("gpt", battery.same, "back", passes=("backward",))
    change, module = battery.gpt_cases()[0]["badgrad_0"]
    train("gpt", change, "back_bug", passes=("backward",))
    result = compare(studio, "back", "back_bug")
    assert result["culprit"]["module"] == module
    assert result["culprit"]["pass"] == "backward"


def test_narrow_against_wide_is_no_flood(studio):
    result = compare(studio, "gpt.base", "gpt.base16")
    assert result["verdict"] == "rounding"
    assert result["counts"]["differ"] == 0
    assert result["counts"]["dtype"] > 300


def test_a_repeated_run_is_the_measure_of_noise(studio):
    """What A and its repetition differ by is no guilt of B."""
    bug, _ = battery.gpt_cases()[0]["eps4"]
    train("gpt", bug, "noise_1")
    result = compare(studio, "gpt.base", "noise_1", "--noise", "noise_1")
    # guilt is not learnt as noise, so the bug is still told
    assert result["culprit"]["module"] == "blocks.0.ln1"
    result = compare(
        studio, "gpt.base", "noise_1", "--noise", "gpt.base"
    )
    assert result["culprit"]["module"] == "blocks.0.ln1"


# ---- what is in one run only ----


class Two(nn.Module):
    def __init__(self, second):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = second

    def forward(self, x):
        return self.second(self.first(x))


def one_run(run, model, steps=2, seed=0):
    torch.manual_seed(seed)
    with tracerd.attach(model, run=run) as t:
        for _ in range(steps):
            model(torch.ones(2, 4)).sum().backward()
            t.step()
        assert t.flush(30)


def model_of(second, seed=1):
    torch.manual_seed(seed)
    return Two(second)


def test_a_replaced_layer_meets_what_it_replaced(here, fresh):
    one_run("gelu", model_of(nn.GELU()))
    fresh()
    one_run("tanh", model_of(nn.Tanh()))
    result = compare(here, "gelu", "tanh")
    assert result["verdict"] == "differs"
    assert result["culprit"]["module"] == "second"
    assert result["only_a"] == result["only_b"] == []


def test_more_steps_are_in_one_run_only(here, fresh):
    one_run("short", model_of(nn.GELU()), steps=2)
    fresh()
    one_run("long", model_of(nn.GELU()), steps=5)
    result = compare(here, "short", "long")
    assert result["verdict"] == "differs" and result["culprit"] is None
    only = {m["object"]: m for m in result["only_b"]}
    assert (only["first"]["first_step"], only["first"]["last_step"]) == (3, 5)
    assert result["counts"]["only_a"] == 0
    result = compare(here, "long", "short")
    assert {m["first_step"] for m in result["only_a"]} == {3}
    assert result["counts"]["only_b"] == 0


def test_a_map_pairs_what_is_called_differently(here, fresh, tmp_path):
    one_run("old", model_of(nn.GELU()))
    fresh()
    other = model_of(nn.GELU())
    other.renamed, other.first = other.first, None
    del other.first
    other.forward = lambda x: other.second(other.renamed(x))
    one_run("new", other)
    result = compare(here, "old", "new")
    assert result["verdict"] == "differs" and result["culprit"] is None
    assert {m["object"] for m in result["only_b"]} == {"renamed"}
    names = tmp_path / "map"
    names.write_text("# what moved\nfirst renamed\nfirst.* renamed.*\n")
    result = compare(here, "old", "new", "--map", names)
    assert result["verdict"] == "same"


def test_rules_say_what_is_near_enough(here, fresh, tmp_path):
    one_run("a", model_of(nn.GELU()))
    fresh()
    one_run("b", model_of(nn.GELU(approximate="tanh")))
    assert compare(here, "a", "b")["verdict"] == "differs"
    rules = tmp_path / "rules"
    rules.write_text("* atol=1e-2\n")
    assert compare(here, "a", "b", "--rules", rules)["verdict"] == "same"
    rules.write_text("* noise=1e6\n")
    assert compare(here, "a", "b", "--rules", rules)["verdict"] == "rounding"
    rules.write_text("* rtol=1e-9 atol=1e-12\n")
    result = compare(here, "a", "b", "--rules", rules)
    assert result["culprit"]["module"] == "second"
    rules.write_text("second ignore\n* rtol=1e-1\n")
    result = compare(here, "a", "b", "--rules", rules)
    assert result["verdict"] != "same" or result["counts"]["compared"]


def test_progress_tells_the_first_divergence_on_the_way(here, fresh):
    one_run("a", model_of(nn.GELU()))
    fresh()
    one_run("b", model_of(nn.GELU(approximate="tanh")))
    done = here.tracectl("compare", "a", "b", "--progress")
    assert done.stderr == (
        "first divergence so far: forward-GELU-1-1-output (second), rank 0,"
        " iteration 1\n"
    )
    assert done.stdout == here.tracectl("compare", "a", "b").stdout
    assert here.tracectl("compare", "a", "b").stderr == ""
    assert here.tracectl("compare", "a", "a", "--progress").stderr == ""


def test_a_run_that_is_not_there(here):
    one_run("any", model_of(nn.GELU()))
    done = here.tracectl("compare", "any", "none", ok=(3,))
    assert "no run 'none'" in done.stderr
    done = here.tracectl("compare", "any", ok=(2,))
    assert "two runs" in done.stderr


# ---- from Python ----


@pytest.fixture
def beside(here, monkeypatch):
    """What an installation has: tracectl in PATH, the daemon's directory."""
    tracectl = os.path.realpath(programs.program("tracectl"))
    monkeypatch.setenv("PATH", os.path.dirname(tracectl), prepend=":")
    monkeypatch.setenv("TRACERD_DIR", here.dir)
    return here


def test_python_gets_what_tracectl_prints(beside, tmp_path):
    rules = tmp_path / "rules"
    rules.write_text("* ignore\n")
    one_run("a", model_of(nn.GELU()))
    one_run("b", model_of(nn.GELU(approximate="tanh")))
    assert tracerd.compare("a", "b") == compare(beside, "a", "b")
    assert tracerd.compare("a", "b", all=True, noise="a") == compare(
        beside, "a", "b", "--all", "--noise", "a"
    )
    assert tracerd.compare("a", "b", rules=rules) == compare(
        beside, "a", "b", "--rules", rules
    )
    assert tracerd.compare("a", "a")["verdict"] == "same"


def test_python_is_told_what_tracectl_refuses(beside, tmp_path, monkeypatch):
    one_run("a", model_of(nn.GELU()))
    with pytest.raises(OSError, match="no run 'none'"):
        tracerd.compare("a", "none")
    with pytest.raises(OSError, match="no run '--help'"):
        tracerd.compare("a", "--help")
    with pytest.raises(ValueError, match="cannot open"):
        tracerd.compare("a", "a", map=tmp_path / "none")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    with pytest.raises(FileNotFoundError, match="PATH"):
        tracerd.compare("a", "a")


def test_python_compares_files_without_a_daemon(beside, monkeypatch):
    one_run("a", model_of(nn.GELU()))
    one_run("b", model_of(nn.GELU(approximate="tanh")))
    told = tracerd.compare("a", "b")
    (file,) = Path(beside.dir).rglob("a.db")
    monkeypatch.setenv("TRACERD_DIR", "/nonexistent")
    assert tracerd.compare("a", "b", data=file.parent) == told


# ---- text logs ----


SIZES = 4, 3, 32, 48


@pytest.fixture
def logged(daemon, tmp_path):
    """The original script's log, as a run of it, and a traced run."""
    script = TOP / "tests/python/original_script.py"
    file = tmp_path / "log"
    file.write_text(programs.python(script, "log", *SIZES).stdout)
    daemon.tracectl("import", file, "--run", "log")
    programs.python(script, "trace", *SIZES, "live", folder=daemon.dir)
    return file


def assert_names_meet(result, compared):
    assert result["culprit"] is None
    assert result["counts"]["differ"] == 0
    assert result["counts"]["compared"] == compared
    for side in ("only_a", "only_b"):
        assert "values of no module" not in {m["object"] for m in result[side]}


def grow_gradient(file, path, by):
    """Of the first iteration."""
    lines = file.read_text().splitlines()
    i = next(n for n, t in enumerate(lines) if f",grad-{path}," in t)
    head, figures = lines[i].split("]-")
    figures = [f"{float(f) + by:.5f}" for f in figures.split(",")]
    lines[i] = f"{head}]-{','.join(figures)}"
    file.write_text("\n".join(lines) + "\n")


def test_gradients_of_a_log_meet_those_of_a_traced_run(daemon, logged):
    # of two iterations: 3 modules forward, 2 gradients of outputs, 2 of
    # parameters
    for a, b in (("log", "live"), ("live", "log")):
        assert_names_meet(compare(daemon, a, b), 20)


TOKENS = """
import sys, torch, tracerd

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(3000, 8),
                            torch.nn.Linear(8, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tracerd.attach(model, optimizer, run=sys.argv[1]):
    for _ in range(2):
        tokens = torch.randint(0, 3000, (4, 16))
        tokens[0, 0] += int(sys.argv[2])
        model(tokens).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_a_run_of_tokens_is_the_same_as_its_own_log(daemon, tmp_path):
    script, file = tmp_path / "tokens.py", tmp_path / "log"
    script.write_text(TOKENS)
    programs.python(script, "live", 0, folder=daemon.dir)
    programs.python(script, "other", 1, folder=daemon.dir)
    file.write_text(
        daemon.tracectl("export", "live", "--format", "seed").stdout
    )
    daemon.tracectl("import", file, "--run", "log")
    for a, b in (("live", "log"), ("log", "live")):
        result = compare(daemon, a, b)
        # a log's figures are floats: the mean of large numbers is rounded
        assert result["verdict"] in ("same", "rounding")
        assert result["counts"]["dtype"] == 0
        assert result["only_a"] == result["only_b"] == []
    # one token is another: whole numbers have no rounding
    assert compare(daemon, "other", "log")["verdict"] == "differs"


def test_a_wrong_gradient_of_a_log_names_its_module(daemon, logged):
    grow_gradient(logged, "layer2.weight", 0.5)
    daemon.tracectl("import", logged, "--run", "bad")
    for a, b, name in (
        ("bad", "live", "CustomLinear-2"), ("live", "bad", "layer2"),
    ):
        culprit = compare(daemon, a, b)["culprit"]
        assert (culprit["pass"], culprit["object"]) == ("grad", name)


def test_gradients_of_a_log_of_two_ranks_meet_those_of_one(daemon, logged):
    for rank in (0, 1):
        daemon.tracectl(
            "import", logged, "--run", "two", "--rank", str(rank)
        )
    for a, b in (("two", "live"), ("live", "two")):
        result = compare(daemon, a, b)
        assert not result["layout"]["same"]
        assert_names_meet(result, 40)


def imported(daemon, case):
    for side in "AB":
        daemon.tracectl(
            "import", CASES / f"{case}_{side}.txt", "--run", case + side
        )
    return compare(daemon, f"{case}A", f"{case}B")


def test_five_decimals_hide_what_is_smaller(daemon):
    result = imported(daemon, "H17")
    assert result["verdict"] == "same"
    assert result["resolution"] == 1e-5


def test_identical_zeros_are_equal(daemon):
    result = imported(daemon, "H36")
    assert result["verdict"] == "same" and result["counts"]["equal"] == 3
    assert result["ranked"] == []


def test_nan_against_numbers_and_against_nan(daemon):
    result = imported(daemon, "H37")
    counts = result["counts"]
    assert (counts["nan"], counts["nan_alike"], counts["equal"]) == (6, 2, 2)
    assert result["first"]["name"] == "forward-Linear-2-1-output"
    assert {r["kind"] for r in result["ranked"]} == {"nan"}


def test_another_shape_is_one_finding(daemon):
    result = imported(daemon, "H38")
    assert (result["counts"]["shape"], result["counts"]["equal"]) == (1, 1)
    assert result["ranked"][0]["kind"] == "shape"


def test_what_is_missing_everywhere_is_one_line(daemon):
    result = imported(daemon, "H40")
    assert result["counts"]["equal"] == 500
    for side, name in (("only_a", "Dropout-1"), ("only_b", "GELU-1")):
        assert result[side] == [
            {
                "object": name, "records": 500, "first_step": 1,
                "last_step": 500,
            }
        ]


def test_the_first_is_not_the_largest(daemon):
    result = imported(daemon, "H41")
    assert result["first"]["name"] == "forward-Linear-2-1-output"
    assert result["culprit"]["object"] == "Linear-2"
    assert result["ranked"][0]["name"] == "grad-l3.weight-1"
    assert {r["name"] for r in result["ranked"]} == {
        "forward-Linear-2-1-output", "forward-Linear-3-1-input",
        "forward-Linear-3-1-output", "grad-l3.weight-1",
    }


def test_nan_at_other_places(daemon):
    result = imported(daemon, "H57")
    counts = result["counts"]
    assert (counts["nan"], counts["nan_alike"], counts["equal"]) == (1, 1, 2)
    assert result["ranked"][0]["name"] == "forward-Linear-2-1-output"
    assert result["ranked"][0]["by"] == "samples"


def test_wrappers_in_names_do_not_hinder(daemon, tmp_path):
    """Pairs of names that are one, and look-alikes that are not."""
    names = json.loads((CASES / "H24.json").read_text())
    figures = ",".join(["1.00000", "1.00000", "1.00000", "0.00000", "1.00000"])
    line = f"101500000000,1,grad-{{}},0,[1]-{figures}\n"
    for kind in ("match", "must_not_match"):
        for i, pair in enumerate(names[kind]):
            for side, name in zip("AB", pair, strict=True):
                file = tmp_path / f"{kind}{i}{side}"
                file.write_text(line.format(name))
                daemon.tracectl("import", file, "--run", file.name)
            result = compare(daemon, f"{kind}{i}A", f"{kind}{i}B")
            found = 1 if kind == "match" else 0
            assert result["counts"]["compared"] == found, pair
