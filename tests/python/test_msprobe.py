"""Runs that msprobe dumped, beside those that tracerd traced."""

import json
import os
import shutil
import sqlite3
import subprocess

import pytest

import battery
import msprobe_script
import tracerd
from programs import TOP, need, program, python

DUMPS = TOP / "tests/golden/msprobe"


def imported(daemon, path, *more, run="probe", code=0):
    done = daemon.tracectl(
        "-o", "json", "import", str(path), "--run", run, *more, ok=(code,)
    )
    return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def rows(daemon, run, what="*"):
    done = daemon.tracectl("-r", run, "-o", "json", "query", what)
    return [json.loads(line) for line in done.stdout.splitlines()]


def traced(run, change=None, **options):
    model, optimizer = msprobe_script.make(change)
    with tracerd.attach(model, optimizer, run=run, **options) as t:
        msprobe_script.train(model, optimizer)
        assert t.flush(30)


def compare(daemon, a, b, *more):
    done = daemon.tracectl("-o", "json", "compare", a, b, *more)
    return json.loads(done.stdout)


# ---- what is stored ----


def witnessed():
    """Tensors in the dumps of one process; parameters count once a dump."""
    def tensors(value):
        if isinstance(value, list):
            return sum(map(tensors, value))
        if not isinstance(value, dict):
            return 0
        if value.get("type") == "torch.Tensor":
            return 1
        return sum(map(tensors, value.values()))

    n = 0
    for path in (DUMPS / "single").glob("*/*/dump.json"):
        for name, entry in json.loads(path.read_text())["data"].items():
            if name.startswith("Module.") and not name.endswith(".0"):
                entry.pop("parameters", None)
            n += tensors(entry)
    return n


def test_every_entry_of_a_mix_dump_is_stored(daemon):
    ((row,), said) = imported(daemon, DUMPS / "single")
    assert row["bad"] == 0 and said == ""
    stored = rows(daemon, "probe")
    assert len(stored) == row["records"] == row["new"] == witnessed()
    kinds = {r["pass"] for r in stored}
    assert kinds == {"forward", "backward", "grad", "param"}
    assert {r["iteration"] for r in stored} == {1, 2}
    assert {r["rank"] for r in stored} == {0}


def test_calls_are_counted_over_the_dumps(daemon):
    imported(daemon, DUMPS / "single")
    calls = [
        (r["step"], r["iteration"])
        for r in rows(daemon, "probe", "forward-Linear-*-output")
        if r["module"] == "head"
    ]
    assert calls == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]


def test_what_a_dump_lacks_is_null(daemon):
    imported(daemon, DUMPS / "single")
    (r,) = rows(daemon, "probe", "forward-LayerNorm-1-1-output")
    assert r["labels"] == ["text"] and r["samples"] == []
    lacking = ("std", "hash", "nan", "pinf", "ninf", "zero", "absmax")
    assert {r[name] for name in lacking} == {None}
    assert (r["max"], r["l2"]) == (1.693013072013855, 4.89301061630249)
    assert (r["dtype"], r["shape"], r["path"]) == ("float32", [2, 3, 4], "0")
    whole = rows(daemon, "probe", "forward-Embedding-1-1-input")[0]
    assert (whole["max"], whole["min"], whole["mean"]) == (15, 5, None)
    empty = rows(daemon, "probe", "forward-Linear-2-1-input")[0]
    assert (empty["n"], empty["max"]) == (0, None)


def test_nested_arguments_have_their_paths(daemon):
    imported(daemon, DUMPS / "single")
    places = [
        (r["io"], r["position"], r["path"])
        for r in rows(daemon, "probe", "forward-Part-1-1-*")
    ]
    assert places == [
        ("input", 0, "0"), ("input", 1, "scale"), ("output", 0, "0"),
        ("output", 1, "1.0"), ("output", 2, "1.1.0"), ("output", 3, "2.k"),
    ]


