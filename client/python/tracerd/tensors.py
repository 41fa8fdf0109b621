"""Tensors that are not plain memory, and the figures of one tensor.

The C half reads dense CPU tensors. Everything else comes here: it is either
turned into such a tensor, with labels that say so, or described by its shape
alone. Nothing here takes part in autograd, waits for another rank or may
change what the training computes.
"""

import contextlib
import math
import sys

from . import _tracerd

LABEL = _tracerd.LABEL_BITS


class Plain:
    """What stands for a tensor.

    `tensor` is dense, or None where there is nothing to read;
    `labels` say what was done, `note` is text for the record. `shape` is the
    shape to report where it is not the tensor's own.
    """

    __slots__ = ("dtype", "labels", "note", "shape", "tensor")

    def __init__(self, tensor, labels, notes, shape, dtype):
        self.tensor = tensor
        self.labels = labels
        self.note = "; ".join(notes)
        self.shape = shape
        self.dtype = dtype


def setup():
    """Tells the C half what a tensor is. Idempotent; imports torch."""
    import torch

    functorch = getattr(torch._C, "_functorch", None)
    stream = None
    if torch.version.cuda and not torch.version.hip:
        stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)
    return _tracerd.setup(
        torch.Tensor, torch.nn.Parameter, torch.strided, stream,
        getattr(functorch, "peek_interpreter_stack", _none),
    )


def _none():
    return None


def shape_of(tensor):
    try:
        return tuple(int(n) for n in tensor.shape)
    except Exception:
        return ()  # nested, uninitialized, symbolic


def dtype_of(tensor):
    return str(tensor.dtype).rpartition(".")[2]


@contextlib.contextmanager
def quiet(torch):
    """No autograd, no subclass and no mode sees what is done within."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C.DisableTorchFunction())
        try:
            from torch.utils._python_dispatch import _disable_current_modes
        except ImportError:
            pass
        else:
            stack.enter_context(_disable_current_modes())
        yield


def resolve(tensor, here=True):
    """A Plain for any tensor whatever. Raises nothing it can foresee.

    here: a tensor of another device is copied to the CPU, which waits for
        the device; otherwise it stays where it is, and nothing waits but
        what a sparse layout needs."""
    import torch

    with quiet(torch):
        return _resolve(torch, tensor, 0, [], here)


def _nothing(tensor, labels, notes):
    return Plain(None, labels, notes, shape_of(tensor), dtype_of(tensor))


def _resolve(torch, tensor, labels, notes, here):
    if _is_wrapped(torch, tensor) or _is_batched(torch, tensor):
        return _nothing(tensor, labels | LABEL["unsupported"], notes)
    kind = type(tensor)
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        inner = _unwrap(torch, tensor, notes)
        if inner is None:
            nodata = _is_a(
                tensor, "torch._subclasses.fake_tensor", "FakeTensor"
            )
            notes.append(f"class={kind.__name__}")
            return _nothing(
                tensor,
                labels | LABEL["nodata" if nodata else "unsupported"],
                notes,
            )
        if hasattr(tensor, "placements"):
            labels |= LABEL["shard"]
        return _resolve(torch, inner, labels, notes, here)
    if tensor.is_nested:
        notes.append("nested")
        return _nothing(tensor, labels | LABEL["unsupported"], notes)
    plain = tensor.layout is torch.strided and not tensor.is_quantized
    if (here or not plain) and is_capturing(torch, tensor):
        # it would wait, which breaks the capture of a graph
        return _nothing(tensor, labels | LABEL["nodata"], notes)
    if tensor.layout is not torch.strided:
        return _resolve_layout(torch, tensor, labels, notes, here)
    if tensor.is_quantized:
        return _resolve(
            torch, tensor.dequantize(), labels | LABEL["quantized"], notes,
            here,
        )
    if tensor.device.type == "meta":
        return _nothing(tensor, labels | LABEL["nodata"], notes)
    tensor = tensor.detach()
    if here and tensor.device.type != "cpu":
        tensor = tensor.cpu()
        labels |= LABEL["copied"]
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.untyped_storage().nbytes() == 0 and tensor.numel():
        return _nothing(tensor, labels | LABEL["nodata"], notes)
    return Plain(tensor, labels, notes, None, dtype_of(tensor))


def _resolve_layout(torch, tensor, labels, notes, here):
    shape = shape_of(tensor)
    if tensor.layout is torch.sparse_coo:
        # two entries of one place are one value
        values = tensor.detach().coalesce().values()
    elif tensor.layout in (
        torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr,
        torch.sparse_bsc,
    ):
        values = tensor.detach().values()
    elif tensor.layout is getattr(torch, "_mkldnn", None):
        return _resolve(
            torch, tensor.detach().to_dense(), labels, notes, here
        )
    else:
        return _nothing(tensor, labels | LABEL["unsupported"], notes)
    notes.append(f"nnz={values.shape[0]}")
    plain = _resolve(torch, values, labels | LABEL["sparse"], notes, here)
    plain.shape = shape
    return plain


def _is_a(tensor, module, name):
    """isinstance() without importing the class's module."""
    cls = getattr(sys.modules.get(module), name, None)
    return cls is not None and isinstance(tensor, cls)


