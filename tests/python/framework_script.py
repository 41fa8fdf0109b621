"""One small training of a real framework.

    framework_script.py SCENARIO MODE RUN [OUT]

MODE plain prints what was computed; traced prints the same, traces it as
RUN and writes what a Witness saw to OUT-RANK.json. Under torchrun for two
ranks. Each scenario is a function of its name in frameworks_*.py, which gets
watch(model, optimizer) to call where a user would attach.
"""

import hashlib
import importlib
import json
import os
import sys

import torch

from unchanged_script import leave

MODULES = ("frameworks_torch", "frameworks_loops", "frameworks_ranks",
           "frameworks_wide", "frameworks_more", "frameworks_deepspeed",
           "frameworks_megatron")
NOT_INSTALLED = 77


def digest_of(parameters):
    digest = hashlib.sha256()
    for p in parameters:
        p = p.detach()
        p = getattr(p, "_local_tensor", p)
        digest.update(p.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class Scene:
    """What a scenario sees of the test."""

    def __init__(self, mode, run):
        self.mode = mode
        self.run = run
        self.rank = int(os.environ.get("RANK", "0"))
        self.ranks = int(os.environ.get("WORLD_SIZE", "1"))
        self.lines = []
        self.traces, self.witnesses = [], []

    def watch(
        self, model, optimizer=None, witness=True, gradients=True, **options
    ):
        """Where a user would attach; returns the Trace, or None in a plain
        run. witness: whether all that the tracer sees can be seen by
        hooks. gradients: of parameters, too; else the scenario tells them
        by gradients()."""
        if self.mode != "traced":
            return None
        import framework_witness
        import tracerd

        given = optimizer
        if witness:
            if not self.witnesses:
                framework_witness.watch_backward()
            inner = model
            if isinstance(model, list):
                inner = torch.nn.ModuleList(model)
            while hasattr(optimizer, "optimizer"):
                optimizer = optimizer.optimizer
            self.witnesses.append(
                framework_witness.Witness(
                    inner, optimizer if gradients else self,
                    options.get("name", ""),
                )
            )
        trace = tracerd.attach(model, given, run=self.run, **options)
        self.traces.append(trace)
        return trace

    def hide(self, owner, *methods):
        """What these methods of an object call is no part of the training,
        and the witness does not look."""
        for witness in self.witnesses:
            for name in methods:
                setattr(owner, name, witness.hide(getattr(owner, name)))

    def changed(self):
        """The model has other modules than before."""
        for witness in self.witnesses:
            witness.walk()

    def gradients(self, pairs):
        """(path, gradient) of each parameter, before an optimizer's step
        that the witness cannot see."""
        for witness in self.witnesses:
            witness.told(pairs)

    def skipped(self):
        """The optimizer was not let step, and the iteration is over."""
        for witness in self.witnesses:
            witness.skipped()

    def loss(self, value):
        if isinstance(value, torch.Tensor):
            value = value.detach()
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        self.lines.append(f"{self.rank} loss {float(value)!r}")

    def end(self, parameters):
        self.lines.append(f"{self.rank} parameters {digest_of(parameters)}")


def find(name):
    for module in MODULES:
        found = getattr(importlib.import_module(module), name, None)
        if found:
            return found
    sys.exit(f"no scenario {name}")


def main(name, mode, run, out=None):
    torch.set_num_threads(1)
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)
    scenario = find(name)
    scene = Scene(mode, run)
    if scene.ranks > 1:
        store = os.environ.get("TRD_STORE")
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store}" if store else None,
            rank=scene.rank, world_size=scene.ranks,
        )
    try:
        scenario(scene)
    except ModuleNotFoundError as error:
        print(error.name, file=sys.stderr, flush=True)
        os._exit(NOT_INSTALLED)
    sys.stdout.write("".join(line + "\n" for line in scene.lines))
    if scene.traces:
        trace = scene.traces[0]  # all of a run speak through one client
        assert trace.flush(30)
        submitted = trace.counters["submitted"]
        sys.stdout.write(f"{scene.rank} submitted {submitted}\n")
        for trace in scene.traces:
            trace.close()
    if scene.witnesses:
        with open(f"{out}-{scene.rank}.json", "w") as file:
            json.dump([e for w in scene.witnesses for e in w.events], file)
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
