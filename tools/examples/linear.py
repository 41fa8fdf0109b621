"""Two linear layers in half precision, traced.

    python linear.py                                one process
    torchrun --nproc-per-node 2 linear.py           two ranks, DDP over gloo
    python linear.py --no-trace                     the same numbers untraced

Prints each iteration's loss with all digits and a SHA-256 of the final
parameters: they are the same with and without tracing.
"""

import argparse
import hashlib
import os
import sys

import numpy as np
import torch
from torch import nn


def random_data(generator, shape):
    """Normal data stretched to the range that a real layer was seen with."""
    low, high = -0.04651, 0.04025
    data = generator.normal(0.0, 0.00134, shape)
    data = (data - data.min()) / (data.max() - data.min())
    return torch.from_numpy(data * (high - low) + low).half()


class CustomLinear(nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x):
        return nn.functional.linear(x, self.weight)


class MyModel(nn.Module):
    def __init__(self, hidden, inner, generator):
        super().__init__()
        self.layer1 = CustomLinear(random_data(generator, (inner, hidden)))
        self.layer2 = CustomLinear(random_data(generator, (hidden, inner)))

    def forward(self, x):
        return self.layer2(self.layer1(x))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--sequence", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--inner", type=int, default=96)
    parser.add_argument("--iterations", type=int, default=2)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--run-name", help="name of the run")
    parser.add_argument("--no-trace", action="store_true")
    return parser.parse_args()


def say(line):
    """In one write: the lines of several ranks share one terminal."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main():
    args = arguments()
    torch.set_num_threads(1)
    rank = int(os.environ.get("RANK", "0"))
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    # every rank starts from the same weights and has data of its own
    model = MyModel(
        args.hidden, args.inner, np.random.default_rng(args.seed)
    )
    data = np.random.default_rng(args.seed + 1000 + rank)
    shape = (args.batch, args.sequence, args.hidden)
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)

    if not args.no_trace:
        import tracerd

        tracerd.attach(model, optimizer, run=args.run_name)

    for iteration in range(1, args.iterations + 1):
        inputs, target = random_data(data, shape), random_data(data, shape)
        loss = (model(inputs) - target).float().pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        say(f"rank {rank} iteration {iteration} loss {loss.item()!r}")

    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    say(f"rank {rank} parameters {digest.hexdigest()}")
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
