"""A training of four iterations whose figures are known, for docs/sql.md.

    cookbook_script.py RUN SCALE

RANK and WORLD_SIZE say which rank it is; SCALE multiplies the input of the
third iteration. Layer b of rank 1 has other weights, and an infinity among
them in the fourth iteration; layer dead gives zeros.
"""

import os
import sys

import torch
from torch import nn

import tracerd


class Model(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.dead = nn.ReLU()
        self.b = nn.Linear(2, 1, bias=False)
        with torch.no_grad():
            self.a.weight.copy_(torch.eye(2))
            self.b.weight.copy_(torch.tensor([[1.0, 1.0 + rank]]))

    def forward(self, x):
        h = self.a(x)
        return self.b(h + self.dead(-h))


rank = int(os.environ["RANK"])
model = Model(rank)
optimizer = torch.optim.SGD(model.parameters(), 0.0)
t = tracerd.attach(
    model, optimizer, run=sys.argv[1], histogram=True
)
for i in range(1, 5):
    x = torch.tensor([[1.0, 2.0]]) * i
    if i == 3:
        x = x * float(sys.argv[2])
    if i == 4:
        with torch.no_grad():
            model.b.weight[0, 0] = float("inf")
    model(x).sum().backward()
    t.record("small", torch.tensor([1, 6e-8, 6e-8, 0], dtype=torch.float16))
    optimizer.step()
    optimizer.zero_grad()
t.close()
