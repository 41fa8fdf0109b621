"""Trainings of one process with nothing but torch; see framework_script.py."""

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


def evaluation(scene):
    """Passes without gradients between the steps."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer)
    for at, ids in enumerate(batches(scene)):
        optimizer.zero_grad()
        loss = loss_of(model(ids), ids)
        loss.backward()
        optimizer.step()
        scene.loss(loss)
        model.eval()
        with torch.inference_mode() if at % 2 else torch.no_grad():
            scene.loss(loss_of(model(ids), ids))
        model.train()
    scene.end(model.parameters())


def _checkpointed(scene, reentrant):
    from torch.utils.checkpoint import checkpoint

    model = Model(
        how=lambda block, x: checkpoint(block, x, use_reentrant=reentrant)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer)
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


def amp_scaler_skips(scene):
    """The scale is too large at first: the scaler leaves a step out."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    scene.watch(model, optimizer)
    for at, ids in enumerate(batches(scene, 4)):
        optimizer.zero_grad()
        loss = 16 * loss_of(model(ids), ids)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update(2.0**8)
        if at == 0:
            scene.skipped()
        scene.loss(loss)
    scene.end(model.parameters())


def _compiled(scene, backend):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run = torch.compile(model, backend=backend)
    scene.watch(run, optimizer)
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


def compile_in_place(scene):
    """Module.compile(), of the model before and of a part after."""
    model = Model()
    model.blocks[0].compile(backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer, witness=False)
    model.blocks[1].compile(backend="aot_eager")
    train(scene, model, optimizer)


def compile_inside(scene):
    """What is inside of compiled code, which is the same as eager code."""
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer, witness=False, inside_compile=True)
    train(scene, torch.compile(model, backend="aot_eager"), optimizer)


def compile_inside_inductor(scene):
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scene.watch(model, optimizer, witness=False, inside_compile=True)
    train(scene, torch.compile(model, backend="inductor"), optimizer)
