"""What is stored of a two-rank training, figure by figure, against numpy's
figures of the very tensors."""

import numpy as np
import pytest
import torch

from programs import TOP, python


def key_of_record(r):
    if r["pass"] == "grad":
        return r.rank, "grad", r.path, r.iteration, r.io
    return r.rank, r["pass"], r.object, r.step, r.io


def load(folder, ranks):
    """The same keys with the tensors."""
    tensors = {}
    for rank in range(ranks):
        kept = torch.load(f"{folder}/events-{rank}.pt")
        for kind, name, step, io, _, tensor in kept["events"]:
            key = rank, kind, name, step, io
            assert key not in tensors
            tensors[key] = tensor
        for path, iteration, tensor in kept["gradients"]:
            tensors[rank, "grad", path, iteration, ""] = tensor
    return tensors


def check(record, tensor):
    a = tensor.float().numpy().ravel()
    wide = a.astype(np.float64)
    assert record.shape == list(tensor.shape) and record.n == a.size
    assert record.dtype == str(tensor.dtype).split(".")[1]
    places = np.linspace(0, a.size - 1, min(16, a.size), dtype=int)
    assert record.samples == wide[places].tolist()
    assert record.max == wide.max() and record.min == wide.min()
    assert record.absmax == np.abs(wide).max()
    assert record.absmin == np.abs(wide)[wide != 0].min()
    assert record.zero == (wide == 0).sum()
    assert record.nan == record.pinf == record.ninf == 0
    spread = wide.std()
    assert abs(record["mean"] - wide.mean()) <= 5e-9 * spread
    assert abs(record["std"] - spread) <= 4e-8 * spread
    l2 = np.sqrt((wide * wide).sum())
    assert abs(record["l2"] - l2) <= 4e-8 * l2
    tiny = torch.finfo(tensor.dtype).smallest_normal
    assert record.subnormal == ((wide != 0) & (np.abs(wide) < tiny)).sum()


def test_every_figure_of_two_ranks(daemon):
    script = TOP / "tests/python/figures_script.py"
    python(
        script, daemon.dir, "--run-name", "figures", "--batch", 3,
        folder=daemon.dir, ranks=2,
    )
    records = daemon.query("figures")
    tensors = load(daemon.dir, 2)
    assert len(records) == len(tensors) == 2 * 2 * (6 + 4 + 2)
    for r in records:
        check(r, tensors.pop(key_of_record(r)))
        assert r.position == 0 and r.attempt == 0
        names = {
            "grad": f"grad-{r.path}-{r.iteration}",
        }
        assert r.name == names.get(
            r["pass"], f"{r['pass']}-{r.object}-{r.step}-{r.io}"
        )
    # one gradient on all ranks, but data of their own
    by_name = {}
    for r in records:
        by_name.setdefault((r.name, r.iteration), []).append(r.hash)
    for (name, _), (one, two) in by_name.items():
        assert (one == two) == name.startswith("grad-")
    assert [r.rank for r in daemon.query("figures", "forward-MyModel-1-2")]
    (run,) = daemon.runs()
    assert (run["name"], run["records"]) == ("figures", len(records))


def test_the_example_computes_the_same_untraced(folder):
    example = TOP / "tools/examples/linear.py"
    traced = python(example, folder=folder)
    plain = python(example, "--no-trace")
    assert traced.stdout == plain.stdout != ""
    assert "no daemon" in traced.stderr and plain.stderr == ""


@pytest.mark.parametrize("how", ["module", "parameter"])
def test_questions(here, how):
    import tracerd

    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    with tracerd.attach(model, run="q") as t:
        for _ in range(2):
            model(torch.ones(1, 3)).sum().backward()
            t.step()
        assert t.flush() and t.run == "q"
    if how == "module":
        found = here.query("q", "forward-0-2")
        assert {(r.object, r.step, r.module) for r in found} == {
            ("Linear-1", 2, "0")
        }
        assert {r.io for r in found} == {"input", "output"}
    else:
        (found,) = here.query("q", "grad-0.weight-2")
        assert (found.object, found.path) == ("Linear-1", "0.weight")
        assert found.labels == ["final"]
