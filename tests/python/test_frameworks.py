"""Small trainings of real frameworks, with and without tracing: the same
losses and parameters to the bit, and records that an independent recorder
confirms. A scenario whose framework is not installed is skipped."""

import json
import re
from pathlib import Path

import pytest
from programs import finished

SCRIPT = Path(__file__).with_name("framework_script.py")

# scenario -> ranks
SCENARIOS = {
    "plain": 1,
    "accumulation": 1,
    "checkpoint_reentrant": 1,
    "checkpoint_nonreentrant": 1,
    "amp_scaler": 1,
    "compile_aot_eager": 1,
    "compile_inductor": 1,
    "compile_after": 1,
    "ddp": 2,
    "ddp_static": 2,
    "ddp_before": 2,
    "fsdp1_flat": 2,
    "fsdp1_original": 2,
    "fsdp2": 2,
    "tensor_parallel": 2,
    "pipeline_gpipe": 2,
    "pipeline_1f1b": 2,
    "pipeline_interleaved": 2,
    "hf_gpt2": 1,
    "hf_llama": 1,
    "hf_llama_checkpoint": 1,
    "hf_t5": 1,
    "hf_trainer": 1,
    "deepspeed_zero1": 2,
    "deepspeed_zero2": 2,
    "deepspeed_zero3": 2,
}


def run(name, mode, ranks, folder, out):
    done = finished(
        SCRIPT, name, mode, name, out, folder=folder, ranks=ranks,
        timeout=300, TOKENIZERS_PARALLELISM="false",
    )
    if "framework not installed" in done.stderr:
        pytest.skip("its framework is not installed")
    assert done.returncode == 0, done.stdout + done.stderr
    # frameworks talk on stdout, too
    lines = re.findall(
        r"^\d+ (?:loss|parameters|submitted) .*", done.stdout, re.M
    )
    told = sorted(line for line in lines if "submitted" not in line)
    submitted = [
        int(line.split()[2]) for line in lines if "submitted" in line
    ]
    return told, sum(submitted)


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
    if record.dtype != dtype or record.shape != shape or record.nan != nan:
        return False
    if nan or most is None:
        return True
    # booleans and integers have no std and l2 bound of floats
    near = 1e-6 * (abs(std) + abs(mean)) + 1e-300
    return (
        float(record.max) == most
        and float(record.min) == least
        and record.zero == zero
        and abs(record["mean"] - mean) <= near
        and abs(record["std"] - std) <= near
        and abs(record["l2"] - l2) <= 1e-6 * l2 + 1e-300
    )


def confirm(records, events):
    """The records are those events, figure by figure."""
    keyed = {}
    for r in records:
        if r["pass"] not in ("forward", "backward"):
            continue
        if "recompute" in r.labels:
            continue
        key = r.rank, r["pass"], r.object, r.step, r.io
        keyed.setdefault(key, []).append(r)
    for key in set(events) - set(keyed):
        # the result of a module need not depend on its input
        rank, kind, name, step, io = key
        assert events[key][0] == "share", key
        assert (rank, kind, name, step, "input") not in events
        del events[key]
    assert set(keyed) == set(events)
    for key, found in keyed.items():
        wanted = events[key]
        assert len(found) == len(wanted), key
        if wanted[0] == "share":
            assert all({"exact", "total"} & set(r.labels) for r in found)
            continue
        for what in wanted:
            match = [r for r in found if agree(r, what)]
            assert match, (key, what, found)
            found.remove(match[0])


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_training_is_unchanged_and_seen(daemon, tmp_path, name):
    ranks = SCENARIOS[name]
    out = tmp_path / "events"
    plain, _ = run(name, "plain", ranks, daemon.dir, out)
    traced, submitted = run(name, "traced", ranks, daemon.dir, out)
    assert traced == plain and len(plain) >= 2 * ranks
    daemon.wait(lambda: len(daemon.runs()) == 1)
    records = daemon.query(name)
    assert len(records) == submitted > 0
    assert daemon.runs()[0]["losses"] == 0
    daemon.tracectl("verify", name, ok=(0,))
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


def check_amp_scaler(records):
    labels = {label for r in records if r["pass"] == "backward"
              for label in r.labels}
    assert "scaled" in labels
