"""Trainings that need nothing but torch; see framework_script.py."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, WORDS, LENGTH = 16, 23, 6


class Norm(nn.Module):
    """Its input goes two ways; as in many language models."""

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
        self.norm = Norm()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.GELU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        y = self.norm(x)
        x = x + F.scaled_dot_product_attention(
            self.q(y), self.k(y), self.v(y)
        )
        return x + self.down(self.act(self.up(x)))


class Model(nn.Module):
    """A small language model; how: how its blocks are called."""

    def __init__(self, blocks=2, how=None):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.head = nn.Linear(WIDTH, WORDS)
        self.how = how or (lambda block, x: block(x))

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = self.how(block, x)
        return self.head(x)


def loss_of(out, ids):
    return F.cross_entropy(
        out.float().reshape(-1, out.shape[-1]), ids.reshape(-1)
    )


def batches(scene, n=3, per_rank=True):
    seed = 100 + (scene.rank if per_rank else 0)
    g = torch.Generator().manual_seed(seed)
    for _ in range(n):
        yield torch.randint(0, WORDS, (2, LENGTH), generator=g)


def train(scene, model, optimizer, per_rank=True, parameters=None):
    for ids in batches(scene, per_rank=per_rank):
        optimizer.zero_grad()
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        scene.loss(loss)
    scene.end(parameters or model.parameters())


def plain(scene):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer)
    train(scene, model, optimizer)


def accumulation(scene):
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer, passes=("forward", "backward", "grad",
                                          "local", "param"))
    for at, ids in enumerate(batches(scene, 6)):
        loss = loss_of(model(ids), ids)
        loss.backward()
        if at % 2:
            optimizer.step()
            optimizer.zero_grad()
        scene.loss(loss)
    scene.end(model.parameters())


def _checkpointed(scene, reentrant):
    from torch.utils.checkpoint import checkpoint

    model = Model(
        how=lambda block, x: checkpoint(block, x, use_reentrant=reentrant)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    # re-entrant: the first pass has no graph, so hooks see no gradient there
    scene.watch(model, optimizer, witness=not reentrant)
    train(scene, model, optimizer)


def checkpoint_reentrant(scene):
    _checkpointed(scene, True)


def checkpoint_nonreentrant(scene):
    _checkpointed(scene, False)


def amp_scaler(scene):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scene.watch(model, optimizer)
    for ids in batches(scene):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = loss_of(model(ids), ids)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scene.loss(loss)
    scene.end(model.parameters())


def _compiled(scene, backend):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = torch.compile(model, backend=backend)
    scene.watch(run, optimizer, witness=False)
    train(scene, run, optimizer)


def compile_aot_eager(scene):
    _compiled(scene, "aot_eager")


def compile_inductor(scene):
    _compiled(scene, "inductor")


def compile_after(scene):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer, witness=False)
    train(scene, torch.compile(model, backend="aot_eager"), optimizer)


# ---- two ranks ----


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


def fsdp2(scene):
    from torch.distributed.fsdp import fully_shard

    model = Model()
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    scene.watch(model, optimizer)
    train(scene, model, optimizer)


def tensor_parallel(scene):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    model = Model()
    mesh = init_device_mesh("cpu", (scene.ranks,), mesh_dim_names=("tp",))
    plan = {}
    for i in range(len(model.blocks)):
        plan[f"blocks.{i}.up"] = ColwiseParallel()
        plan[f"blocks.{i}.down"] = RowwiseParallel()
    parallelize_module(model, mesh, plan)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    scene.watch(model, optimizer)
    train(scene, model, optimizer, per_rank=False)


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
    # the schedule detaches and sends tensors behind the hooks' back
    scene.watch(models if many else models[0], optimizer, witness=False)
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
