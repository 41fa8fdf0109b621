"""Two ranks add up a tensor of which the other one has a single element."""

import torch
import torch.distributed as dist

import tracerd
from unchanged_script import leave

N = 64 * 1024
PLACE = 12345


class Partial(torch.nn.Module):
    def forward(self, x):
        return x * 1


class Reduced(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.partial = Partial()

    def forward(self, x):
        y = self.partial(x)
        dist.all_reduce(y)
        return y


def main():
    dist.init_process_group("gloo")
    x = torch.zeros(N)
    if dist.get_rank() == 0:
        x[:PLACE] = 1
    else:
        x[PLACE] = 1
    model = Reduced()
    trace = tracerd.attach(model, run="reduced")
    model(x)
    # its own input is the one that may count as read before
    assert trace.saved()["tensors"] == 1, trace.saved()
    print("seen\n", end="")
    leave()


if __name__ == "__main__":
    main()
