"""One small Llama, three steps, in many layouts.

    layout_script.py RUN LAYOUT [BUG]

Under torchrun for two ranks, but for single, halves and their kinds; in
bfloat16 if LAYOUT ends with 16. All layouts start with the same weights, see
the same eight rows in an iteration and compute the same but for rounding; BUG
leaves a reduction out, or sets another eps.
"""

import os
import sys
import types

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import tracerd
from unchanged_script import leave

WORDS, WIDTH, HEADS, HIDDEN, LAYERS = 48, 32, 4, 64, 2
ROWS, LENGTH, STEPS = 8, 6, 3


class Norm(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))
        self.eps = eps

    def forward(self, x):
        y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)
        return y * self.weight


class Copy(torch.autograd.Function):
    """The same on all ranks; gradients are added up."""

    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        g = g.clone()
        dist.all_reduce(g)
        return g


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g


def part(weight, dim):
    return weight.detach().chunk(dist.get_world_size(), dim)[dist.get_rank()]


class Column(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(part(whole.weight, 0).clone())
        self.reduces = True

    def forward(self, x):
        return F.linear(Copy.apply(x) if self.reduces else x, self.weight)


class Row(nn.Module):
    def __init__(self, whole):
        super().__init__()
        self.weight = nn.Parameter(part(whole.weight, 1).clone())
        self.reduces = True

    def forward(self, x):
        y = F.linear(x, self.weight)
        return Sum.apply(y) if self.reduces else y


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(WIDTH, WIDTH, bias=False)
        self.k = nn.Linear(WIDTH, WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, WIDTH, bias=False)
        self.o = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        def heads(y):
            return y.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)

        y = F.scaled_dot_product_attention(
            heads(self.q(x)), heads(self.k(x)), heads(self.v(x)),
            is_causal=True,
        )
        return self.o(y.transpose(1, 2).flatten(2))


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.up = nn.Linear(WIDTH, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = Norm(), Norm()
        self.attn, self.mlp = Attention(), Feed()

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = Norm()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, targets):
        x = self.embed(x) if self.embed is not None else x
        for layer in self.layers:
            x = layer(x)
        if self.head is None:
            return x
        return self.loss(self.head(self.norm(x)).flatten(0, 1), targets)


def linears(model):
    for layer in model.layers:
        yield layer.attn, ("q", "k", "v"), "o"
        yield layer.mlp, ("gate", "up"), "down"


def shard_by_hand(model):
    for owner, columns, row in linears(model):
        for name in columns:
            setattr(owner, name, Column(getattr(owner, name)))
        setattr(owner, row, Row(getattr(owner, row)))


def shard(model, sequence=False):
    """By torch's own plan."""
    from torch.distributed.tensor import Replicate, Shard, init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    part = Shard(1) if sequence else Replicate()
    plan = {}
    for i in range(LAYERS):
        at = f"layers.{i}"
        for name in ("attn.q", "attn.k", "attn.v", "mlp.gate", "mlp.up"):
            plan[f"{at}.{name}"] = ColwiseParallel(input_layouts=part)
        for name in ("attn.o", "mlp.down"):
            plan[f"{at}.{name}"] = RowwiseParallel(output_layouts=part)
        if sequence:
            plan[f"{at}.n1"] = plan[f"{at}.n2"] = SequenceParallel()
    if sequence:
        plan["embed"] = RowwiseParallel(
            input_layouts=Replicate(), output_layouts=part
        )
        plan["norm"] = SequenceParallel()
        plan["head"] = ColwiseParallel(
            input_layouts=part, output_layouts=Replicate()
        )
    parallelize_module(model, mesh, plan)


def name_stages(rank):
    """What Megatron tells of a pipeline."""
    name = "megatron.core.parallel_state"
    told = types.ModuleType(name)
    told.get_pipeline_model_parallel_rank = lambda: rank
    told.get_pipeline_model_parallel_world_size = lambda: 2
    told.get_data_parallel_rank = lambda: 0
    told.get_data_parallel_world_size = lambda: 1
    told.model_parallel_is_initialized = lambda: True
    sys.modules[name] = told


