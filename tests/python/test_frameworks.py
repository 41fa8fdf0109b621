"""Small trainings of real frameworks, with and without tracing: the same
losses and parameters to the bit, and records that an independent recorder
confirms. A scenario whose framework is not installed is skipped, unless
TRD_FRAMEWORKS=all."""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from framework_script import MODULES, NOT_INSTALLED
from programs import TOP, environment

SERVER = Path(__file__).with_name("framework_server.py")
SECONDS = 300
# iterations whose gradients the optimizer does not find
SKIPS = {
    "amp_scaler_skips": {1}, "deepspeed_zero2": {2}, "deepspeed_zero3": {2},
}
ALL = os.environ.get("TRD_FRAMEWORKS") == "all"

# scenario -> ranks
SCENARIOS = {
    "plain": 1,
    "accumulation": 1,
    "evaluation": 1,
    "checkpoint_reentrant": 1,
    "checkpoint_nonreentrant": 1,
    "amp_scaler": 1,
    "amp_scaler_skips": 1,
    "compile_aot_eager": 1,
    "compile_inductor": 1,
    "compile_after": 1,
    "compile_in_place": 1,
    "compile_inside": 1,
    "compile_inside_inductor": 1,
    "shared_modules": 1,
    "tied_weights": 1,
    "called_often": 1,
    "frozen": 1,
    "forward_directly": 1,
    "script_module": 1,
    "modules_later": 1,
    "copies": 1,
    "averaged": 1,
    "exceptions": 1,
    "closure": 1,
    "threads": 1,
    "replicas": 1,
    "several_optimizers": 1,
    "ddp": 2,
    "ddp_static": 2,
    "ddp_unused": 2,
    "ddp_no_sync": 2,
    "ddp_before": 2,
    "ddp_zero_redundancy": 2,
    "ddp_uneven": 2,
    "fsdp1_flat": 2,
    "fsdp1_original": 2,
    "fsdp1_mixed": 2,
    "fsdp1_checkpoint": 2,
    "fsdp2": 2,
    "fsdp2_before": 2,
    "fsdp2_checkpoint": 2,
    "fsdp2_offload": 2,
    "tensor_parallel": 2,
    "tensor_parallel_sequence": 2,
    "tensor_parallel_checkpoint": 2,
    "tensor_parallel_loss": 2,
    "pipeline_gpipe": 2,
    "pipeline_1f1b": 2,
    "pipeline_interleaved": 2,
    "pipeline_zero_bubble": 2,
    "pipeline_zbv": 2,
    "hf_gpt2": 1,
    "hf_llama": 1,
    "hf_llama_checkpoint": 1,
    "hf_t5": 1,
    "hf_trainer": 1,
    "accelerate": 1,
    "lightning": 1,
    "deepspeed_zero1": 2,
    "deepspeed_zero2": 2,
    "deepspeed_zero3": 2,
    "deepspeed_groups": 2,
    "deepspeed_pipeline": 2,
    "megatron_tp2": 2,
    "megatron_tp2_sequence": 2,
    "megatron_tp2_recompute": 2,
    "megatron_pp2": 2,
    "megatron_pp2_interleaved": 2,
    "megatron_data_parallel": 2,
    "megatron_distributed_optimizer": 2,
}


