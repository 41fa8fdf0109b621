"""DeepSpeed's optimizers, which hold flat or sharded copies (ZeRO).

They have no step hooks, and the torch optimizer inside steps once for each
group. Of a gradient each rank has a part, between backward and step.
"""

import functools
import weakref


def is_one(optimizer):
    """Whether it is such an optimizer."""
    return (
        type(optimizer).__module__.startswith("deepspeed.")
        and "_optimizer_step_pre_hooks" not in vars(optimizer)
        and hasattr(optimizer, "optimizer")
        and callable(getattr(optimizer, "step", None))
    )


def of_model(model):
    """That of a DeepSpeed engine, or None."""
    if type(model).__module__.startswith("deepspeed."):
        optimizer = getattr(model, "optimizer", None)
        if is_one(optimizer):
            return optimizer
    return None


def gradient_of(parameter):
    """This rank's part of a gradient, flat; None where it has none. No
    other rank is asked."""
    if hasattr(parameter, "ds_id"):
        owner = getattr(parameter, "_z3_optimizer", None)
        if owner is None:
            return None
        return owner.get_local_fp32_grad_for_param(parameter)
    mapping = getattr(parameter, "_hp_mapping", None)
    if mapping is None:
        return None
    try:
        part = mapping.get_lp_grad_fragment(parameter._index_in_param_group)
    except ValueError:
        return None  # there are none at this time
    return None if part is None else part.detach().flatten()


def scale_of(optimizer):
    """By how much its gradients are scaled; 1 where they are not."""
    return float(getattr(optimizer, "loss_scale", 1) or 1)


def tells(optimizer):
    """Whether it says, within step(), that it found what is not finite: its
    gradients are still there then."""
    return type(optimizer).__module__.startswith(
        "deepspeed.runtime.zero."
    ) and callable(getattr(optimizer, "_update_scale", None))


def handles(optimizer, before, found, after):
    """before() and after() round the steps of one optimizer, as torch's step
    hooks are called, and found(optimizer, overflow) in between if it tells."""

    def round_step(original):
        def step(*args, **kwargs):
            before(optimizer, args, kwargs)
            result = original(*args, **kwargs)
            after(optimizer, args, kwargs)
            return result

        return step

    def before_scale(original):
        def update(has_overflow=False):
            found(optimizer, has_overflow)
            return original(has_overflow)

        return update

    made = [_Method(optimizer, "step", round_step)]
    if tells(optimizer):
        made.append(_Method(optimizer, "_update_scale", before_scale))
    return made


class _Method:
    """Another in the place of one optimizer's method. remove() leaves it as
    it was."""

    def __init__(self, optimizer, name, wrap):
        original = getattr(optimizer, name)
        ours = functools.wraps(original)(wrap(original))
        self._name = name
        self._before = vars(optimizer).get(name)
        setattr(optimizer, name, ours)
        # the optimizer holds the function and the function it: not we
        self._ours = weakref.ref(ours)
        self._optimizer = weakref.ref(optimizer)

    def remove(self):
        optimizer = self._optimizer()
        if (
            optimizer is None
            or vars(optimizer).get(self._name) != self._ours()
        ):
            return  # gone, or somebody came after us
        if self._before is None:
            delattr(optimizer, self._name)
        else:
            setattr(optimizer, self._name, self._before)