def _is_wrapped(torch, tensor):
    """Whether a functorch transform (vmap, grad) made it."""
    functorch = getattr(torch._C, "_functorch", None)
    ask = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return ask is not None and ask(tensor)


def _is_batched(torch, tensor):
    """Whether it is many gradients at once, as is_grads_batched asks for."""
    functorch = getattr(torch._C, "_functorch", None)
    ask = getattr(functorch, "is_legacy_batchedtensor", None)
    return ask is not None and ask(tensor)


def _unwrap(torch, tensor, notes):
    """What a subclass holds; None where that is not known."""
    if _is_a(
        tensor, "torch.distributed._functional_collectives",
        "AsyncCollectiveTensor",
    ):
        # reading before the collective has ended would be a race
        return tensor.trigger_wait()
    local = getattr(tensor, "_local_tensor", None)
    if local is not None and hasattr(tensor, "placements"):
        # to_local() would put a node into the graph
        places = ",".join(str(p) for p in tensor.placements)
        notes.append(f"placements={places} shape={list(tensor.shape)}")
        return local
    dispatch = getattr(type(tensor), "__torch_dispatch__", None)
    own = dispatch is not None and dispatch not in (
        torch.Tensor.__torch_dispatch__,
        torch._C._disabled_torch_dispatch_impl,
    )
    if own or hasattr(tensor, "__tensor_flatten__"):
        return None
    if _is_uninitialized(tensor):
        return None
    return tensor.detach().as_subclass(torch.Tensor)


def is_capturing(torch, tensor):
    """Whether what is done to the tensor now goes into a graph."""
    module = getattr(torch, tensor.device.type, None)
    ask = getattr(module, "is_current_stream_capturing", None)
    return ask is not None and ask()


def _is_uninitialized(tensor):
    return any(
        c.__name__ == "UninitializedTensorMixin" for c in type(tensor).__mro__
    )


def sampling_of(value):
    """(code, argument) of "equidistant", ("every", distance) or ("random",
    seed). Raises ValueError for anything else."""
    rule, number = value, 0
    if isinstance(value, (tuple, list)) and len(value) == 2:
        rule, number = value
    code = _tracerd.SAMPLINGS.get(rule) if isinstance(rule, str) else None
    least = {"every": 1, "random": 0}.get(rule) if code else None
    alone = rule is value
    if (
        code is None
        or alone != (least is None)
        or not isinstance(number, int)
        or isinstance(number, bool)
        or not (least or 0) <= number < 1 << 64
    ):
        raise ValueError(
            f'sampling={value!r}: expected "equidistant", ("every", distance '
            'from 1) or ("random", seed from 0)'
        )
    return code, number


def histogram_of(value):
    """The code of None, "rows", "exact" or True. Raises ValueError."""
    if value is True:
        value = "rows"
    if value is None or value is False:
        value = "none"
    code = _tracerd.HISTOGRAMS.get(value) if isinstance(value, str) else None
    if code is None:
        raise ValueError(
            f'histogram={value!r}: expected None, "rows" or "exact"'
        )
    return code


