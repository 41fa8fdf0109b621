"""A wrapped layer on two ranks, where each has other data.

    static_script.py MODE       MODE: static, plain, unused, accumulate
"""

import sys

import torch
from torch import distributed, nn

import tracerd
from unchanged_script import leave


class Unused(nn.Module):
    """Makes something that no loss looks at."""

    def __init__(self, used):
        super().__init__()
        self.used = used
        self.other = nn.Linear(4, 2, bias=False)

    def forward(self, x):
        return self.used(x), self.other(x)


def train(mode, rank, traced):
    """The gradients of two iterations."""
    layer = nn.Linear(4, 2, bias=False)
    nn.init.ones_(layer.weight)
    torch.manual_seed(3)
    inner = Unused(layer) if mode == "unused" else layer
    model = nn.parallel.DistributedDataParallel(
        inner, static_graph=mode == "static",
        find_unused_parameters=mode == "unused",
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trace = None
    if traced:
        trace = tracerd.attach(
            model, optimizer, run=mode,
            passes=("forward", "backward", "grad", "local"),
        )
    found = []
    for _ in range(2):
        model.zero_grad()
        x = torch.full((1, 4), float(rank + 1))
        if mode == "accumulate":
            with model.no_sync():
                model(x).sum().backward()
        y = model(x)
        y = y[0] if mode == "unused" else y
        y.sum().backward()
        found.append(layer.weight.grad.tolist())
        optimizer.step()
    if trace:
        assert trace.flush(30) and not trace.counters["lost"]
        trace.close()
    return found


def main():
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    for mode in sys.argv[1:]:
        plain = train(mode, rank, False)
        assert train(mode, rank, True) == plain
        sys.stdout.write(f"{mode} {rank} {plain}\n")
    distributed.barrier()
    leave()


if __name__ == "__main__":
    main()
