"""Loads what was saved of a traced model, where there is no tracerd.

    closing_script.py FILE...
"""

import pickle
import sys

import torch

for path in sys.argv[1:]:
    with open(path, "rb") as f:
        if path.endswith(".pickle"):
            model = pickle.load(f)
        else:
            model = torch.load(f, weights_only=False)
    y = model(torch.ones(1, 2))
    y.sum().backward()
    print(y.sum().item().hex(), model.first.weight.grad.sum().item().hex())
assert not any(name.partition(".")[0] == "tracerd" for name in sys.modules)
