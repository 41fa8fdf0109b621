"""Trainings that differ in one thing: bugs with the module that is to blame,
and changes that only round differently.

Each kind of model has two dicts, of bugs name -> (change, module) and of
harmless changes name -> change; a change is done to the model before training.
"""

import math

import torch
import torch.nn.functional as F

import tracerd
from battery_models import CNN, GPT, RNN, Llama

# ---- changes ----


def same(m):
    """No change."""


def swap(module, **attributes):
    for name, value in attributes.items():
        setattr(module, name, value)


def call(module, function):
    module.forward = function


class BadGrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, s):
        ctx.s = s
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.s, None


def bad_grad(m, s):
    f = m.forward
    m.forward = lambda x: BadGrad.apply(f(x), s)


def low_precision(m, dtype):
    def f(x):
        bias = None if m.bias is None else m.bias.to(dtype)
        return F.linear(x.to(dtype), m.weight.to(dtype), bias).to(x.dtype)

    m.forward = f


def stale(m):
    """In the second iteration the weight is still that of the first."""
    calls = []

    def f(x):
        calls.append(m.weight.detach().clone())
        weight = m.weight
        if len(calls) == 2:
            weight = calls[0] + 0 * weight
        return F.linear(x, weight, m.bias)

    m.forward = f


def split_k(m, n=2):
    def f(x):
        parts = zip(x.chunk(n, -1), m.weight.chunk(n, -1), strict=True)
        y = sum(a @ b.t() for a, b in parts)
        return y if m.bias is None else y + m.bias

    m.forward = f


def split_rows(m, n=4):
    m.forward = lambda x: torch.cat(
        [F.linear(a, m.weight, m.bias) for a in x.chunk(n, 0)]
    )


def split_out(m):
    def f(x):
        biases = (None, None) if m.bias is None else m.bias.chunk(2)
        parts = zip(m.weight.chunk(2), biases, strict=True)
        return torch.cat([F.linear(x, w, b) for w, b in parts], -1)

    m.forward = f


def ln_by_hand(m):
    def f(x):
        y = x - x.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + m.eps)
        return y * m.weight + m.bias

    m.forward = f


def ln_double(m):
    m.forward = lambda x: F.layer_norm(
        x.double(), m.normalized_shape, m.weight.double(), m.bias.double(),
        m.eps,
    ).to(x.dtype)


def gelu_by_hand(m):
    m.forward = lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def silu_by_hand(m):
    m.forward = lambda x: x * torch.sigmoid(x)


def bn_by_hand(m):
    def f(x):
        v, u = torch.var_mean(x, (0, 2, 3), unbiased=False, keepdim=True)
        y = (x - u) / torch.sqrt(v + m.eps)
        return y * m.weight[:, None, None] + m.bias[:, None, None]

    m.forward = f


def conv_by_unfold(m):
    def f(x):
        b, _, h, w = x.shape
        y = m.weight.flatten(1) @ F.unfold(x, 3, padding=1)
        return y.view(b, -1, h, w)

    m.forward = f


def compiled(m, backend):
    """Of a module without others inside, so that hooks stay around it."""
    m.forward = torch.compile(m.forward, backend=backend)


def gn_by_hand(m):
    def f(x):
        y = x.reshape(x.shape[0], m.num_groups, -1)
        y = y - y.mean(-1, keepdim=True)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + m.eps)
        return y.reshape(x.shape) * m.weight[:, None] + m.bias[:, None]

    m.forward = f


def threads(n):
    torch.set_num_threads(n)


def without_mkldnn():
    """Until train() ends."""
    torch.backends.mkldnn.enabled = False


def nudge(p, i, by):
    with torch.no_grad():
        p.view(-1)[i] += by


# ---- the cases of each kind of model ----


def linear_bugs(pick, path):
    return {
        "bias1": (lambda m: nudge(pick(m).bias, 3, 1e-2), path),
        "lowprec": (lambda m: low_precision(pick(m), torch.bfloat16), path),
        "fp16": (lambda m: low_precision(pick(m), torch.float16), path),
        "scale": (lambda m: pick(m).weight.data.mul_(1.001), path),
        "row": (lambda m: pick(m).weight.data[5].mul_(1.1), path),
        "weight1": (lambda m: nudge(pick(m).weight, 77, 0.05), path),
        "transpose": (lambda m: pick(m).weight.data.copy_(
            pick(m).weight.data.flip(0)), path),
        "stale": (lambda m: stale(pick(m)), path),
        "badgrad": (lambda m: bad_grad(pick(m), 1.01), path),
    }