def test_parameters_and_their_gradients(daemon):
    imported(daemon, DUMPS / "single")
    names = {r["name"] for r in rows(daemon, "probe", "grad-*")}
    names |= {r["name"] for r in rows(daemon, "probe", "param-*")}
    paths = ("emb.weight", "part.fc.weight", "part.fc.bias",
             "part.ln.weight", "part.ln.bias", "head.weight", "head.bias")
    assert names == {
        f"{what}-{path}-{step}" for what in ("grad", "param")
        for path in paths for step in (1, 2)
    }


def test_a_file_says_where_it_belongs(daemon, tmp_path):
    place = tmp_path / "step7/rank3"
    place.mkdir(parents=True)
    (dump,) = (DUMPS / "single/step1").glob("*/dump.json")
    shutil.copy(dump, place)
    ((row,), _) = imported(daemon, place / "dump.json")
    assert row["rank"] == 3
    stored = rows(daemon, "probe", "forward-Linear-*-output")
    assert {r["iteration"] for r in stored} == {8}
    head = [r["step"] for r in stored if r["module"] == "head"]
    assert head == [22, 23, 24]


def test_a_second_import_finds_nothing_new(daemon):
    imported(daemon, DUMPS / "single")
    ((row,), _) = imported(daemon, DUMPS / "single")
    assert (row["records"], row["new"]) == (witnessed(), 0)


def test_each_rank_is_one_of_the_run(daemon):
    (found, _) = imported(daemon, DUMPS / "ranks")
    assert [r["rank"] for r in found] == [0, 1]
    grads = rows(daemon, "probe", "grad-head.weight-1")
    # a hook of DDP's parameter sees what was not exchanged yet
    assert [(g["rank"], g["labels"]) for g in grads] == [
        (0, ["local", "text"]), (1, ["local", "text"]),
    ]
    assert grads[0]["l2"] != grads[1]["l2"]


# ---- beside tracerd's ----


def test_the_same_training_agrees(here):
    imported(here, DUMPS / "single")
    traced("mine", passes=("forward", "backward", "grad", "param"))
    result = compare(here, "mine", "probe")
    assert result["culprit"] is None
    counts = result["counts"]
    assert counts["differ"] == counts["blind"] == 0
    # all of ours but the root's and what is a total there, a share here
    assert counts["compared"] >= 120


def test_functions_of_one_dump_alone_are_no_difference(daemon, tmp_path):
    shutil.copytree(DUMPS / "single", tmp_path / "L0")
    for path in (tmp_path / "L0").glob("*/*/dump.json"):
        dump = json.loads(path.read_text())
        dump["data"] = {
            k: v for k, v in dump["data"].items() if k.startswith("Module.")
        }
        path.write_text(json.dumps(dump))
    imported(daemon, DUMPS / "single", run="mix")
    imported(daemon, tmp_path / "L0", run="L0")
    result = compare(daemon, "mix", "L0")
    assert result["verdict"] == "same"
    assert result["only_a"] == result["only_b"] == []
    counts = result["counts"]
    assert counts["functions_a"] > 50 and counts["functions_b"] == 0
    back = compare(daemon, "L0", "mix")
    assert back["verdict"] == "same"
    assert back["counts"]["functions_b"] == counts["functions_a"]
    done = daemon.tracectl("compare", "L0", "mix")
    assert "records of functions only in A" in done.stdout


@pytest.mark.parametrize("name, change, module", [
    ("eps", lambda m: setattr(m.part.ln, "eps", 1e-3), "part.ln"),
    ("act", lambda m: setattr(m.part.act, "approximate", "tanh"),
     "part.act"),
    ("bias", lambda m: battery.nudge(m.head.bias, 1, 1e-3), "head"),
    ("grad", lambda m: battery.bad_grad(m.part.act, 0.999), "part.act"),
])
def test_a_bug_is_found_beside_a_dump(here, name, change, module):
    imported(here, DUMPS / "single")
    traced(name, change)
    result = compare(here, "probe", name)
    assert result["verdict"] == "differs"
    assert result["culprit"]["module"] == module


