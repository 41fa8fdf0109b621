"""Further trainings of two processes with nothing but torch; see
framework_script.py."""

import torch
from torch import nn
from torch.nn import functional as F

from frameworks_ranks import Feed
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


def _checkpointed(block, x):
    from torch.utils.checkpoint import checkpoint

    return checkpoint(block, x, use_reentrant=False)


# ---- DDP ----


def ddp_zero_redundancy(scene):
    """Each rank's optimizer has a part of the parameters."""
    from torch.distributed.optim import ZeroRedundancyOptimizer

    wrapped = nn.parallel.DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(
        wrapped.parameters(), torch.optim.AdamW, lr=1e-2
    )
    scene.watch(wrapped, optimizer)
    train(scene, wrapped, optimizer)


def ddp_uneven(scene):
    """One rank has a batch more than the other."""
    wrapped = nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1e-2)
    scene.watch(wrapped, optimizer)
    with wrapped.join():
        for ids in batches(scene, 3 + scene.rank):
            optimizer.zero_grad()
            loss = loss_of(wrapped(ids), ids)
            loss.backward()
            optimizer.step()
            scene.loss(loss)
    scene.end(wrapped.parameters())


# ---- FSDP ----


def fsdp1_mixed(scene):
    """Computes in bfloat16."""
    from torch.distributed.fsdp import (
        FullyShardedDataParallel,
        MixedPrecision,
    )

    model = FullyShardedDataParallel(
        Model(), device_id=torch.device("cpu"), use_orig_params=True,
        mixed_precision=MixedPrecision(torch.bfloat16, torch.float32),
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer)
    train(scene, model, optimizer)


def fsdp1_checkpoint(scene):
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        apply_activation_checkpointing,
    )
    from torch.distributed.fsdp import FullyShardedDataParallel

    model = FullyShardedDataParallel(
        Model(), device_id=torch.device("cpu"), use_orig_params=True
    )
    apply_activation_checkpointing(
        model, check_fn=lambda m: isinstance(m, Block)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer)
    train(scene, model, optimizer)


def _fsdp2(scene, model, **options):
    from torch.distributed.fsdp import fully_shard

    for block in model.blocks:
        fully_shard(block, **options)
    fully_shard(model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    scene.watch(model, optimizer)
    train(scene, model, optimizer)


def fsdp2_checkpoint(scene):
    _fsdp2(scene, Model(how=_checkpointed))


def fsdp2_offload(scene):
    from torch.distributed.fsdp import CPUOffloadPolicy

    policy = CPUOffloadPolicy(pin_memory=False)
    _fsdp2(scene, Model(), offload_policy=policy)


# ---- DTensor ----


def _mesh(scene):
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (scene.ranks,), mesh_dim_names=("tp",))


def tensor_parallel_checkpoint(scene):
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = Model(how=_checkpointed)
    plan = {}
    for i in range(len(model.blocks)):
        plan[f"blocks.{i}.up"] = ColwiseParallel()
        plan[f"blocks.{i}.down"] = RowwiseParallel()
    parallelize_module(model, _mesh(scene), plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    scene.watch(model, optimizer)
    train(scene, model, optimizer, per_rank=False)


def tensor_parallel_loss(scene):
    """Each rank has a part of the words, up to the loss."""
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        loss_parallel,
        parallelize_module,
    )

    words = WORDS + 1  # for two ranks
    model = nn.Sequential(
        nn.Embedding(words, WIDTH), Feed(), nn.Linear(WIDTH, words)
    )
    last = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, _mesh(scene), {"2": last})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    scene.watch(model, optimizer)
    for ids in batches(scene, per_rank=False):
        optimizer.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten())
            loss.backward()
        optimizer.step()
        scene.loss(loss)
    scene.end(model.parameters())


# ---- pipelines whose backward pass has two halves ----


def _pipeline(scene, schedule, mine):
    from torch.distributed import pipelining

    layers = [
        nn.Embedding(WORDS, WIDTH), Block(), Block(),
        nn.Linear(WIDTH, WORDS),
    ]
    device = torch.device("cpu")
    stages = [
        pipelining.PipelineStage(
            nn.Sequential(layers[s]), s, len(layers), device
        )
        for s in mine
    ]
    schedule = schedule(stages, 4, loss_fn=loss_of)
    models = [s.submod for s in stages]
    parameters = [p for m in models for p in m.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    scene.watch(models, optimizer)
    for stage in stages:
        # a pass that only finds the shapes out
        scene.hide(stage, "_forward_metadata_inference")
    g = torch.Generator().manual_seed(100)
    for _ in range(3):
        ids = torch.randint(0, WORDS, (8, LENGTH), generator=g)
        optimizer.zero_grad()
        losses = []
        given = (ids,) if 0 in mine else ()
        if len(layers) - 1 in mine:
            schedule.step(*given, target=ids, losses=losses)
            scene.loss(torch.stack(losses).mean())
        else:
            schedule.step(*given)
        optimizer.step()
    scene.end(parameters)


def pipeline_zero_bubble(scene):
    from torch.distributed.pipelining.schedules import (
        ScheduleInterleavedZeroBubble,
    )

    mine = scene.rank, scene.rank + 2
    _pipeline(scene, ScheduleInterleavedZeroBubble, mine)


def pipeline_zbv(scene):
    from torch.distributed.pipelining.schedules import ScheduleZBVZeroBubble

    _pipeline(scene, ScheduleZBVZeroBubble, (scene.rank, 3 - scene.rank))
