"""Network namespaces: nodes of their own on this machine."""

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

CLONE_NEWNET = 0x40000000
_number = itertools.count()


def ip(*args):
    return subprocess.run(["ip", *args], capture_output=True, text=True)


def may(*args):
    done = ip(*args)
    if done.returncode:
        pytest.skip(f"no network namespaces here: {done.stderr.strip()}")


class Space:
    """space(f, ...) calls f there: what it starts, and what it connects to,
    is there too."""

    def __init__(self, name, address):
        self.name, self.address = name, address
        self.thread = ThreadPoolExecutor(1, initializer=self._enter)

    def _enter(self):
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.name}", "rb") as f:
            if libc.setns(f.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")

    def __call__(self, f, *args, **more):
        return self.thread.submit(f, *args, **more).result()

    def link(self, state):
        done = ip("-n", self.name, "link", "set", "veth", state)
        assert done.returncode == 0, done.stderr


@contextlib.contextmanager
def two_spaces():
    """Two of them, joined by a pair of veth."""
    if os.geteuid():
        pytest.skip("network namespaces want root")
    if not shutil.which("ip"):
        pytest.skip("no ip, which is of iproute2")
    tail = f"{os.getpid()}-{next(_number)}"
    names = [f"trd{tail}{side}" for side in "ab"]
    spaces = []
    try:
        for i, name in enumerate(names):
            may("netns", "add", name)
            spaces.append(Space(name, f"10.213.0.{i + 1}"))
        may(
            "link", "add", "veth", "netns", names[0], "type", "veth",
            "peer", "name", "veth", "netns", names[1],
        )
        for s in spaces:
            may("-n", s.name, "link", "set", "lo", "up")
            may("-n", s.name, "addr", "add", s.address + "/24", "dev", "veth")
            s.link("up")
        yield spaces
    finally:
        for s in spaces:
            s.thread.shutdown()
        for name in names:
            ip("netns", "del", name)
