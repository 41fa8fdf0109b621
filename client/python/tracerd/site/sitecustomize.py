"""Found by every Python that `python -m tracerd run` starts: waits until the
program imports torch.optim, then has its optimizers looked at.

Whatever goes wrong here is no business of the program's.
"""

import importlib.machinery
import os
import sys

_NAME = "torch.optim.optimizer"


class _Loader:
    """Loads the module as its own loader does, and then calls us."""

    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)

    def create_module(self, spec):
        return self._loader.create_module(spec)

    def exec_module(self, module):
        self._loader.exec_module(module)
        try:
            from tracerd import auto

            auto.watch(module.Optimizer)
        except Exception as error:
            print(f"tracerd: not tracing: {error}", file=sys.stderr)


class _Finder:
    """Stands before the other finders, for the one module."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != _NAME:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            sys.meta_path.remove(_Finder)
            spec.loader = _Loader(spec.loader)
        return spec


def _next():
    """Runs the sitecustomize that stands behind this one, if any."""
    here = os.path.dirname(os.path.abspath(__file__))
    paths = [p for p in sys.path if os.path.abspath(p or ".") != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", paths)
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(sys.modules[__name__])


if os.environ.get("TRACERD_AUTO"):
    sys.meta_path.insert(0, _Finder)
_next()
