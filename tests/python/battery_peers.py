"""What other tools' rules say of the same trainings.

msprobe     `compare` of statistics (mindstudio-probe 26.2): a row is an error
            where the norm's relative error is below 0.1 at the input and above
            0.5 at the output, and a warning where it is more than ten times
            that of the input, or above 0.1 with none at the input; NaN against
            a number and another shape are errors
msprobe_da  its first difference: more than 0.5 of any of max, min, mean, norm
sglang      1 - 2 <x, y> / (|x|^2 + |y|^2) above 1e-3, of whole tensors

The rules are written down here as those tools have them; each names the first
row in the order of execution that it does not let pass.
"""

import torch


class Watch:
    """Tensors of a training: rows of (module, kind, inputs, outputs)."""

    def __init__(self):
        self.rows = []

    def follow(self, model):
        for name, module in model.named_modules():
            if name:
                module.register_forward_hook(self._hook(name))

    def _hook(self, name):
        def hook(_, args, out):
            got = [a.detach().clone() for a in args if tensor(a)]
            gave = [o for o in (out if isinstance(out, tuple) else (out,))
                    if tensor(o)]
            self.rows.append(
                (name, "forward", got, [o.detach().clone() for o in gave]))
            inputs = [a for a in args if tensor(a) and a.requires_grad]
            if inputs and gave and gave[0].requires_grad:
                self._follow_back(name, gave[0], inputs[0])

        return hook

    def _follow_back(self, name, out, given):
        got = []
        out.register_hook(lambda g: got.append(g.detach().clone()))
        given.register_hook(lambda g: self.rows.append(
            (name, "backward", list(got), [g.detach().clone()])))

    def gradients(self, model):
        for name, p in model.named_parameters():
            if p.grad is not None:
                module = name.rpartition(".")[0]
                self.rows.append((module, "grad", [], [p.grad.clone()]))


def tensor(x):
    return isinstance(x, torch.Tensor)


def figures(t):
    """In the tensor's own dtype, as it computes them."""
    return [float(f) for f in (t.max(), t.min(), t.mean(), t.norm())]


def relative(a, b):
    """Of b against a; nothing is said where a is 0."""
    return abs(a - b) / abs(a) if a else 0.0


def norms(a, b):
    pairs = [(x, y) for x, y in zip(a, b, strict=False)
             if x.is_floating_point()]
    return max((relative(float(x.norm()), float(y.norm()))
                for x, y in pairs), default=0.0)


def differ_in_kind(a, b):
    return any(x.shape != y.shape or
               bool(x.isfinite().all()) != bool(y.isfinite().all())
               for x, y in zip(a, b, strict=False))


def msprobe(a, b):
    got, gave = norms(a[2], b[2]), norms(a[3], b[3])
    return (differ_in_kind(a[3], b[3]) or (got < 0.1 and gave > 0.5)
            or gave > (10 * got if got else 0.1))


def msprobe_da(a, b):
    return differ_in_kind(a[3], b[3]) or any(
        relative(x, y) > 0.5
        for s, t in zip(a[3], b[3], strict=False) if s.is_floating_point()
        for x, y in zip(figures(s), figures(t), strict=True))


def sglang(a, b):
    for x, y in zip(a[3], b[3], strict=False):
        if x.shape != y.shape:
            return True
        x, y = x.double(), y.double()
        squares = (x * x).sum() + (y * y).sum()
        if squares and not 1 - 2 * (x * y).sum() / squares <= 1e-3:
            return True
    return False


RULES = {"msprobe": msprobe, "msprobe_da": msprobe_da, "sglang": sglang}


def first(rule, base, other):
    """The module of the first row that does not pass, or None."""
    for a, b in zip(base.rows, other.rows, strict=False):
        if a[:2] == b[:2] and RULES[rule](a, b):
            return a[0]
    return None
