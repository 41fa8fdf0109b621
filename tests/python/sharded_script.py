"""Two ranks hold a half each of a sharded tensor (case H16), a whole copy of
another one, and a parameter that is sharded by FSDP."""

import torch
import torch.distributed as dist
from torch.distributed.tensor import (
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)

import tracerd
from unchanged_script import leave


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2,))
    model = torch.nn.Linear(2, 2)
    with tracerd.attach(model, run="sharded") as trace:
        values = torch.arange(8.0)
        trace.record("shard", distribute_tensor(values, mesh, [Shard(0)]))
        trace.record("copy", distribute_tensor(values, mesh, [Replicate()]))
        large = torch.arange(64.0 * 1024).view(64, 1024)
        trace.record("large", distribute_tensor(large, mesh, [Shard(1)]))
        uneven = distribute_tensor(torch.arange(3.0), mesh, [Shard(0)])
        trace.record("uneven", uneven)
        empty = distribute_tensor(torch.arange(1.0), mesh, [Shard(0)])
        trace.record("empty", empty)
        assert trace.flush()
    leave()


if __name__ == "__main__":
    main()