def gpt_cases():
    b = {}
    for i, (pick, path) in enumerate((
        (lambda m: m.blocks[1].mlp.fc1, "blocks.1.mlp.fc1"),
        (lambda m: m.blocks[2].attn.qkv, "blocks.2.attn.qkv"),
    )):
        for n, c in linear_bugs(pick, path).items():
            b[f"{n}_{i}"] = c
    b["eps"] = lambda m: swap(m.blocks[1].ln2, eps=1e-3), "blocks.1.ln2"
    b["eps4"] = lambda m: swap(m.blocks[0].ln1, eps=1e-4), "blocks.0.ln1"
    b["gelu"] = (lambda m: swap(m.blocks[2].mlp.act, approximate="tanh"),
                 "blocks.2.mlp.act")
    b["scale_attn"] = (lambda m: swap(m.blocks[1].attn, scale=0.18),
                       "blocks.1.attn")
    b["mask"] = lambda m: swap(m.blocks[1].attn, shift=1), "blocks.1.attn"
    b["mask-"] = (lambda m: swap(m.blocks[0].attn, shift=2), "blocks.0.attn")
    b["residual"] = lambda m: swap(m.blocks[1], res=0.0), "blocks.1"
    b["residual_scale"] = lambda m: swap(m.blocks[0], res=0.999), "blocks.0"
    b["dropout"] = (lambda m: swap(m.blocks[1].mlp.drop, p=0.01),
                    "blocks.1.mlp.drop")
    b["ln_weight"] = (lambda m: nudge(m.blocks[2].ln1.weight, 9, 1e-2),
                      "blocks.2.ln1")
    b["ln_f"] = lambda m: swap(m.ln_f, eps=1e-3), "ln_f"
    b["emb_row"] = (lambda m: m.wte.weight.data[7].mul_(1.01), "wte")
    h = {
        "threads": lambda m: threads(2),
        "math": lambda m: [swap(x.attn, math=True) for x in m.blocks],
        "math1": lambda m: swap(m.blocks[1].attn, math=True),
        "split_k": lambda m: split_k(m.blocks[0].mlp.fc2),
        "split_k4": lambda m: split_k(m.blocks[1].mlp.fc2, 4),
        "split_rows": lambda m: split_rows(m.blocks[0].attn.qkv),
        "split_out": lambda m: split_out(m.blocks[2].mlp.fc1),
        "ln_hand": lambda m: [ln_by_hand(x.ln1) for x in m.blocks],
        "ln_double": lambda m: ln_double(m.blocks[1].ln2),
        "gelu_hand": lambda m: gelu_by_hand(m.blocks[1].mlp.act),
        "aot": lambda m: [compiled(x.ln1, "aot_eager") for x in m.blocks],
        "inductor": lambda m: [compiled(x.mlp.act, "inductor")
                               for x in m.blocks],
        "all": lambda m: [
            (swap(x.attn, math=True), ln_by_hand(x.ln1), ln_by_hand(x.ln2),
             split_k(x.mlp.fc2), gelu_by_hand(x.mlp.act)) for x in m.blocks],
        "again": same,
    }
    return b, h


