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

MODULES = ("frameworks_torch", "frameworks_more")
RANK = int(os.environ.get("RANK", "0"))
RANKS = int(os.environ.get("WORLD_SIZE", "1"))


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
        self.rank, self.ranks = RANK, RANKS
        self.lines = []
        self.trace = self.witness = None

    def watch(self, model, optimizer=None, witness=True, **options):
        """Where a user would attach. witness: whether all that the tracer
        sees can be seen by hooks."""
        if self.mode != "traced":
            return
        import framework_witness

        import tracerd

        if witness:
            framework_witness.watch_backward()
            inner = (
                torch.nn.ModuleList(model) if isinstance(model, list) else model
            )
            self.witness = framework_witness.Witness(inner)
        self.trace = tracerd.attach(model, optimizer, run=self.run, **options)

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


def main():
    name, mode, run = sys.argv[1:4]
    torch.set_num_threads(1)
    torch.manual_seed(3)
    torch.use_deterministic_algorithms(True)
    scenario = find(name)
    if RANKS > 1:
        torch.distributed.init_process_group("gloo")
    scene = Scene(mode, run)
    try:
        scenario(scene)
    except ModuleNotFoundError as error:
        print(f"framework not installed: {error.name}", file=sys.stderr)
        os._exit(77)
    sys.stdout.write("".join(line + "\n" for line in scene.lines))
    if scene.trace:
        assert scene.trace.flush(30)
        sys.stdout.write(f"{RANK} submitted "
                         f"{scene.trace.counters['submitted']}\n")
        scene.trace.close()
    if scene.witness:
        with open(f"{sys.argv[4]}-{RANK}.json", "w") as out:
            json.dump(scene.witness.events, out)
    leave()


if __name__ == "__main__":
    main()
