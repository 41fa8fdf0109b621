"""Small models of four kinds, whose parts can be told to do something else.

A class attribute is such a switch: eps, scale, shift, offset, res, ...; those
called `math` or `fused` change no result but by rounding.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

# ---- gpt ----


class Attn(nn.Module):
    scale = None
    shift = 0
    math = False

    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.qkv = nn.Linear(d, 3 * d)
        self.proj = nn.Linear(d, d)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        if self.math or self.shift or self.scale:
            s = q @ k.transpose(-1, -2) * (self.scale or (d // self.h) ** -0.5)
            mask = torch.ones(t, t).tril(self.shift).bool()
            y = s.masked_fill(~mask, -math.inf).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class MLP(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc1 = nn.Linear(d, 4 * d)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.0)
        self.fc2 = nn.Linear(4 * d, d)

    def forward(self, x):
        return self.fc2(self.drop(self.act(self.fc1(x))))


class Block(nn.Module):
    res = 1.0

    def __init__(self, d, h):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.attn, self.mlp = Attn(d, h), MLP(d)

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x * self.res + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, v=512, d=128, h=4, n=3, t=64):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(v, d), nn.Embedding(t, d)
        self.blocks = nn.ModuleList(Block(d, h) for _ in range(n))
        self.ln_f = nn.LayerNorm(d)
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        for b in self.blocks:
            x = b(x)
        return self.head(self.ln_f(x))


# ---- llama ----


class RMS(nn.Module):
    eps = 1e-5
    fused = False

    def __init__(self, d):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d))

    def forward(self, x):
        if self.fused:
            return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


class LAttn(nn.Module):
    offset = 0
    base = 10000.0
    half = False
    math = False

    def __init__(self, d, h, kv):
        super().__init__()
        self.h, self.kv, self.hd = h, kv, d // h
        self.q = nn.Linear(d, d, bias=False)
        self.k = nn.Linear(d, kv * self.hd, bias=False)
        self.v = nn.Linear(d, kv * self.hd, bias=False)
        self.o = nn.Linear(d, d, bias=False)

    def rotate(self, x):
        t, hd = x.shape[-2:]
        f = self.base ** (-torch.arange(0, hd, 2) / hd)
        a = (torch.arange(t) + self.offset)[:, None] * f
        c, s = a.cos().type_as(x), a.sin().type_as(x)
        x1, x2 = x.chunk(2, -1)
        return torch.cat([x1 * c - x2 * s, x2 * c + x1 * s], -1)

    def forward(self, x):
        b, t, d = x.shape

        def heads(y, h):
            return y.view(b, t, h, self.hd).transpose(1, 2)

        q, k = heads(self.q(x), self.h), heads(self.k(x), self.kv)
        v = heads(self.v(x), self.kv)
        q = self.rotate(q)
        off, self.offset = self.offset, 0
        k = self.rotate(k)
        self.offset = off
        r = self.h // self.kv
        k, v = k.repeat_interleave(r, 1), v.repeat_interleave(r, 1)
        if self.math:
            s = q @ k.transpose(-1, -2) / math.sqrt(self.hd)
            m = torch.ones(t, t).tril().bool()
            y = s.masked_fill(~m, -math.inf).softmax(-1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(b, t, d))


class SwiGLU(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.gate = nn.Linear(d, 3 * d, bias=False)
        self.up = nn.Linear(d, 3 * d, bias=False)
        self.down = nn.Linear(3 * d, d, bias=False)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.down(self.act(self.gate(x)) * self.up(x))


class LBlock(nn.Module):
    def __init__(self, d, h, kv):
        super().__init__()
        self.n1, self.n2 = RMS(d), RMS(d)
        self.attn, self.mlp = LAttn(d, h, kv), SwiGLU(d)

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.mlp(self.n2(x))


class Llama(nn.Module):
    def __init__(self, v=512, d=128, h=4, kv=2, n=3):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.layers = nn.ModuleList(LBlock(d, h, kv) for _ in range(n))
        self.norm = RMS(d)
        self.head = nn.Linear(d, v, bias=False)

    def forward(self, x):
        x = self.emb(x)
        for b in self.layers:
            x = b(x)
        return self.head(self.norm(x))


# ---- cnn ----


class Res(nn.Module):
    res = 1.0

    def __init__(self, c):
        super().__init__()
        self.c1 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.b1 = nn.BatchNorm2d(c)
        self.r1 = nn.ReLU()
        self.c2 = nn.Conv2d(c, c, 3, padding=1, bias=False)
        self.b2 = nn.BatchNorm2d(c)
        self.r2 = nn.ReLU()

    def forward(self, x):
        y = self.b2(self.c2(self.r1(self.b1(self.c1(x)))))
        return self.r2(y + self.res * x)


class CNN(nn.Module):
    def __init__(self, c=24, n=3):
        super().__init__()
        self.stem = nn.Conv2d(3, c, 3, padding=1)
        self.blocks = nn.ModuleList(Res(c) for _ in range(n))
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.fc = nn.Linear(c * 16, 10)

    def forward(self, x):
        x = self.stem(x)
        for b in self.blocks:
            x = b(x)
        return self.fc(self.pool(x).flatten(1))


# ---- rnn: an encoder by LSTM, mixture of experts behind it ----


class MoE(nn.Module):
    k = 2
    norm = True

    def __init__(self, d, n):
        super().__init__()
        self.router = nn.Linear(d, n)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(d, 2 * d), nn.Tanh(), nn.Linear(2 * d, d))
            for _ in range(n))

    def forward(self, x):
        p = self.router(x).softmax(-1)
        w, i = p.topk(self.k, -1)
        if self.norm:
            w = w / w.sum(-1, keepdim=True)
        y = torch.zeros_like(x)
        for e, f in enumerate(self.experts):
            g = (w * (i == e)).sum(-1, keepdim=True)
            y = y + g * f(x)
        return y


class RNN(nn.Module):
    def __init__(self, v=256, d=96):
        super().__init__()
        self.emb = nn.Embedding(v, d)
        self.lstm = nn.LSTM(d, d, batch_first=True)
        self.ln = nn.LayerNorm(d)
        self.moe = MoE(d, 4)
        self.gn = nn.GroupNorm(4, d)
        self.out = nn.Linear(d, v)

    def forward(self, x):
        x, _ = self.lstm(self.emb(x))
        x = x + self.moe(self.ln(x))
        return self.out(self.gn(x.transpose(1, 2)).transpose(1, 2))
