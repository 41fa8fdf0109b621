"""Starting the real programs."""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from recording import Record

TOP = Path(__file__).resolve().parent.parent.parent


def program(name):
    """The path of tracerd or tracectl, or None."""
    path = os.environ.get(f"TRD_{name.upper()}")
    if path:
        return path
    build = os.environ.get("TRD_BUILD")
    if build:
        room = {"tracerd": "daemon", "tracectl": "tools"}[name]
        path = Path(build).resolve() / room / name
        if path.exists():
            return str(path)
    return shutil.which(name)


def need(*names):
    for name in names:
        if not program(name):
            pytest.skip(f"no {name}")


def environment(folder=None, **more):
    env = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    if folder:
        env["TRACERD_DIR"] = folder
    env.update({k: str(v) for k, v in more.items()})
    return env


def finished(script, *args, folder=None, ranks=1, timeout=120, **env):
    """Runs a script, under torchrun for several ranks; the finished
    process, with text output."""
    launcher = [sys.executable]
    if ranks > 1:
        launcher += [
            "-m", "torch.distributed.run", "--standalone",
            "--nproc-per-node", str(ranks),
        ]
    return subprocess.run(
        [*launcher, str(script), *map(str, args)],
        env=environment(folder, **env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def python(script, *args, **options):
    """The same; it must end well."""
    done = finished(script, *args, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


class Daemon:
    """tracerd on a directory of its own; with-statement starts and stops.
    options: more of the command line."""

    def __init__(self, folder, *options):
        self.options = options
        self.dir = str(folder)
        self.data = os.path.join(self.dir, "data")
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *error):
        self.stop()

    def start(self):
        reader, writer = os.pipe()
        try:
            with open(os.path.join(self.dir, "log"), "ab") as log:
                self.process = subprocess.Popen(
                    [
                        program("tracerd"), "--dir", self.dir, "--data",
                        self.data, "--foreground", "--ready-fd", str(writer),
                        *self.options,
                    ],
                    pass_fds=[writer],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=log,
                )
            os.close(writer)
            ready, _, _ = select.select([reader], [], [], 10)
            assert ready and os.read(reader, 64), self.log()
        finally:
            os.close(reader)

    def log(self):
        return Path(self.dir, "log").read_text()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(20)

    def tracectl(self, *args, ok=(0, 1)):
        done = subprocess.run(
            [program("tracectl"), "-s", self.dir, *map(str, args)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode in ok, (args, done.returncode, done.stderr)
        return done

    def query(self, run, name="*", *more):
        """Records as a list of Record; non-finite numbers as floats."""
        out = self.tracectl(
            "-r", run, "-o", "json", "query", name, *more
        ).stdout
        return [_number_fields(json.loads(line)) for line in out.splitlines()]

    def runs(self):
        out = self.tracectl("-o", "json", "runs").stdout
        return [Record(json.loads(line)) for line in out.splitlines()]

    def wait(self, condition, seconds=15):
        """Waits until a condition of the stored data holds."""
        end = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < end, self.log()
            time.sleep(0.05)


FIGURES = (
    "max", "min", "mean", "std", "l2", "absmax", "absmin", "finite_max",
    "finite_min", "finite_mean", "finite_std", "finite_l2",
)


def _float(value):
    return float(value) if isinstance(value, str) else value


def _number_fields(row):
    record = Record(row)
    for name in FIGURES:
        if name in record:
            record[name] = _float(record[name])
    record["samples"] = [_float(v) for v in record["samples"] or []]
    return record
