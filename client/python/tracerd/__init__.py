"""Traces the tensors of a training run.

    import tracerd
    t = tracerd.attach(model, optimizer)

Every forward input and output, every gradient that passes between modules
and every parameter gradient is described (shape, dtype, range, mean, spread,
counts, hash, samples) and handed to tracerd, the daemon. Nothing is copied
to it but those figures; the training computes the same bits with and without.
"""

from ._tracerd import version as __version__
from .attach import attach
from .compare import compare
from .load import load
from .tensors import stats

__all__ = ["__version__", "attach", "compare", "load", "stats"]