@pytest.fixture(scope="module")
def server():
    env = environment(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE=1)
    with subprocess.Popen(
        [sys.executable, str(SERVER)], env=env, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as process:
        yield process
        process.stdin.close()


def train(server, name, ranks, daemon, out):
    """What the plain and the traced training said, and how many records the
    traced one made."""
    job = {
        "scenario": name, "run": name, "ranks": ranks, "out": str(out),
        "folder": daemon.dir, "seconds": SECONDS,
    }
    server.stdin.write(json.dumps(job) + "\n")
    server.stdin.flush()
    codes = json.loads(server.stdout.readline())
    said = {"plain": [], "traced": []}
    submitted = 0
    for mode, lines in said.items():
        for rank in range(ranks):
            text = Path(f"{out}-{mode}-{rank}.txt").read_text()
            if codes[mode][rank] == NOT_INSTALLED and not ALL:
                pytest.skip(f"{text.split()[-1]} is not installed")
            assert codes[mode][rank] == 0, text
            # frameworks talk on stdout, too
            lines += re.findall(r"^\d+ (?:loss|parameters) .*", text, re.M)
            found = re.findall(r"^\d+ submitted (\d+)", text, re.M)
            submitted += sum(map(int, found))
    return said["plain"], said["traced"], submitted


def events_of(out, ranks):
    events = {}
    for rank in range(ranks):
        for kind, name, step, io, what in json.loads(
            Path(f"{out}-{rank}.json").read_text()
        ):
            events.setdefault((rank, kind, name, step, io), []).append(what)
    return events


def agree(record, what):
    """Whether a record has these figures."""
    dtype, shape, most, least, mean, std, l2, zero, nan = what
    if record.dtype != dtype or record.shape != shape:
        return False
    if record.nan != nan or record.zero != zero:
        return False
    if most is None:  # empty, or with what is not finite
        return True
    # booleans and integers have no std and l2 bound of floats
    near = 1e-6 * (abs(std) + abs(mean)) + 1e-300
    return (
        float(record.max) == most
        and float(record.min) == least
        and abs(record["mean"] - mean) <= near
        and abs(record["std"] - std) <= near
        and abs(record["l2"] - l2) <= 1e-6 * l2 + 1e-300
    )


def key_of(record):
    """What the witness calls it, or None for what it does not see."""
    labels = record.labels
    if "recompute" in labels or "raised" in labels:
        return None
    if record["pass"] == "grad" and "local" not in labels:
        return record.rank, "grad", record.path, record.iteration, ""
    if record["pass"] in ("forward", "backward"):
        return (
            record.rank, record["pass"], record.object, record.step,
            record.io,
        )
    return None


def confirm(records, events):
    """The records are those events, figure by figure."""
    keyed = {}
    for r in records:
        key = key_of(r)
        if key:
            keyed.setdefault(key, []).append(r)
    for key in set(events) - set(keyed):
        # the result of a module need not depend on its input
        rank, kind, name, step, _ = key
        assert events[key][0] == "share", key
        assert (rank, kind, name, step, "input") not in events
        del events[key]
    assert set(keyed) == set(events)
    for key, found in keyed.items():
        wanted = events[key]
        if wanted[0] == "share":
            # of a backward pass in halves one alone goes through the module
            assert 1 <= len(found) <= len(wanted), key
            assert all({"exact", "total"} & set(r.labels) for r in found)
            continue
        assert len(found) == len(wanted), key
        for what in wanted:
            match = [r for r in found if agree(r, what)]
            assert match, (key, what, found)
            found.remove(match[0])


def test_each_training_is_run_and_in_the_readme():
    written = [
        name
        for module in map(importlib.import_module, MODULES)
        for name, function in vars(module).items()
        if inspect.isfunction(function)
        and not name.startswith("_")
        and function.__module__ == module.__name__
        and list(inspect.signature(function).parameters) == ["scene"]
    ]
    assert sorted(written) == sorted(SCENARIOS)
    readme = (TOP / "README.md").read_text()
    section = readme.partition("\n## Works with\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\|.*\| (.+) \|$", section, re.M)[1:]
    proofs = [re.findall(r"`(\w+)`", row) for row in rows]
    assert len(rows) > 1 and all(proofs)
    assert sorted(name for row in proofs for name in row) == sorted(SCENARIOS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_training_is_unchanged_and_seen(server, daemon, tmp_path, name):
    ranks = SCENARIOS[name]
    out = tmp_path / "events"
    plain, traced, submitted = train(server, name, ranks, daemon, out)
    assert traced == plain and len(plain) >= 2 * ranks
    daemon.wait(lambda: len(daemon.runs()) == 1)
    records = daemon.query(name)
    assert len(records) == submitted > 0
    assert daemon.runs()[0]["losses"] == 0
    daemon.tracectl("verify", name, ok=(0,))
    finals = {r.iteration for r in records if "final" in r.labels}
    assert finals >= {1, 2, 3} - SKIPS.get(name, set())
    if Path(f"{out}-0.json").exists():
        confirm(records, events_of(out, ranks))
    check = globals().get(f"check_{name}")
    if check:
        check(records)


def check_checkpoint_nonreentrant(records):
    """A recomputed call has the bits of the first."""
    first = {
        (r.object, r.step, r.io, r.position): r.hash
        for r in records
        if r["pass"] == "forward" and "recompute" not in r.labels
    }
    again = [r for r in records if "recompute" in r.labels]
    assert again
    for r in again:
        if r["pass"] == "forward":
            assert first[r.object, r.step, r.io, r.position] == r.hash


check_checkpoint_reentrant = check_checkpoint_nonreentrant


def check_accumulation(records):
    kinds = {(r["pass"], r.microbatch, *r.labels) for r in records
             if r["pass"] in ("grad", "param")}
    assert kinds == {
        ("grad", 1, "local"), ("grad", 2, "local"), ("grad", 0, "final"),
        ("param", 0),
    }


def check_ddp_before(records):
    """Ranks differ before the reduction and agree after it."""
    by_name = {}
    for r in records:
        if r["pass"] == "grad":
            key = r.name, tuple(r.labels)
            by_name.setdefault(key, set()).add(r.hash)
    assert {labels for _, labels in by_name} == {("local",), ("final",)}
    for (_, labels), hashes in by_name.items():
        assert labels == ("local",) or len(hashes) == 1
    assert any(
        len(hashes) == 2
        for (_, labels), hashes in by_name.items()
        if labels == ("local",)
    )


def check_amp_scaler_skips(records):
    """The scaled gradients of a step that was left out, and it counts."""
    skipped = [r for r in records if "skipped" in r.labels]
    assert skipped and {r.iteration for r in skipped} == {1}
    assert any(r.pinf or r.ninf or r.nan for r in skipped)
    finals = [r for r in records if "final" in r.labels]
    assert {r.iteration for r in finals} == {2, 3, 4}


def check_deepspeed_zero2(records):
    """What was found in the step that was left out is told from the rest."""
    skipped = [r for r in records if "skipped" in r.labels]
    assert skipped and {r.iteration for r in skipped} == {2}
    assert any(r.pinf or r.ninf or r.nan for r in skipped)
    assert not any(
        r.nan for r in records if "final" in r.labels
    )


check_deepspeed_zero3 = check_deepspeed_zero2


def check_evaluation(records):
    """Passes without gradients are labelled; they are no micro-batches."""
    for r in records:
        if r["pass"] == "forward":
            assert ("eval" in r.labels) == (r.step % 2 == 0)
            assert r.microbatch == r.step % 2


def check_exceptions(records):
    """The pass that failed says where, and the next ones are whole."""
    raised = [r for r in records if "raised" in r.labels]
    assert [r.object for r in raised] == ["Model-1"]
    assert "raised=TooMuch" in raised[0].labels and raised[0].step == 2


def check_modules_later(records):
    paths = {r.path for r in records if r["pass"] == "grad"}
    assert {"head.0.weight", "head.1.weight"} < paths
    assert "head.weight" not in paths


def check_shared_modules(records):
    """Called by two blocks, it has one name and twice as many steps."""
    steps = {r.step for r in records if r.module == "blocks.0.up"}
    assert steps == {1, 2, 3, 4, 5, 6}
    assert not any(r.module == "blocks.1.up" for r in records)


def check_tied_weights(records):
    paths = {r.path for r in records if r["pass"] == "grad"}
    assert "embed.weight" in paths and "head.weight" not in paths


def check_frozen(records):
    paths = {r.path for r in records if r["pass"] == "grad"}
    assert "blocks.1.q.weight" in paths
    assert not any(p.startswith(("embed.", "blocks.0.")) for p in paths)


def check_amp_scaler(records):
    labels = {label for r in records if r["pass"] == "backward"
              for label in r.labels}
    assert "scaled" in labels


def check_compile_after(records):
    """The boundary, from the first call on."""
    seen = [
        (r.object, r.step, r["pass"], r.io)
        for r in records
        if r["pass"] != "grad"
    ]
    assert sorted(seen) == [
        ("Model-1", step, *what)
        for step in (1, 2, 3)
        for what in (
            ("backward", "input"), ("forward", "input"), ("forward", "output")
        )
    ]


def check_compile_in_place(records):
    for name in ("Block-1", "Block-2"):
        seen = [
            (r.step, r["pass"], r.io) for r in records if r.object == name
        ]
        assert sorted(seen) == [
            (step, *what)
            for step in (1, 2, 3)
            for what in (
                ("backward", "input"), ("backward", "output"),
                ("forward", "input"), ("forward", "output"),
            )
        ]
    assert {r.object for r in records if r["pass"] == "forward"} == {
        "Model-1", "Embedding-1", "Block-1", "Block-2", "Linear-11"
    }


def check_compile_inside(records):
    """All modules; a training of the same seed has the same records, see
    test_inside.py for their figures."""
    modules = {r.module for r in records if r["pass"] == "forward"}
    assert {"", "embed", "head", "blocks.0", "blocks.1.act"} <= modules
    assert len(modules) == 3 + 2 * 8
    for r in records:
        if r.module.startswith("blocks.") and r["pass"] != "grad":
            assert "materialized" in r.labels
    for pass_ in ("forward", "backward"):
        steps = [
            r.step for r in records
            if r["pass"] == pass_ and r.module == "blocks.0.q"
        ]
        assert sorted(steps) == [1, 1, 2, 2, 3, 3]


check_compile_inside_inductor = check_compile_inside