def stage_of(model, rank, layout):
    if rank == 0:
        model.norm = model.head = model.loss = None
    else:
        model.embed = None
    if layout == "stages_anew":  # layers are 0 in both, as Megatron has them
        model.layers = model.layers[rank : rank + 1]
        name_stages(rank)
    else:  # as torch's stages have them
        model.layers[1 - rank] = nn.Identity()
    return model


def staged(model, rank, x, targets):
    """Forward and backward through two stages."""
    if rank == 0:
        y = model(x, targets)
        dist.send(y.detach(), 1)
        g = torch.empty_like(y)
        dist.recv(g, 1)
        y.backward(g)
        return
    x = torch.empty(len(x), LENGTH, WIDTH)
    dist.recv(x, 0)
    x.requires_grad_()
    model(x, targets).backward()
    dist.send(x.grad, 0)


def break_it(model, bug):
    layer = model.layers[1]
    if bug == "reduction":
        layer.mlp.down.reduces = False
    elif bug == "reduction_attn":
        model.layers[0].attn.o.reduces = False
    elif bug == "reduction_back":
        layer.mlp.gate.reduces = False
    elif bug == "eps":
        layer.n2.eps = 1e-2
    elif bug == "scale":
        with torch.no_grad():
            layer.attn.v.weight.mul_(1.01)


def rows_of(x, layout, rank):
    if layout in ("ddp_dealt",):
        return [x[rank::2]]
    if layout in ("ddp", "ddp_sum", "fsdp2", "fsdp1"):
        return [x.chunk(2)[rank]]
    if layout in ("halves", "halves_sum"):
        return list(x.chunk(2))
    if layout == "ddp_quarters":
        return [c.chunk(2)[rank] for c in x.chunk(2)]
    if layout == "quarters":
        return list(x.chunk(4))
    return [x]


def wrapped(model, layout, bug):
    if layout == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for layer in model.layers:
            fully_shard(layer)
        return fully_shard(model)
    if layout == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel

        return FullyShardedDataParallel(
            model, use_orig_params=True, device_id=torch.device("cpu")
        )
    if layout.startswith("ddp"):
        if bug == "gradient":
            model._ddp_params_and_buffers_to_ignore = [
                "layers.1.mlp.down.weight"
            ]
        return nn.parallel.DistributedDataParallel(model)
    return model


def main():
    run, layout = sys.argv[1:3]
    bug = sys.argv[3] if len(sys.argv) > 3 else ""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    if ranks > 1:
        dist.init_process_group("gloo")
    rank = int(os.environ.get("RANK", "0"))
    torch.set_num_threads(1)
    torch.manual_seed(3)
    model = Llama()
    if layout.endswith("16"):
        model, layout = model.bfloat16(), layout[:-2]
    if layout == "tp":
        shard_by_hand(model)
    elif layout in ("dtensor", "sequence"):
        shard(model, layout == "sequence")
    elif layout.startswith("stages"):
        model = stage_of(model, rank, layout)
    if bug and bug != "gradient":
        break_it(model, bug)
    whole = wrapped(model, layout, bug)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.3)
    passes = ("forward", "backward", "grad")
    with tracerd.attach(whole, optimizer, run=run, passes=passes) as trace:
        generator = torch.Generator().manual_seed(5)
        for _ in range(STEPS):
            x = torch.randint(WORDS, (ROWS, LENGTH + 1), generator=generator)
            parts = rows_of(x, layout, rank)
            for one in parts:
                x, targets = one[:, :-1], one[:, 1:].flatten()
                if layout.startswith("stages"):
                    staged(whole, rank, x, targets)
                    continue
                loss = whole(x, targets)
                divided = 1 if layout == "halves_sum" else len(parts)
                (loss / divided).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert trace.flush()
    leave()


if __name__ == "__main__":
    main()
