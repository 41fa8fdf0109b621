"""A training whose bits depend on the order of sums.

    unchanged_script.py MODE DTYPE...       MODE: plain, traced or full_hooks

Under torchrun the ranks train with DDP. Prints the losses with all digits
and the SHA-256 of the final parameters.
"""

import atexit
import hashlib
import os
import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

HERE = Path(__file__).resolve().parent
WIDTH = 32


class Attention(nn.Module):
    """Its input is used three times inside and once more outside."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x, scale):
        weights = torch.softmax(self.q(x) @ self.k(x).mT * scale, -1)
        return weights @ self.v(x)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * (
            self.gain
        )


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = Scaled()
        self.attention = Attention()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.1)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm(x), scale=0.2)
        return {"hidden": x + self.drop(self.down(self.act(self.up(x))))}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        x = self.blocks[0](x)["hidden"]
        x = checkpoint(self.blocks[1], x, use_reentrant=False)["hidden"]
        return self.head(self.blocks[2](x)["hidden"])


class FullHooks:
    """What a tracer must not do."""

    def __init__(self, model):
        for module in model.modules():
            module.register_full_backward_hook(lambda *a: None)

    def close(self):
        pass


def train(dtype, mode, rank=0, ranks=1, iterations=3):
    """Lines that say all there is to say of the result."""
    torch.manual_seed(5)
    model = Model()
    if mode == "full_hooks":
        # they cannot stand an operation in place
        for block in model.blocks:
            block.act = nn.ReLU()
    model = model.to(getattr(torch, dtype))
    if ranks > 1:
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trace = None
    if mode == "traced":
        import tracerd

        trace = tracerd.attach(model, optimizer)
    elif mode == "full_hooks":
        trace = FullHooks(model)
    torch.manual_seed(100 + rank)
    lines = []
    for _ in range(iterations):
        for _ in range(2):
            x = torch.randn(4, 8, WIDTH).to(getattr(torch, dtype))
            loss = model(x).float().pow(2).sum()
            loss.backward()
            lines.append(f"{rank} loss {loss.item()!r}")
        optimizer.step()
        optimizer.zero_grad()
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().view(torch.uint8).numpy().tobytes())
    lines.append(f"{rank} parameters {digest.hexdigest()}")
    lines.append(f"{rank} random {torch.rand(1).item()!r}")
    if trace:
        if mode == "traced":
            lines.append(f"{rank} submitted {trace.counters['submitted']}")
        trace.close()
    return lines


def leave():
    """Ends a rank without the races of the libraries' own ends."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def main():
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    mode, *dtypes = sys.argv[1:]
    lines = []
    for dtype in dtypes:
        lines += train(dtype, mode, rank, ranks)
    sys.stdout.write("".join(line + "\n" for line in lines))
    if ranks > 1:
        leave()


if __name__ == "__main__":
    main()