def llama_cases():
    b = {}
    for i, (pick, path) in enumerate((
        (lambda m: m.layers[1].mlp.down, "layers.1.mlp.down"),
        (lambda m: m.layers[0].attn.k, "layers.0.attn.k"),
    )):
        for n, c in linear_bugs(pick, path).items():
            if n != "bias1":
                b[f"{n}_{i}"] = c
    b["eps"] = lambda m: swap(m.layers[1].n1, eps=1e-3), "layers.1.n1"
    b["rotary"] = (lambda m: swap(m.layers[1].attn, offset=1),
                   "layers.1.attn")
    b["theta"] = (lambda m: swap(m.layers[2].attn, base=500000.0),
                 "layers.2.attn")
    b["act"] = (lambda m: call(
        m.layers[1].mlp.act, lambda x: F.gelu(x)), "layers.1.mlp.act")
    b["rms_weight"] = (lambda m: nudge(m.layers[2].n2.weight, 0, 1e-3),
                       "layers.2.n2")
    b["head_row"] = lambda m: m.head.weight.data[3].mul_(1.05), "head"
    b["swap_gate_up"] = (lambda m: (
        m.layers[0].mlp.gate.weight.data.copy_(
            m.layers[0].mlp.up.weight.data.clone())), "layers.0.mlp.gate")
    h = {
        "threads": lambda m: threads(2),
        "math": lambda m: [swap(x.attn, math=True) for x in m.layers],
        "fused": lambda m: [(swap(x.n1, fused=True), swap(x.n2, fused=True))
                            for x in m.layers],
        "split_k": lambda m: split_k(m.layers[0].mlp.down),
        "split_rows": lambda m: split_rows(m.layers[0].attn.q),
        "split_out": lambda m: split_out(m.layers[2].mlp.gate),
        "silu": lambda m: [silu_by_hand(x.mlp.act) for x in m.layers],
        "aot": lambda m: [compiled(x.mlp.act, "aot_eager")
                          for x in m.layers],
        "inductor": lambda m: [compiled(x.n1, "inductor") for x in m.layers],
        "all": lambda m: [
            (swap(x.attn, math=True), swap(x.n1, fused=True),
             split_k(x.mlp.down), silu_by_hand(x.mlp.act)) for x in m.layers],
        "again": same,
    }
    return b, h


def cnn_cases():
    b = {
        "residual": (lambda m: swap(m.blocks[1], res=0.0), "blocks.1"),
        "residual_scale": (lambda m: swap(m.blocks[0], res=.999), "blocks.0"),
        "bn_eps": (lambda m: swap(m.blocks[1].b1, eps=1e-3), "blocks.1.b1"),
        "bn_eval": (lambda m: m.blocks[2].b1.eval(), "blocks.2.b1"),
        "conv_w": (lambda m: nudge(m.blocks[1].c2.weight, 10, 0.02),
                   "blocks.1.c2"),
        "stem_bias": (lambda m: nudge(m.stem.bias, 2, 1e-3), "stem"),
        "leaky": (lambda m: call(
            m.blocks[0].r1, lambda x: F.leaky_relu(x, 1e-3)), "blocks.0.r1"),
        "pool": (lambda m: call(
            m.pool, lambda x: F.adaptive_max_pool2d(x, 4)), "pool"),
        "fc_low": (lambda m: low_precision(m.fc, torch.bfloat16), "fc"),
        "badgrad": (lambda m: bad_grad(m.blocks[1].r1, 0.99), "blocks.1.r1"),
        "fc_bias": (lambda m: nudge(m.fc.bias, 1, 1e-2), "fc"),
    }
    b["padding"] = (lambda m: swap(
        m.blocks[2].c1, padding_mode="replicate",
        _reversed_padding_repeated_twice=[1, 1, 1, 1]), "blocks.2.c1")
    h = {
        "threads": lambda m: threads(2),
        "bn_hand": lambda m: [bn_by_hand(x.b1) for x in m.blocks],
        "unfold": lambda m: conv_by_unfold(m.blocks[1].c1),
        "unfold_all": lambda m: [conv_by_unfold(x.c2) for x in m.blocks],
        "mkldnn": lambda m: without_mkldnn(),
        "channels": lambda m: m.to(memory_format=torch.channels_last),
        "fc_k": lambda m: split_k(m.fc, 4),
        "aot": lambda m: [compiled(x.b1, "aot_eager") for x in m.blocks],
        "again": same,
    }
    return b, h


