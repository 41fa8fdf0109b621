"""A training that says nothing of tracing: two models, each its optimizer,
and a third that no optimizer has."""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    judge = nn.Linear(1, 1)
    frozen = nn.LayerNorm(4)
    first = torch.optim.SGD(body.parameters(), lr=0.1)
    second = torch.optim.Adam(judge.parameters())
    for _ in range(3):
        with torch.no_grad():
            x = frozen(torch.randn(2, 4))
        loss = judge(body(x)).sum()
        loss.backward()
        for optimizer in (first, second):
            optimizer.step()
            optimizer.zero_grad()
    print("RESULT", loss.item(), sys.argv[1:], __name__)


if __name__ == "__main__":
    if sys.argv[1:2] == ["spawn"]:
        import torch.multiprocessing as mp

        process = mp.get_context("spawn").Process(target=main)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    main()
