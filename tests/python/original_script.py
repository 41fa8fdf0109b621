"""The training that the project grew from, in two modes.

    original_script.py log BATCH SEQUENCE HIDDEN INNER
        hooks and prints by itself, one line a tensor
    original_script.py trace BATCH SEQUENCE HIDDEN INNER RUN
        the same training, traced

Both draw the same numbers from the same seeds.
"""

import sys
from datetime import datetime

import numpy as np
import torch
from torch import nn

ITERATIONS = 2


def stretched_normal(*shape):
    data = np.random.normal(0.0, 0.00134, shape)
    low, high = -0.04651, 0.04025
    unit = (data - data.min()) / (data.max() - data.min())
    return torch.from_numpy(unit * (high - low) + low).half()


class CustomLinear(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.weight = nn.Parameter(stretched_normal(rows, columns))

    def forward(self, input_):
        return nn.functional.linear(input_, self.weight)


class MyModel(nn.Module):
    def __init__(self, hidden, inner):
        super().__init__()
        self.layer1 = CustomLinear(inner, hidden)
        self.layer2 = CustomLinear(hidden, inner)

    def forward(self, input_):
        return self.layer2(self.layer1(input_))


class Log:
    """Prints what passes through a model."""

    def __init__(self):
        self.counter = 0
        self.objects = {}
        self.numbers = {}
        self.steps = {}

    def name(self, module):
        if module not in self.objects:
            kind = type(module).__name__
            self.numbers[kind] = self.numbers.get(kind, 0) + 1
            self.objects[module] = f"{kind}-{self.numbers[kind]}"
        return self.objects[module]

    def step(self, kind, module, add):
        key = kind, module
        self.steps[key] = self.steps.get(key, 0) + add
        return self.steps[key]

    def line(self, name, index, tensor):
        now = datetime.now().strftime("%H%M%S%f")
        values = tensor.detach().cpu().float().numpy().ravel()
        places = np.linspace(
            0, values.size - 1, min(16, values.size), dtype=int
        )
        shown = [values.max(), values.min(), values.mean(), values.std()]
        shown += list(values[places])
        text = ",".join(f"{v:.5f}" for v in shown)
        print(
            f"{now},{self.counter},{name},{index},"
            f"{list(tensor.shape)}-{text}"
        )

    def call(self, name, values):
        """One call, one number, however many tensors it has."""
        self.counter += 1
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                self.line(name, index, value)

    def watch(self, module, backward):
        module.register_forward_pre_hook(self.before)
        module.register_forward_hook(self.after)
        if backward:
            module.register_full_backward_pre_hook(self.gradient_in)
            module.register_full_backward_hook(self.gradient_out)

    def before(self, module, args):
        step = self.step("forward", module, 1)
        # the script counts the module itself as the first argument
        self.call(
            f"forward-{self.name(module)}-{step}-input", (None, *args)
        )

    def after(self, module, args, output):
        step = self.step("forward", module, 0)
        self.call(f"forward-{self.name(module)}-{step}-output", (output,))

    def gradient_in(self, module, gradients):
        step = self.step("backward", module, 1)
        self.call(f"backward-{self.name(module)}-{step}-input", gradients)

    def gradient_out(self, module, _, gradients):
        # what the script logs as output is the same gradient again
        step = self.step("backward", module, 0)
        self.call(f"backward-{self.name(module)}-{step}-output", gradients)

    def parameters(self, model):
        for name, parameter in model.named_parameters():
            self.call(f"grad-{name}", (parameter.grad,))


def main(mode, batch, sequence, hidden, inner, run=None):
    np.random.seed(1)
    torch.manual_seed(2)
    model = MyModel(int(hidden), int(inner)).half()
    model.train()
    shape = int(batch), int(sequence), int(hidden)
    data, target = stretched_normal(*shape), stretched_normal(*shape)
    log = trace = None
    if mode == "log":
        log = Log()
        for module in model.modules():
            log.watch(module, backward=module is not model)
    else:
        import tracerd

        trace = tracerd.attach(model, run=run)
    for _ in range(ITERATIONS):
        model(data).backward(target)
        if log:
            log.parameters(model)
        else:
            trace.step()
    if trace:
        assert trace.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