def test_two_ranks_agree(daemon, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    python(script, folder=daemon.dir, ranks=2, PYTHONPATH=PATH)
    imported(daemon, DUMPS / "ranks")
    result = compare(daemon, "probe", "mine")
    assert result["culprit"] is None
    assert result["counts"]["differ"] == 0
    assert result["counts"]["compared"] >= 100


# ---- damage ----


def test_bad_entries_are_named_and_good_ones_kept(daemon, tmp_path):
    (dump,) = (DUMPS / "single/step0").glob("*/dump.json")
    d = json.loads(dump.read_text())
    d["data"] = {
        "Module.a.Linear.forward.0": {
            "input_args": [{"type": "torch.Tensor", "dtype": "torch.float32",
                            "shape": [2, -1], "Max": 1, "Min": 0}],
            "output": [{"type": "torch.Tensor", "dtype": "torch.float32",
                        "shape": [2], "Max": "high", "Min": 0}],
        },
        "nonsense": {},
        "Module.a.Linear.backward.0": 5,
        "Module.b.Linear.forward.0": d["data"]["Module.head.Linear.forward.0"],
    }
    path = tmp_path / "dump.json"
    path.write_text(json.dumps(d, indent=1))
    ((row,), said) = imported(daemon, path, code=2)
    assert (row["records"], row["bad"]) == (4, 4)
    lines = said.splitlines()
    a = f"{path}:7: Module.a.Linear"
    assert lines[0] == (f"{a}.forward.0.input_args.0.shape: a dimension is no "
                        "whole number from 0")
    assert lines[1] == (f"{a}.forward.0.output.0.Max: neither a number nor "
                        "null")
    assert lines[2].startswith(f"{path}:32: nonsense: the name is not Module")
    assert lines[3] == f"{path}:33: Module.a.Linear.backward.0: not a dict"


def test_a_cut_dump_keeps_what_is_whole(daemon, tmp_path):
    (dump,) = (DUMPS / "single/step0").glob("*/dump.json")
    text = dump.read_text()
    path = tmp_path / "dump.json"
    path.write_text(text[: text.index('"Module.part.ln.LayerNorm.forward.1"')
                         + 200])
    ((row,), said) = imported(daemon, path, code=2)
    assert row["bad"] == 1 and row["records"] > 20
    assert said.endswith("the file ends within the dump\n")
    number = path.read_text().count("\n") + 1
    assert said.startswith(f"{path}:{number}: ")


@pytest.mark.parametrize("text, line, why", [
    ("{}", 1, 'this is no dump of msprobe: it has no object "data"'),
    ('{"task":\n "statistics"}', 2,
     'this is no dump of msprobe: it has no object "data"'),
    ('{"data": {\n"a" 5}}', 2, "a colon is missing"),
    ('{"data":\n [1, 2]}', 2,
     'this is no dump of msprobe: it has no object "data"'),
    ('{"data": {"Module.a.B.forward.0": {"output": [}}}}', 1,
     "Module.a.B.forward.0: no valid JSON, at byte 12: unexpected character"),
    ('{"data": {},\n "data": {}}', 2,
     '"data" is there twice: the first counts'),
    ('{"data": {}}\n x', 2, "there is more behind the dump"),
    ('{"data": {}\n', 2, "the file ends within the dump"),
])
def test_what_is_no_dump_is_told(daemon, tmp_path, text, line, why):
    path = tmp_path / "dump.json"
    path.write_text(text)
    (_, said) = imported(daemon, path, code=2)
    assert said == f"{path}:{line}: {why}\n"


TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2],
          "Max": 1.0, "Min": 0.0, "Mean": 0.5, "Norm": 1.0}


def dumped(path, text):
    path.write_bytes(
        json.dumps({"data": {"Module.a.B.forward.0": {"output": [TENSOR]},
                             "Module.c.B.forward.0": {"output": [TENSOR]}}},
                   indent=1).encode().replace(*text))
    return path


