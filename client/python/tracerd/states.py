"""What optimizers keep for each parameter: moments, momentum and such."""

import torch

# counts of steps say nothing about the numbers of the training
_COUNTS = frozenset(("step", "steps", "t"))


def states_of(optimizer, owners):
    """(name, Object or None, tensor) of each tensor of an optimizer's state,
    in the order of its parameters.

    owners: id of a parameter of the model -> (path, Object). What is not
    wanted is left out. An optimizer over parameters of its own, such as flat
    pieces, is named by group and place: 0.12.exp_avg."""
    for g, group in enumerate(optimizer.param_groups):
        for i, parameter in enumerate(group["params"]):
            state = optimizer.state.get(parameter)
            if not isinstance(state, dict):
                continue
            path, thing = owners.get(id(parameter), (f"{g}.{i}", None))
            if thing is not None and not thing.wanted:
                continue
            for name, value in list(state.items()):
                if isinstance(value, torch.Tensor) and name not in _COUNTS:
                    yield f"{path}.{name}", thing, value
