"""Where two runs part, as data: what `tracectl compare` says."""

import json
import os
import shutil
import subprocess
import sys


def _program():
    """tracectl of this installation, or the first of PATH."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which("tracectl", path=beside) or shutil.which("tracectl")
    if not found:
        raise FileNotFoundError(
            "tracectl is neither beside this Python nor in PATH: install "
            "tracerd, or add the directory of tracectl to PATH"
        )
    return found


def compare(
    a, b, *, map=None, rules=None, noise=None, skip=0, attempt=None,
    attempt_b=None, all=False, data=None,
):
    """Compares two stored runs; returns the object that
    `tracectl -o json compare` prints, as a dict.

    a, b, noise: names of runs, or paths of their files. map, rules: paths of
    files as of the command's options. skip: iterations left out at the front.
    attempt, attempt_b: which attempt of each run; None: its last. all: every
    pair that is off, not the worst ones alone. data: a run's file or a
    directory of them, which needs no daemon; None: the runs of the daemon.

    Among its keys are `verdict` ("same", "rounding", "unsure" or "differs"),
    `first`, `culprit` (both None where there is none) and `counts`. Blocks
    until tracectl has read both runs. Raises FileNotFoundError where there
    is no tracectl, ValueError for what it cannot use, and OSError where the
    daemon or a run cannot be read; both with its own words.
    """
    command = [_program(), "-o", "json"]
    if data is not None:
        command += ["-d", os.fspath(data)]
    command += ["compare"]
    options = {
        "--map": map, "--rules": rules, "--noise": noise, "--skip": skip,
        "--attempt": attempt, "--attempt-b": attempt_b,
    }
    for option, value in options.items():
        if value is not None:
            command += [option, str(value)]
    if all:
        command.append("--all")
    command += ["--", os.fspath(a), os.fspath(b)]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode not in (0, 1) or not done.stdout:
        why = done.stderr.strip() or f"tracectl ended with {done.returncode}"
        raise (OSError if done.returncode == 3 else ValueError)(why)
    return json.loads(done.stdout)
