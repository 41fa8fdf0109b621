"""Modules that were used, but none of whose hooks ever ran, are named."""

import os
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from torch import nn

import tracerd
from programs import environment
from recording import Block


class Bypassed(nn.Module):
    """Of its layers one is called, one by forward(), one by its weight, and
    one not at all; a container is never called."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(2, 2) for _ in range(4))

    def forward(self, x):
        called, directly, weights, _ = self.parts
        return nn.functional.linear(
            directly.forward(called(x)), weights.weight
        )


def said(model, steps=1, **options):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with tracerd.attach(model, **options) as t:
            for _ in range(steps):
                model(torch.ones(1, 2)).sum().backward()
                t.step()
    return [str(w.message) for w in told if "tracerd" in str(w.message)]


def test_they_are_named_once(recorded):
    model = Bypassed()
    [text] = said(model, steps=2)
    assert text.startswith("tracerd: of these modules no call was seen")
    assert text.endswith(": parts.1, parts.2")


def test_none_is_named_where_all_ran(recorded):
    assert said(Block()) == []


def test_of_many_a_few_are_named(recorded):
    class Many(nn.ModuleList):
        def forward(self, x):
            for layer in self:
                x = layer.forward(x)
            return x

    [text] = said(Many(nn.Linear(2, 2) for _ in range(20)))
    assert text.endswith(": 0, 1, 2, 3, 4, 5, 6, 7 and 12 more")


@pytest.mark.parametrize(
    "options",
    [{"match": "parts.0"}, {"passes": "grad,user"}, {"depth": 0}],
)
def test_what_is_not_wanted_is_not_missed(recorded, options):
    assert said(Bypassed(), **options) == []


def test_nothing_is_said_where_no_iteration_ended(recorded):
    model = Bypassed()
    with tracerd.attach(model):
        model(torch.ones(1, 2))


def test_nothing_is_said_where_nothing_ran(recorded):
    with tracerd.attach(Bypassed()) as t:
        t.step()


def test_a_script_that_says_nothing_of_tracing(daemon, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent("""
        import torch
        model = torch.nn.Sequential(
            torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
        )
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model[1].forward(model[0](torch.ones(1, 2))).sum().backward()
        optimizer.step()
    """))
    done = subprocess.run(
        [sys.executable, "-m", "tracerd", "run", "--", str(script)],
        env=environment(TRACERD_DIR=daemon.dir), text=True,
        capture_output=True, cwd=os.fspath(tmp_path),
    )
    assert done.returncode == 0, done.stderr
    lines = [
        line for line in done.stderr.splitlines() if "no call was seen" in line
    ]
    assert len(lines) == 1 and lines[0].endswith(": 1")
