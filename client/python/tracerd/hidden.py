"""Hooks that are not counted.

In evaluation nn.TransformerEncoderLayer computes all of itself by one
operator, but not where a hook stands on it or on a module in it; what it then
computes instead may differ in the last bits. It looks at the lengths of the
dicts that hold the hooks.
"""

from collections import OrderedDict

import torch

from .hooks import Inert

DICTS = ("_forward_pre_hooks", "_forward_hooks")


class Uncounted(OrderedDict):
    """Hooks by number; its length is that of the user's."""

    def __len__(self):
        return sum(not isinstance(hook, Inert) for hook in self.values())

    def __bool__(self):
        return any(True for _ in self)

    def __reduce__(self):
        return OrderedDict, (), None, None, iter(self.items())

    def copy(self):
        return OrderedDict(self)


class Hidden:
    """Where hooks are hidden; a handle."""

    def __init__(self, module):
        self.module = module
        self.found = {}
        for name in DICTS:
            hooks = module.__dict__.get(name)
            # of the user's own hooks there are handles, and they count anyway
            if type(hooks) is OrderedDict and not hooks:
                self.found[name] = hooks
                module.__dict__[name] = Uncounted()

    def remove(self):
        for name, hooks in self.found.items():
            if not self.module.__dict__.get(name):
                self.module.__dict__[name] = hooks
        self.found = {}


def layers(modules):
    """Ids of the modules on which hooks are to be hidden."""
    return {
        id(inner) for module in modules
        if isinstance(module, torch.nn.TransformerEncoderLayer)
        for inner in module.modules()
    }
