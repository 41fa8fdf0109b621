"""A traced training computes the bits of the untraced one."""

import pytest

from programs import python
from unchanged_script import HERE, train


def split(lines):
    """(what was computed, records submitted)"""
    told = [line for line in lines if "submitted" not in line]
    submitted = [
        int(line.split()[2]) for line in lines if "submitted" in line
    ]
    return sorted(told), submitted


@pytest.mark.filterwarnings("ignore:tracerd. no daemon")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_one_process(folder, monkeypatch, dtype):
    monkeypatch.setenv("TRACERD_DIR", folder)
    plain, _ = split(train(dtype, "plain"))
    assert split(train(dtype, "plain"))[0] == plain  # it can be repeated
    traced, submitted = split(train(dtype, "traced"))
    assert traced == plain
    assert submitted[0] > 500


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_it_would_show():
    """Hooks that put themselves into the graph change these very bits."""
    plain, _ = split(train("float32", "plain"))
    assert split(train("float32", "full_hooks"))[0] != plain


def test_two_ranks(folder):
    results = [
        split(
            python(
                HERE / "unchanged_script.py", mode, "float32", "bfloat16",
                folder=folder, ranks=2,
            ).stdout.splitlines()
        )
        for mode in ("plain", "traced")
    ]
    assert results[0][0] == results[1][0]
    assert len(results[0][0]) == 2 * 2 * 8
    assert len(results[1][1]) == 4 and min(results[1][1]) > 500