def samples_of(value):
    """A number of samples. Raises ValueError."""
    if (
        not isinstance(value, int)
        or isinstance(value, bool)
        or not 0 <= value <= _tracerd.MAX_SAMPLES
    ):
        raise ValueError(
            f"samples={value!r}: expected 0 to {_tracerd.MAX_SAMPLES}"
        )
    return value


def stats(tensor, samples=16, sampling="equidistant", histogram=None):
    """The figures of one tensor, as tracerd stores them; no daemon needed.

    tensor: any torch.Tensor; its figures are those of its elements in
        row-major order, whatever the strides. A tensor on another device is
        copied, a shard is described by its local part, a sparse tensor by
        its coalesced values, a complex one by the magnitudes.
    samples: how many elements to take at most, 0 to 4096.
    sampling: which ones. "equidistant": evenly spaced from the first to the
        last. ("every", a): elements 0, a, 2a, ... ("random", seed): one
        drawn from each of as many equal parts.
    histogram: "exact" counts how many elements have which exponent, "rows"
        (or True) those of every 16th row of 64 elements in a tensor of more
        than 65,536 elements, which costs next to nothing.

    Returns a dict: dtype (name), shape (list), n (elements), max, min, mean,
    std (of the population), l2, absmax, absmin (smallest that is not zero),
    nan, pinf, ninf, zero, subnormal (counts), hash (16 hex digits of the
    element bits) and samples (list). All but mean, std and l2 are exact, and
    integers are Python ints. With a NaN max, min, mean, std and l2 are NaN,
    and infinities enter as IEEE says; finite_max, finite_min, finite_mean,
    finite_std and finite_l2 then stand beside them. What does not exist, as
    the maximum of nothing, is None. labels (a list) is there where the
    figures are not plainly those of the tensor: sparse, complex, quantized,
    nodata, unsupported and so on, and what more is known. Where it was asked
    for there are also sampling ([rule, argument]) and histogram, a dict of
    kind, first_exponent and counts: counts[i] elements have 2**e <= |x| <
    2**(e + 1), e = first_exponent + i; the first bin that a dtype has holds
    zeros and subnormals too, the last one NaN and infinities.

    Units: those of the elements. Threads: any; other threads run meanwhile
    when the tensor is large. Blocks: while it reads the tensor. Raises
    TypeError for what is no tensor, ValueError for a wrong `samples`,
    `sampling` or `histogram`.
    """
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"a torch.Tensor, not {type(tensor).__name__}")
    wanted = (
        samples_of(samples), *sampling_of(sampling), histogram_of(histogram)
    )
    setup()
    figures = _tracerd.stats(tensor, *wanted)
    if figures is not None:
        return _with_labels(figures, 0, "")
    plain = resolve(tensor)
    if plain.tensor is not None:
        figures = _tracerd.stats(plain.tensor, *wanted)
    if figures is None:
        figures = _no_figures(plain)
    elif plain.shape is not None:
        figures["shape"] = list(plain.shape)
    return _with_labels(figures, plain.labels, plain.note)


def _with_labels(figures, labels, note):
    """Adds what the figures are not plainly, as records have it."""
    names = [name for name, bit in LABEL.items() if labels & bit]
    dtype = figures["dtype"]
    for part, name in (("complex", "complex"), ("float4", "packed")):
        if dtype.startswith(part) and name not in names:
            names.append(name)
    if note:
        names.append(note)
    if names:
        figures["labels"] = names
    return figures


def _no_figures(plain):
    # a nested tensor has no shape that is a list of numbers
    shape = None if "nested" in plain.note else plain.shape
    n = None if shape is None else math.prod(shape)
    names = (
        "max min mean std l2 absmax absmin nan pinf ninf zero subnormal hash"
    )
    return {
        "dtype": plain.dtype,
        "shape": None if shape is None else list(shape),
        "n": n,
        **dict.fromkeys(names.split()),
        "samples": [],
    }
