"""What the hooks cost: a tiny module, and a training step of a small GPT.

    bench_hooks.py [ROUNDS]

Arms take turns in an order that rotates. For the tiny module (Linear, 8 x 8,
twenty in a row) the least CPU time of this thread counts, over blocks of
calls: `noop` is a hook before and after it that does nothing, `forward`
records input and output, `outputs` the gradient of the output too, `total`
and `exact` both gradients, by hooks on tensors alone or with the module's own
share. For the step it is the median
of the ratios to the untraced step of the same round, in CPU time of the
process. `off` is attached, in an iteration that is not traced; `items` is
what one writes by hand: mean, std, max and min of each tensor, each by
.item(). Needs no daemon: records stay in the journal. mindstudio-probe is
measured where it is installed.
"""

import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

if os.environ.get("TRD_BUILD"):
    folder = Path(os.environ["TRD_BUILD"]).resolve() / "client/python"
    sys.path.insert(0, str(folder))

try:
    import torch
    import torch.nn.functional as F
    from torch import nn

    import tracerd
except ImportError as error:
    print(f"cannot import: {error}")
    sys.exit(77)

NEVER = "1000000000"  # an iteration that does not come
MODULES = 20
BLOCK = 2  # passes that are measured as one
WIDTH, HEADS, WORDS, LAYERS, BATCH, LENGTH = 256, 8, 2048, 4, 4, 128


class Items:
    """Four figures of every tensor, each fetched by itself."""

    def __init__(self, model):
        self.last = None
        for module in model.modules():
            module.register_forward_hook(self.forward)
            module.register_full_backward_hook(self.backward)

    def see(self, tensors):
        if not isinstance(tensors, tuple):
            tensors = (tensors,)
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                t = tensor.detach().float()
                self.last = (
                    t.mean().item(), t.std().item(), t.max().item(),
                    t.min().item(),
                )

    def forward(self, module, args, output):
        self.see(args)
        self.see(output)

    def backward(self, module, inputs, outputs):
        self.see(inputs)
        self.see(outputs)


# ---- a tiny module ----


def tiny(how):
    torch.manual_seed(1)
    model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(MODULES)])
    if how == "total":
        # a module with modules in it has no exact shares
        for layer in model:
            layer.none = nn.Identity()
    return arm(model, None, how)


def arm(model, optimizer, how):
    """The model, and what must live as long."""
    trace = None
    if how == "items":
        trace = Items(model)
    elif how == "msprobe":
        trace = probe(model)
    elif how == "noop":
        for module in model.modules():
            module.register_forward_pre_hook(
                lambda m, a, k: None, with_kwargs=True
            )
            module.register_forward_hook(
                lambda m, a, k, o: None, with_kwargs=True, always_call=True
            )
    elif how != "untraced":
        trace = tracerd.attach(
            model, optimizer, run="bench-" + how.replace(" ", "-"),
            iterations=NEVER if how == "off" else None,
            passes=passes_of(how, optimizer),
            input_gradients=how != "outputs",
            journal_bytes=1 << 26,
        )
    return model, trace


def passes_of(how, optimizer):
    if how == "forward":
        return ("forward",)
    if optimizer is None:
        return ("forward", "backward")
    return ("forward", "backward", "grad")


def block(model, x, gradient):
    """Seconds of CPU of one module, forward and backward."""
    start = time.thread_time()
    for _ in range(BLOCK):
        model(x).backward(gradient)
    took = time.thread_time() - start
    return took / BLOCK / MODULES


def tiny_modules(rounds):
    how = (
        "untraced", "noop", "off", "forward", "outputs", "total", "exact",
        "items",
    )
    arms = {h: tiny(h) for h in how}
    x = torch.randn(1, 8, requires_grad=True)
    gradient = torch.ones(1, 8)
    least = dict.fromkeys(how, float("inf"))
    for i in range(rounds):
        shift = i % len(how)
        for h in how[shift:] + how[:shift]:
            block(arms[h][0], x, gradient)  # caches
            least[h] = min(least[h], block(arms[h][0], x, gradient))
    base = least["untraced"]
    print(f"a tiny module, forward and backward: {base * 1e6:.1f} us")
    for h in how[1:]:
        print(f"  {h:18}{(least[h] - base) * 1e6:+7.1f} us")
    close(arms)


# ---- a small GPT ----


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        n, length, _ = x.shape
        q, k, v = (
            part.view(n, length, HEADS, -1).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(),
            nn.Linear(4 * WIDTH, WIDTH),
        )

    def forward(self, x):
        x = x + self.attention(self.norm_1(x))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.Sequential(*[Layer() for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        h = self.layers(self.words(x) + self.places(places))
        return self.head(self.norm(h))


class Training:
    def __init__(self, how):
        torch.manual_seed(1)
        model = GPT()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.model, self.trace = arm(model, self.optimizer, how)
        self.data = torch.randint(WORDS, (BATCH, LENGTH + 1))
        self.loss = 0.0

    def step(self):
        probing = self.trace is not None and hasattr(self.trace, "stop")
        start = time.process_time()
        if probing:
            self.trace.start(model=self.model)
        self.optimizer.zero_grad()
        logits = self.model(self.data[:, :-1])
        loss = F.cross_entropy(
            logits.flatten(0, 1), self.data[:, 1:].flatten()
        )
        loss.backward()
        if probing:
            self.trace.stop()
        self.optimizer.step()
        if probing:
            self.trace.step()
        self.loss = loss.item()
        return time.process_time() - start


def probe(model):
    """The debugger of mindstudio-probe with L0 statistics, or None."""
    import json

    from msprobe.pytorch import PrecisionDebugger

    folder = tempfile.mkdtemp(prefix="trd-probe")
    config = Path(folder, "config.json")
    config.write_text(
        json.dumps(
            {
                "task": "statistics", "dump_path": folder, "rank": [],
                "step": [], "level": "L0",
                "statistics": {
                    "scope": [], "list": [], "data_mode": ["all"],
                    "summary_mode": "statistics",
                },
            }
        )
    )
    return PrecisionDebugger(config_path=str(config))


def has_probe():
    try:
        import msprobe.pytorch  # noqa: F401
    except Exception:
        return False
    return True


def small_gpt(rounds):
    how = ["untraced", "traced", "off", "items"]
    if has_probe():
        how.append("msprobe")
    arms = {h: Training(h) for h in how}
    seconds = {h: [] for h in how}
    for i in range(rounds + 2):
        shift = i % len(how)
        for h in how[shift:] + how[:shift]:
            took = arms[h].step()
            if i >= 2:
                seconds[h].append(took)
    assert len({arms[h].loss for h in ("untraced", "traced", "off")}) == 1, (
        "other bits"
    )
    base = seconds["untraced"]
    print(f"a step of a small GPT: {statistics.median(base) * 1e3:.0f} ms")
    for h in how[1:]:
        ratios = [b / a for a, b in zip(base, seconds[h], strict=True)]
        least = min(seconds[h]) / min(base)
        print(
            f"  {h:18}x {statistics.median(ratios):.3f}"
            f"  (least x {least:.3f})"
        )
    if "msprobe" not in how:
        print("  msprobe           not installed")
    close({h: (a.model, a.trace) for h, a in arms.items()})


def close(arms):
    for _, trace in arms.values():
        if hasattr(trace, "close"):
            trace.close()


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        os.environ["TRACERD_DIR"] = folder
        tiny_modules(16 * rounds)
        small_gpt(rounds)


if __name__ == "__main__":
    main()
