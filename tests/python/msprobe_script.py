"""The training of tests/golden/msprobe: the same with msprobe and with tracerd.

    python msprobe_script.py DUMPS LEVEL MODE      # with msprobe, writes DUMPS
    torchrun --nproc-per-node 2 msprobe_script.py DUMPS L0 statistics

train() is what the tests trace. The model has what dumps can have: named
arguments that are tensors, scalars, lists; nested results; a module that is
called twice; an empty tensor.
"""

import os
import sys

import torch
import torch.distributed as dist
from torch import nn

STEPS = 2


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.act = nn.Linear(8, 4), nn.GELU()
        self.ln = nn.LayerNorm(4)

    def forward(self, x, scale=None, flag=True, options=None, name="a"):
        y = self.ln(self.act(self.fc(x)))
        return y * scale, [y, (y.sum(), None)], {"k": y, "n": 3}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.part = nn.Embedding(16, 8), Part()
        self.head = nn.Linear(4, 2)

    def forward(self, i):
        a = self.part(
            self.emb(i), scale=torch.tensor(2.0), flag=False,
            options=[1, 2.5, (None, slice(1, 2))], name="x",
        )[0]
        b = self.part(self.emb(i), scale=torch.ones(4))[0]
        self.head(torch.empty(0, 4))
        return self.head(a) + self.head(b)


def make(change=None):
    torch.manual_seed(0)
    model = Model()
    if change:
        change(model)
    if dist.is_initialized():
        model = nn.parallel.DistributedDataParallel(model)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(model, optimizer, start=lambda: None, stop=lambda: None):
    rank = dist.get_rank() if dist.is_initialized() else 0
    g = torch.Generator().manual_seed(rank + 1)
    for _ in range(STEPS):
        start()
        i = torch.randint(0, 16, (2, 3), generator=g)
        model(i).square().mean().backward()
        stop()
        optimizer.step()
        optimizer.zero_grad()


def dump(folder, level, mode):
    import json

    from msprobe.pytorch import PrecisionDebugger

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    config = f"{folder}.json"
    with open(config, "w") as f:
        json.dump({
            "task": "statistics", "dump_path": folder, "rank": [],
            "step": list(range(STEPS)), "level": level, "statistics": {
                "scope": [], "list": [], "data_mode": ["all"],
                "summary_mode": mode,
            },
        }, f)
    debugger = PrecisionDebugger(config_path=config)
    model, optimizer = make()

    def stop():
        debugger.stop()
        debugger.step()

    train(model, optimizer, lambda: debugger.start(model=model), stop)


if __name__ == "__main__":
    dump(*sys.argv[1:])
