"""python -m tracerd run: scripts that say nothing of tracing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from programs import environment

SCRIPT = Path(__file__).with_name("auto_script.py")
RUN = [sys.executable, "-m", "tracerd", "run"]


def run(*command, folder=None, code=0, **env):
    done = subprocess.run(
        [str(c) for c in command],
        env=environment(folder, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done


def names(daemon, name):
    daemon.wait(lambda: daemon.runs())
    daemon.wait(lambda: daemon.query(name, "user-*") == [])
    return {
        (r["object"], r["module"], r["iteration"])
        for r in daemon.query(name, "forward-*")
        if r["io"] == "output"
    }


WANTED = {
    (thing, module, i)
    for i in (1, 2, 3)
    for thing, module in (
        ("Sequential-1", ""), ("Linear-1", "0"), ("ReLU-1", "1"),
        ("Linear-2", "2"), ("Linear-3", "model2"),
    )
}


@pytest.mark.parametrize(
    "command",
    [
        [SCRIPT, "a", "--b"],
        ["--", SCRIPT, "a", "--b"],
        ["--", sys.executable, SCRIPT, "a", "--b"],
        ["--", "env", "X=1", sys.executable, "-u", SCRIPT, "a", "--b"],
    ],
    ids=["script", "dashes", "python", "command"],
)
def test_every_model_of_an_optimizer_is_traced(daemon, command):
    plain = run(sys.executable, SCRIPT, "a", "--b")
    traced = run(*RUN, "--run", "a", *command, folder=daemon.dir)
    assert traced.stdout == plain.stdout and "['a', '--b']" in plain.stdout
    assert traced.stderr == ""
    assert names(daemon, "a") == WANTED
    grads = daemon.query("a", "grad-*")
    assert {(r["path"], r["iteration"]) for r in grads} == {
        (p, i)
        for i in (1, 2, 3)
        for p in ("0.weight", "0.bias", "2.weight", "2.bias",
                  "model2.weight", "model2.bias")
    }


def test_options_reach_attach(daemon):
    run(
        *RUN, "--run", "b", "--every", "2", "--match", "ReLU", "--samples",
        "1", "--passes", "forward", "--", SCRIPT, folder=daemon.dir,
    )
    daemon.wait(lambda: daemon.runs())
    records = daemon.query("b")
    assert {(r["object"], r["iteration"], len(r["samples"]))
            for r in records} == {("ReLU-1", 1, 1), ("ReLU-1", 3, 1)}


def test_all_options_reach_attach(daemon, tmp_path):
    tmp_path.chmod(0o700)
    run(
        *RUN, "--run", "all", "--name", "my", "--tags", "a=1,b=x y",
        "--start", "11", "--iterations", "12-20:1", "--ranks", "0",
        "--ignore", "model2*,my.model2*", "--depth", "1", "--leaf-only",
        "--passes", "forward,optim", "--no-input-gradients",
        "--inside-compile", "--samples", "4", "--sampling",
        "every:2", "--histogram", "exact", "--same", "no", "--threads", "1",
        "--journal-bytes", "1M", "--block-ms", "7", "--spool", tmp_path,
        "--spool-bytes", "2M", "--", SCRIPT, folder=daemon.dir,
    )
    daemon.wait(lambda: daemon.runs() and daemon.query("all", "forward-*-3"))
    records = daemon.query("all")
    assert {(r["object"], r["module"]) for r in records} == {
        ("Linear-1", "my.0"), ("ReLU-1", "my.1"), ("Linear-2", "my.2")
    }
    assert {r["iteration"] for r in records} == {12, 13}
    out = daemon.tracectl(
        "-r", "all", "-o", "json", "sql",
        "SELECT info, block_ms, spool_bytes FROM v_run",
    ).stdout
    row = json.loads(out)
    assert (row["block_ms"], row["spool_bytes"]) == (7, 2 << 20)
    assert json.loads(row["info"])["tags"] == {"a": "1", "b": "x y"}


def test_a_module_and_spawned_children_are_traced(daemon):
    folder = str(SCRIPT.parent)
    path = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
    run(
        *RUN, "--run", "c", "--", "-m", "auto_script", "spawn",
        folder=daemon.dir, PYTHONPATH=path,
    )
    assert names(daemon, "c") == WANTED


def test_ranks_of_a_launcher_are_traced(daemon):
    launcher = [
        sys.executable, "-m", "torch.distributed.run", "--standalone",
        "--nproc-per-node", "2",
    ]
    run(*RUN, "--run", "d", "--", *launcher, SCRIPT, folder=daemon.dir)
    run(
        *launcher, "-m", "tracerd", "run", "-r", "e", SCRIPT,
        folder=daemon.dir,
    )
    for name in ("d", "e"):
        daemon.wait(
            lambda name=name: {r["rank"] for r in daemon.query(name)}
            == {0, 1}
        )
        assert names(daemon, name) == WANTED


def test_another_sitecustomize_still_runs(daemon, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("print('site')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = run(*RUN, "--run", "f", SCRIPT, folder=daemon.dir, PYTHONPATH=path)
    # once by `-m tracerd` itself, once by the script
    assert done.stdout.count("site") == 2 and "RESULT" in done.stdout


def test_a_program_without_torch_is_left_alone(folder):
    done = run(*RUN, "--", sys.executable, "-c", "print(6 * 7)", folder=folder)
    assert (done.stdout, done.stderr) == ("42\n", "")
    assert os.listdir(folder) == []


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "what is to be run"),
        (["--", "/nowhere/x"], "cannot run '/nowhere/x': no such file"),
        (["--every", "x", "y.py"], "invalid int value"),
        (["--every", "0", "y.py"], "every=0: expected a number from 1"),
        (["--iterations", "5-1", "y.py"], "iterations='5-1': expected"),
        (["--passes", "grads", "y.py"], "did you mean grad?"),
        (["--run", "a/b", "y.py"], "run name 'a/b': allowed are"),
        (["--depth", "-1", "y.py"], "depth=-1: expected"),
        (["--samples", "5000", "y.py"], "samples=5000: expected"),
        (["--sampling", "every:0", "y.py"], "sampling=['every', 0]"),
        (["--sampling", "every:x", "y.py"], "invalid sampling value"),
        (["--histogram", "all", "y.py"], "invalid choice"),
        (["--same", "2", "y.py"], "invalid switch value"),
        (["--threads", "99", "y.py"], "threads=99: expected"),
        (["--block-ms", "-1", "y.py"], "block_ms=-1: expected"),
        (["--spool-bytes", "x", "y.py"], "invalid size value"),
        (["--journal-bytes", "3M", "y.py"], "journal_bytes='3M': expected"),
        (["--tags", "x", "y.py"], "invalid tags value"),
    ],
    ids=lambda v: " ".join(v[:2]) if isinstance(v, list) else "",
)
def test_what_cannot_be_run_is_an_error(arguments, text):
    done = run(*RUN, *arguments, code=2)  # before anything has started
    assert text in done.stderr and done.stdout == ""


def test_the_code_of_the_program_is_ours(folder):
    code = "import sys; sys.exit(7)"
    run(*RUN, "--", sys.executable, "-c", code, folder=folder, code=7)


def test_a_wrong_variable_is_an_error_too(folder):
    done = run(*RUN, "x.py", code=2, TRACERD_EVERY="x")
    assert "TRACERD_EVERY='x': expected" in done.stderr
