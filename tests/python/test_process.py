"""What happens to a training process happens as if it were not traced, and
what it submitted is stored."""

import glob
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from oracle import ask, held, stored, wait_stored, whole
from programs import TOP, environment

SCRIPT = TOP / "tests/python/process_script.py"
AT_THE_END = "training_in_a_daemon_thread"
H47_TIMES = 20 if os.environ.get("TRD_TEST_SLOW") else 3


@pytest.fixture(scope="module")
def trainings():
    """process_script.py, running."""
    process = subprocess.Popen(
        [sys.executable, SCRIPT],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        yield process
        process.stdin.close()


def both(trainings, daemon, case):
    """Runs it with and without tracing; the exit code."""
    for old in glob.glob(f"{daemon.dir}/*.out") + glob.glob(
        f"{daemon.dir}/*.err"
    ):
        os.remove(old)
    trainings.stdin.write(f"{case} {daemon.dir}\n")
    trainings.stdin.flush()
    ready, _, _ = select.select([trainings.stdout], [], [], 120)
    assert ready, daemon.log()
    plain, traced = map(int, trainings.stdout.readline().split())
    out, err = (
        [Path(daemon.dir, f"{mode}.{what}").read_text()
         for mode in ("plain", "traced")]
        for what in ("out", "err")
    )
    if (plain, traced) != (0, 0) and case == AT_THE_END:
        # torch, ended in the middle of a call, may abort by itself
        assert {plain, traced} <= {0, -signal.SIGABRT}
    else:
        assert traced == plain, err[1]
    assert out[1] == out[0], err[1]
    assert out[0]
    # a traceback goes through other lines, but ends in the same one
    line = slice(0, 1) if case == "segv_told" else slice(-1, None)
    if case not in (AT_THE_END, "loader_dies"):
        assert err[1].splitlines()[line] == err[0].splitlines()[line]
    return plain


def numbers(path):
    return [int(word) for word in Path(path).read_text().split()]


def check(daemon, unsure=0, run="run"):
    """All that was told is there, and forward passes 1, 2, ... of it."""
    pid, submitted, calls = numbers(f"{daemon.dir}/tell")
    got = wait_stored(daemon, run, pid, submitted)
    assert got <= submitted + unsure
    daemon.wait(lambda: not glob.glob(f"{daemon.dir}/*.journal"), 30)
    whole(daemon, run)
    steps = ask(
        daemon, run, "SELECT DISTINCT r.step FROM v_record r WHERE"
        " r.name LIKE 'forward-Linear-1-%-input' ORDER BY 1",
    )
    assert [s for (s,) in steps][:calls] == list(range(1, calls + 1))
    assert ask(daemon, run, "SELECT count(*) FROM loss") == [(0,)]


# records of some steps: one that ends halfway has not told of them
STEP = 100


@pytest.mark.parametrize(
    "case, code",
    [
        ("os_exit", 3),
        ("sys_exit", 4),
        ("uncaught", 1),
        ("sigint", -signal.SIGINT),
        ("sigterm", -signal.SIGTERM),
        ("segv", -signal.SIGSEGV),
        ("segv_told", -signal.SIGSEGV),
        ("abort", -signal.SIGABRT),
        ("execv", 7),
    ],
)
def test_it_ends(trainings, daemon, case, code):
    got = both(trainings, daemon, case)
    assert got == code
    check(daemon, STEP)
    held(3, 1, "Python: exit, exception, signal, crash, exec")


@pytest.mark.parametrize(
    "case",
    ["daemon_threads", "at_exit", "collected", "model_deleted"],
)
def test_the_interpreter_ends(trainings, daemon, case):
    code = both(trainings, daemon, case)
    assert code == 0
    check(daemon, STEP)
    held(32, 1, "Python: threads, exit handlers, collected objects at the end")


def test_a_thread_submits_while_the_interpreter_ends(trainings, daemon):
    both(trainings, daemon, AT_THE_END)
    pid, submitted, _ = numbers(f"{daemon.dir}/tell")
    wait_stored(daemon, "run", pid, submitted)
    daemon.wait(lambda: not glob.glob(f"{daemon.dir}/*.journal"), 30)
    whole(daemon, "run")
    held(32, 1, "Python: a daemon thread submits at the interpreter's end")


def ask_last_run(daemon):
    return sorted(r["name"] for r in daemon.runs())[-1]


@pytest.mark.parametrize("case", ["caught", "interrupted"])
def test_it_goes_on(trainings, daemon, case):
    code = both(trainings, daemon, case)
    assert code == 0
    check(daemon)
    signals = case == "interrupted"
    held(31 if signals else 3, 1 if signals else 5,
         "Python: SIGINT within a step" if signals
         else "Python: exceptions in forward, hooks, backward, optimizer")


@pytest.mark.parametrize("time", range(H47_TIMES))
def test_workers_of_a_loader(trainings, daemon, time):
    code = both(trainings, daemon, "loader")
    assert code == 0
    check(daemon)
    # of the workers there is nothing
    assert ask(daemon, "run", "SELECT count(*) FROM stream") == [(1,)]
    held(30, 4, "Python: forked workers of a DataLoader")


def test_a_worker_of_a_loader_dies(trainings, daemon):
    code = both(trainings, daemon, "loader_dies")
    assert code == 0
    check(daemon)
    held(30, 1, "Python: a worker of a DataLoader dies")


@pytest.mark.parametrize("case", ["mp_fork", "mp_spawn", "mp_forkserver"])
def test_a_child_traces_its_own_model(trainings, daemon, case):
    code = both(trainings, daemon, case)
    assert code == 0
    check(daemon)
    pid, submitted = numbers(f"{daemon.dir}/tell.child")
    wait_stored(daemon, "child", pid, submitted)
    whole(daemon, "child")
    assert stored(daemon, "child", pid) == submitted > 0
    held(30, 1, "Python: multiprocessing, the child traces its own model")


@pytest.mark.parametrize("case", ["spawned", "double_fork",
                                  "forks_in_a_storm"])
def test_children(trainings, daemon, case):
    code = both(trainings, daemon, case)
    assert code == 0
    check(daemon)
    assert ask(daemon, "run", "SELECT count(*) FROM stream") == [(1,)]
    held(30, 30 if case == "forks_in_a_storm" else 2,
         "Python: fork, spawn, double fork; the child uses the model")


def test_a_child_stays(trainings, daemon):
    code = both(trainings, daemon, "child_stays")
    assert code == 6
    check(daemon)
    assert ask(daemon, "run", "SELECT state FROM stream") == [("dead",)]
    for child in numbers(f"{daemon.dir}/tell.stays"):
        os.kill(child, signal.SIGKILL)
    held(30, 1, "Python: a child outlives the training")


def test_imported_in_a_forked_child_first(trainings, daemon):
    code = both(trainings, daemon, "imported_in_a_child")
    assert code == 0
    check(daemon, run=ask_last_run(daemon))
    held(30, 2, "Python: imported in a forked child first")


@pytest.mark.parametrize("case", ["closerange", "dup2"])
def test_its_numbers_are_taken(trainings, daemon, case):
    code = both(trainings, daemon, case)
    assert code == 0
    check(daemon)
    held(29, 1, "Python: descriptors closed, replaced; no foreign byte")
