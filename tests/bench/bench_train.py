"""What tracing costs a training, in CPU time of the process.

    bench_train.py [ROUNDS]

Two MLPs (512-1376-512), 1024 rows, one thread; 37 tensors a step. The arms
take turns, step by step, in an order that rotates; each is compared with the
untraced step of its own round, and the median of those ratios counts. Needs
no daemon: records stay in the journal. `original` is what one writes by hand:
numpy figures and a line of text for each tensor, which is not even printed.
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
    import numpy as np
    import torch
    from torch import nn

    import tracerd
    from tracerd import _tracerd
except ImportError as error:
    print(f"cannot import: {error}")
    sys.exit(77)

ROWS, WIDTH, INNER = 1024, 512, 1376
WARM_UP = 2


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, INNER, bias=False)
        self.act = nn.ReLU()
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x):
        return self.down(self.act(self.up(x)))


class Original:
    """Hooks that describe what passes, as a text."""

    def __init__(self, model):
        self.counter = 0
        for module in model.modules():
            module.register_forward_hook(self.forward)
            module.register_full_backward_pre_hook(self.gradient_in)
            module.register_full_backward_hook(self.gradient_out)

    def see(self, name, tensors):
        for index, tensor in enumerate(tensors):
            if not isinstance(tensor, torch.Tensor):
                continue
            self.counter += 1
            values = tensor.detach().cpu().float().numpy().ravel()
            places = np.linspace(
                0, values.size - 1, min(16, values.size), dtype=int
            )
            shown = [values.max(), values.min(), values.mean(), values.std()]
            shown += list(values[places])
            text = ",".join(f"{v:.5f}" for v in shown)
            f"{self.counter},{name},{index},{list(tensor.shape)}-{text}"

    def forward(self, module, args, output):
        self.see("forward", (*args, output))

    def gradient_in(self, module, gradients):
        self.see("backward", gradients)

    def gradient_out(self, module, _, gradients):
        self.see("backward", gradients)


class Arm:
    """A training of its own; all arms start alike."""

    def __init__(self, dtype, how):
        torch.manual_seed(1)
        self.model = nn.Sequential(MLP(), MLP()).to(dtype)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.data = torch.randn(ROWS, WIDTH).to(dtype)
        self.trace = self.original = None
        self.loss = 0.0
        if how == "original":
            self.original = Original(self.model)
        elif how != "untraced":
            self.trace = tracerd.attach(
                self.model, self.optimizer, run=f"bench-{how}",
                same=how == "traced",
            )

    def step(self):
        """CPU seconds of one step of all threads of the process."""
        start = time.process_time()
        self.optimizer.zero_grad()
        loss = self.model(self.data).float().pow(2).mean()
        loss.backward()
        if self.original:
            for parameter in self.model.parameters():
                self.original.see("grad", (parameter.grad,))
        self.optimizer.step()
        self.loss = loss.item()
        return time.process_time() - start


HOW = ("untraced", "traced", "same=False", "original")


def measure(dtype, rounds):
    arms = {how: Arm(dtype, how.replace("=", "-")) for how in HOW}
    seconds = {how: [] for how in HOW}
    for i in range(WARM_UP + rounds):
        shift = i % len(HOW)
        for how in HOW[shift:] + HOW[:shift]:
            took = arms[how].step()
            if i >= WARM_UP:
                seconds[how].append(took)
    assert len({arms[how].loss for how in HOW[:3]}) == 1, "other bits"
    base = seconds["untraced"]
    print(f"{str(dtype)[6:]}: untraced {statistics.median(base) * 1e3:.1f} ms")
    for how in HOW[1:]:
        ratios = [b / a for a, b in zip(base, seconds[how], strict=True)]
        print(f"  {how:12}{(statistics.median(ratios) - 1) * 100:+7.1f} %")
    trace = arms["traced"].trace
    steps = WARM_UP + rounds
    saved = trace.saved()
    records = trace.counters["submitted"] / steps
    print(
        f"  {records:.0f} tensors a step; not read again: "
        f"{saved['tensors'] / steps:.1f} of them, "
        f"{saved['bytes'] / steps / 1e6:.1f} MB"
    )
    for arm in arms.values():
        if arm.trace:
            arm.trace.close()


def hooks(rounds=200):
    """The cost of the hooks alone, where there is next to nothing to read."""
    seconds = {}
    for how in ("untraced", "traced"):
        torch.manual_seed(1)
        model = nn.Sequential(*[nn.Linear(8, 8) for _ in range(20)])
        x = torch.randn(1, 8)
        trace = None
        if how == "traced":
            trace = tracerd.attach(model, run="bench-hooks")
        took = []
        for _ in range(rounds):
            start = time.process_time()
            model(x).sum().backward()
            took.append(time.process_time() - start)
            model.zero_grad()
        seconds[how] = statistics.median(took) / 21 * 1e6
        if trace:
            trace.close()
    print(
        f"a tiny module, forward and backward: {seconds['untraced']:.1f} us, "
        f"traced {seconds['traced'] - seconds['untraced']:+.1f} us"
    )


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 12
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"kernel: {_tracerd.kernel()}")
    with tempfile.TemporaryDirectory(prefix="trd") as folder:
        os.environ["TRACERD_DIR"] = folder
        for dtype in (torch.float32, torch.bfloat16):
            measure(dtype, rounds)
        hooks()


if __name__ == "__main__":
    main()
