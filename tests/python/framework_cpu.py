"""What megatron-core asks of CUDA, answered by the CPU.

Its modules, schedules, reductions and optimizers stay its own. Import this
before megatron: some names are taken at import.
"""

import contextlib
import functools

import torch

CPU = torch.device("cpu")


class Idle:
    """A stream on which nothing ever runs."""

    def __init__(self, *args, **kwargs):
        pass

    def wait_stream(self, stream):
        pass

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass


def _nothing(*args, **kwargs):
    pass


def _stream(*args, **kwargs):
    return Idle()


def _get_state(*args, **kwargs):
    return torch.get_rng_state()


def _set_state(state, *args, **kwargs):
    torch.set_rng_state(state)


def _on_cpu(factory):
    @functools.wraps(factory)
    def made(*args, **kwargs):
        if str(kwargs.get("device")).startswith("cuda"):
            kwargs["device"] = CPU
        return factory(*args, **kwargs)

    return made


def _as_on_gpu(name_of):
    """The optimizers tell dtypes by names such as torch.cuda.FloatTensor."""

    @functools.wraps(name_of)
    def name(tensor, *args, **kwargs):
        found = name_of(tensor, *args, **kwargs)
        if isinstance(found, str):
            return found.replace("torch.", "torch.cuda.", 1)
        return found

    return name


def pretend():
    cuda = torch.cuda
    cuda.current_device = lambda: CPU
    cuda.synchronize = cuda.empty_cache = _nothing
    cuda.manual_seed = torch.manual_seed
    cuda.get_rng_state, cuda.set_rng_state = _get_state, _set_state
    cuda.Stream = Idle
    cuda.current_stream = cuda.default_stream = _stream
    cuda.stream = lambda stream: contextlib.nullcontext()
    torch.Tensor.cuda = lambda tensor, *args, **kwargs: tensor
    torch.Tensor.type = _as_on_gpu(torch.Tensor.type)
    for name in ("tensor", "zeros", "ones", "empty", "full", "arange"):
        setattr(torch, name, _on_cpu(getattr(torch, name)))

    import megatron.core.tensor_parallel.random as random

    random._get_cuda_rng_state = _get_state
    random._set_cuda_rng_state = _set_state
