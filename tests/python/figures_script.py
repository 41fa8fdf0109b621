"""Runs the example and keeps the very tensors that a tracer describes.

    figures_script.py FOLDER ARGUMENTS-OF-THE-EXAMPLE...

Writes FOLDER/events-RANK.pt: a list of (pass, object, step, io, path,
tensor), seen by hooks of its own.
"""

import os
import runpy
import sys
from pathlib import Path

import torch

import recording
import tracerd
from unchanged_script import leave

TOP = Path(__file__).resolve().parent.parent.parent
attach = tracerd.attach
witnesses = []


def watched_attach(model, optimizer=None, **options):
    inner = getattr(model, "module", model)
    witness = recording.Witness(inner)
    witness.gradients = []
    witnesses.append(witness)
    iteration = [0]

    def gradients(*args):
        iteration[0] += 1
        for path, parameter in inner.named_parameters():
            witness.gradients.append(
                (path, iteration[0], parameter.grad.clone())
            )

    optimizer.register_step_pre_hook(gradients)
    trace = attach(model, optimizer, **options)
    witness.trace = trace
    return trace


def main():
    folder = sys.argv[1]
    example = TOP / "tools/examples/linear.py"
    sys.argv = [str(example), *sys.argv[2:]]
    tracerd.attach = watched_attach
    rank = os.environ.get("RANK", "0")
    # the example destroys the group at its end; leave() does it here
    destroy = torch.distributed.destroy_process_group
    torch.distributed.destroy_process_group = lambda: None
    runpy.run_path(str(example), run_name="__main__")
    torch.distributed.destroy_process_group = destroy
    (witness,) = witnesses
    assert witness.trace.flush()
    torch.save(
        {"events": witness.events, "gradients": witness.gradients},
        os.path.join(folder, f"events-{rank}.pt"),
    )
    leave()


if __name__ == "__main__":
    main()