def rnn_cases():
    b = {}
    for n, c in linear_bugs(lambda m: m.out, "out").items():
        b[f"{n}_0"] = c
    b["topk"] = lambda m: swap(m.moe, k=1), "moe"
    b["norm"] = lambda m: swap(m.moe, norm=False), "moe"
    b["gn_eps"] = lambda m: swap(m.gn, eps=1e-2), "gn"
    b["gn_groups"] = lambda m: swap(m.gn, num_groups=8), "gn"
    b["lstm_bias"] = (lambda m: nudge(m.lstm.bias_hh_l0, 5, 1e-2), "lstm")
    b["expert"] = (lambda m: nudge(m.moe.experts[2][0].bias, 1, 1e-2),
                   "moe.experts.2.0")
    b["router"] = (lambda m: low_precision(m.moe.router, torch.bfloat16),
                   "moe.router")
    b["act"] = (lambda m: call(
        m.moe.experts[1][1], lambda x: F.hardtanh(x)), "moe.experts.1.1")
    h = {
        "threads": lambda m: threads(2),
        "split_k": lambda m: split_k(m.out),
        "split_rows": lambda m: split_rows(m.moe.experts[0][0]),
        "ln_hand": lambda m: ln_by_hand(m.ln),
        "ln_double": lambda m: ln_double(m.ln),
        "gn_hand": lambda m: gn_by_hand(m.gn),
        "aot": lambda m: compiled(m.ln, "aot_eager"),
        "again": same,
        "mkldnn": lambda m: without_mkldnn(),
    }
    return b, h


# kind -> (model, cases, words, (batch, length) of what it reads)
KINDS = {
    "gpt": (GPT, gpt_cases, 512, (4, 64)),
    "llama": (Llama, llama_cases, 512, (4, 64)),
    "rnn": (RNN, rnn_cases, 256, (8, 32)),
    "cnn": (CNN, cnn_cases, 0, (8, 16)),
}


# What only gradients are the same after: the batch in another order, and in
# parts. Batch norm is another function of a part.
SPLITS = {
    "reversed": (1, -1, ("gpt", "llama", "rnn", "cnn")),
    "halves": (2, 1, ("gpt", "llama", "rnn")),
    "quarters": (4, 1, ("gpt", "llama", "rnn")),
}

# What two ranks do not add up: bug of layout_script.py -> (layout, module,
# pass).
REDUCTIONS = {
    "reduction": ("tp", "layers.1.mlp.down", "forward"),
    "reduction_attn": ("tp", "layers.0.attn.o", "forward"),
    "reduction_back": ("tp", "layers.1.mlp.gate", "backward"),
    "gradient": ("ddp", "layers.1.mlp.down", "grad"),
}


def _batch(dtype, words, size, g):
    if words:
        shape = (size[0], size[1] + 1)
        z = torch.randint(0, words, shape, generator=g)
        return z[:, :-1], z[:, 1:]
    x = torch.randn(size[0], 3, size[1], size[1], generator=g).to(dtype)
    return x, torch.randint(0, 10, (size[0],), generator=g)


def _backward(m, words, batch, parts, order):
    if order < 0:
        batch = [t.flip(0) for t in batch]
    for x, c in zip(*(t.chunk(parts) for t in batch), strict=True):
        y = m(x)
        if words:
            y, c = y.reshape(-1, words), c.reshape(-1)
        (F.cross_entropy(y.float(), c) / parts).backward()


def train(kind, change, run, dtype=torch.float32, steps=2, parts=1, order=1,
          watch=None, **options):
    """Trains one model under tracerd, which has stored all then.

    The batch is taken in `parts`, in reverse with order -1; watch: sees the
    model and each step's gradients too (battery_peers.Watch).
    """
    make, _, words, size = KINDS[kind]
    torch.set_num_threads(1)
    torch.manual_seed(1234)
    m = make()
    try:
        change(m)
        m = m.to(dtype)
        if watch:
            watch.follow(m)
        torch.manual_seed(99)
        opt = torch.optim.AdamW(m.parameters(), lr=3e-4)
        g = torch.Generator().manual_seed(7)
        with tracerd.attach(m, opt, run=run, **options) as t:
            for _ in range(steps):
                batch = _batch(dtype, words, size, g)
                _backward(m, words, batch, parts, order)
                if watch:
                    watch.gradients(m)
                opt.step()
                opt.zero_grad(set_to_none=True)
            assert t.flush(30)
    finally:
        torch.set_num_threads(1)
        torch.backends.mkldnn.enabled = True