@pytest.mark.parametrize("text, line, said_of", [
    ((b"Module.c", b"Module.a"), 18,
     "Module.a.B.forward.0: the name is there twice: the first counts"),
    ((b"Module.c", b"Module.\xff"), 18, "Module.?.B.forward.0: the name"),
    ((b"Module.c", b"Mod\x1b[2Jule.c"), 18, "Mod?[2Jule.c.B.forward.0: the"),
    ((b"Module.c", b"Module.\xed\xa0\x80"), 18,
     "the name is not Module.PATH"),
    ((b"1.0,\n     \"Min", b"1e999,\n     \"Min"), 3,
     "Module.a.B.forward.0.output.0.Max: the number is out of range"),
    ((b"1.0,\n     \"Min", b"9" * 400 + b",\n     \"Min"), 3,
     "Module.a.B.forward.0.output.0.Max: the number is out of range"),
    ((b"0.0", b"-" + b"9" * 20), 3,
     "Module.a.B.forward.0.output.0.Min: the number is out of range"),
], ids=["twice", "latin", "escape", "surrogate", "exponent", "digits",
        "negative"])
def test_what_would_be_taken_for_something_else_is_named(
        daemon, tmp_path, text, line, said_of):
    path = dumped(tmp_path / "dump.json", text)
    ((row,), said) = imported(daemon, path, code=2)
    said = said.splitlines()
    assert said[0].startswith(f"{path}:{line}: ") and said_of in said[0]
    assert len(said) == row["bad"] and row["records"] == 2 - row["bad"]


def test_the_ends_of_integers_are_in_range(daemon, tmp_path):
    text = json.dumps({"data": {"Module.a.B.forward.0": {"output": [
        dict(TENSOR, dtype="torch.uint64", Max=2**64 - 1, Min=0),
        dict(TENSOR, dtype="torch.int64", Max=2**63 - 1, Min=-(2**63)),
    ]}}})
    (tmp_path / "dump.json").write_text(text)
    imported(daemon, tmp_path / "dump.json")
    ends = [(r["max"], r["min"]) for r in rows(daemon, "probe")]
    assert ends == [(2**64 - 1, 0), (2**63 - 1, -(2**63))]


def test_a_reader_that_goes_stops_no_import(tmp_path):
    """As with `| head -1`; the private daemon is ended, too."""
    need("tracerd", "tracectl")
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [program("tracectl"), "-d", str(tmp_path / "runs"), "import",
         str(DUMPS / "single"), "--run", "probe"],
        stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60,
        env={**os.environ,
             "PATH": f"{os.path.dirname(program('tracerd'))}:"
                     f"{os.environ['PATH']}"})
    os.close(writer)
    assert done.returncode == 3 and "cannot write" in done.stderr
    with sqlite3.connect(tmp_path / "runs/probe.db") as db:
        ((n,),) = db.execute("SELECT count(*) FROM record")
        assert n == witnessed()


def test_a_folder_without_a_dump_is_refused(daemon, tmp_path):
    (_, said) = imported(daemon, tmp_path, code=2)
    assert said == f"tracectl: no dump.json of msprobe below '{tmp_path}'\n"


def test_a_run_needs_a_name_and_a_rank_is_for_one(daemon):
    done = daemon.tracectl("import", str(DUMPS / "single"), ok=(2,))
    assert "a dump of msprobe needs --run NAME" in done.stderr
    (_, said) = imported(daemon, DUMPS / "ranks", "--rank", "1", code=2)
    assert "has dumps of several ranks: --rank is for one" in said


def test_two_dumps_of_one_step_are_refused(daemon, tmp_path):
    for name in ("a", "b"):
        shutil.copytree(DUMPS / "single", tmp_path / name)
    (_, said) = imported(daemon, tmp_path, code=2)
    assert "are both step 0 of rank 0: give the folder of one run" in said


def test_an_empty_dump_is_told(daemon, tmp_path):
    path = tmp_path / "dump.json"
    path.write_text("")
    (_, said) = imported(daemon, path, "--format", "msprobe", code=2)
    assert said == (f"tracectl: {path}:1: the dump is empty: msprobe writes "
                    "it when its step ends\n")


PATH = os.pathsep.join(
    [str(TOP / "tests/python"), os.environ.get("PYTHONPATH", "")]
)
RANKS = """
import torch.distributed as dist
import msprobe_script, tracerd

dist.init_process_group("gloo")
model, optimizer = msprobe_script.make()
msprobe_script.STEPS = 1
with tracerd.attach(model, optimizer, run="mine",
                    passes=("forward", "backward", "local")) as t:
    msprobe_script.train(model, optimizer)
    assert t.flush(30)
dist.destroy_process_group()
"""
