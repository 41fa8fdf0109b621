"""Trainings of two processes with nothing but torch; see
framework_script.py."""

import contextlib

import torch
from torch import nn

from frameworks_torch import (
    LENGTH,
    WIDTH,
    WORDS,
    Block,
    Model,
    batches,
    loss_of,
    train,
)


def _ddp(scene, **options):
    from torch.utils.checkpoint import checkpoint

    how = None
    if options.get("static_graph"):
        def how(block, x):
            return checkpoint(block, x, use_reentrant=False)

    model = Model(how=how)
    wrapped = nn.parallel.DistributedDataParallel(model, **options)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    scene.watch(wrapped, optimizer)
    train(scene, wrapped, optimizer)


def ddp(scene):
    _ddp(scene)


def ddp_static(scene):
    _ddp(scene, static_graph=True)


class Chooser(nn.Module):
    """Of its two heads one is used at a time."""

    def __init__(self):
        super().__init__()
        self.body = Model()
        self.heads = nn.ModuleList(nn.Linear(WORDS, WORDS) for _ in range(2))
        self.calls = 0

    def forward(self, ids):
        self.calls += 1
        return self.heads[self.calls % 2](self.body(ids))


def ddp_unused(scene):
    wrapped = nn.parallel.DistributedDataParallel(
        Chooser(), find_unused_parameters=True
    )
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    scene.watch(wrapped, optimizer)
    train(scene, wrapped, optimizer)


def ddp_no_sync(scene):
    """Two micro-batches; ranks exchange gradients after the second."""
    wrapped = nn.parallel.DistributedDataParallel(
        Model(), gradient_as_bucket_view=True
    )
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    scene.watch(wrapped, optimizer)
    for at, ids in enumerate(batches(scene, 6)):
        last = at % 2
        with contextlib.nullcontext() if last else wrapped.no_sync():
            loss = loss_of(wrapped(ids), ids)
            loss.backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        scene.loss(loss)
    scene.end(wrapped.parameters())


def ddp_before(scene):
    """Attached before the model is wrapped."""
    model = Model()
    scene.watch(model, passes=("forward", "backward", "grad", "local"))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-2)
    train(scene, wrapped, optimizer)


def _fsdp1(scene, original):
    from functools import partial

    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

    policy = partial(
        transformer_auto_wrap_policy, transformer_layer_cls={Block}
    )
    model = FullyShardedDataParallel(
        Model(), auto_wrap_policy=policy, device_id=torch.device("cpu"),
        use_orig_params=original,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer)
    train(scene, model, optimizer)


def fsdp1_flat(scene):
    _fsdp1(scene, False)


def fsdp1_original(scene):
    _fsdp1(scene, True)


def _fsdp2(scene, before):
    from torch.distributed.fsdp import fully_shard

    model = Model()
    if before:
        scene.watch(model)
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    if not before:
        scene.watch(model, optimizer)
    train(scene, model, optimizer)


def fsdp2(scene):
    _fsdp2(scene, False)


def fsdp2_before(scene):
    """Attached before the parameters are replaced."""
    _fsdp2(scene, True)


def _sharded(scene, model, plan):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import parallelize_module

    mesh = init_device_mesh("cpu", (scene.ranks,), mesh_dim_names=("tp",))
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    scene.watch(model, optimizer)
    train(scene, model, optimizer, per_rank=False)


def tensor_parallel(scene):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
    )

    model = Model()
    plan = {}
    for i in range(len(model.blocks)):
        plan[f"blocks.{i}.up"] = ColwiseParallel()
        plan[f"blocks.{i}.down"] = RowwiseParallel()
    _sharded(scene, model, plan)


class Feed(nn.Module):
    """A block in which no token looks at another."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))


def tensor_parallel_sequence(scene):
    """Between the layers each rank has its part of the sequence."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        SequenceParallel,
    )

    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), Feed(), Feed(), nn.LayerNorm(WIDTH),
        nn.Linear(WIDTH, WORDS),
    )
    part = Shard(1)
    plan = {
        "0": RowwiseParallel(
            input_layouts=Replicate(), output_layouts=part
        ),
        "3": SequenceParallel(),
        "4": ColwiseParallel(input_layouts=part, output_layouts=Replicate()),
    }
    for i in (1, 2):
        plan[f"{i}.norm"] = SequenceParallel()
        plan[f"{i}.up"] = ColwiseParallel(input_layouts=part)
        plan[f"{i}.down"] = RowwiseParallel(output_layouts=part)
    _sharded(scene, model, plan)


def _pipeline(scene, kind):
    from torch.distributed import pipelining as pipe

    layers = [
        nn.Embedding(WORDS, WIDTH), Block(), Block(),
        nn.Linear(WIDTH, WORDS),
    ]
    device = torch.device("cpu")
    many = kind == "interleaved"
    cut = [[0], [1], [2], [3]] if many else [[0, 1], [2, 3]]
    mine = (scene.rank, scene.rank + 2) if many else (scene.rank,)
    stages = [
        pipe.PipelineStage(
            nn.Sequential(*(layers[i] for i in cut[s])), s, len(cut), device
        )
        for s in mine
    ]
    schedule = {
        "gpipe": pipe.ScheduleGPipe,
        "1f1b": pipe.Schedule1F1B,
        "interleaved": pipe.ScheduleInterleaved1F1B,
    }[kind](stages if many else stages[0], 4, loss_fn=loss_of)
    models = [s.submod for s in stages]
    parameters = [p for m in models for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    scene.watch(models if many else models[0], optimizer)
    for stage in stages:
        # a pass that only finds the shapes out
        scene.hide(stage, "_forward_metadata_inference")
    last = any(s.is_last for s in stages)
    g = torch.Generator().manual_seed(100)
    for _ in range(3):
        ids = torch.randint(0, WORDS, (8, LENGTH), generator=g)
        optimizer.zero_grad()
        losses = []
        given = (ids,) if scene.rank == 0 else ()
        if last:
            schedule.step(*given, target=ids, losses=losses)
            scene.loss(torch.stack(losses).mean())
        else:
            schedule.step(*given)
        optimizer.step()
    scene.end(parameters)


def pipeline_gpipe(scene):
    _pipeline(scene, "gpipe")


def pipeline_1f1b(scene):
    _pipeline(scene, "1f1b")


def pipeline_interleaved(scene):
    _pipeline(scene, "interleaved")
