"""python -m tracerd run: traces a training whose script says nothing of it."""

import argparse
import json
import os
import subprocess
import sys

from . import __version__
from .attach import PASSES

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

EXAMPLES = """\
A script runs with this Python; anything else is looked up as a command, and
all Python processes that it starts are traced. What is traced is every model
that reaches a torch optimizer, from then on. The options are those of
tracerd.attach().

examples:
  python -m tracerd run -- train.py --lr 1e-4
  python -m tracerd run --run a --every 10 -- torchrun --nproc-per-node 2 \
train.py
  torchrun --nproc-per-node 2 -m tracerd run -r b --match 'layers.*' train.py
  python -m tracerd run -- -m package.train
"""


def _parser():
    top = argparse.ArgumentParser(prog="python -m tracerd")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser(
        "run",
        help="run a script or a command, traced",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="python -m tracerd run [OPTION...] -- SCRIPT|COMMAND [ARG...]",
    )
    # torchrun reads --run as a short form of its own --run-path
    run.add_argument("-r", "--run", help="name of the run")
    run.add_argument("--samples", type=int, help="elements stored, 0 to 4096")
    run.add_argument("--every", type=int, help="trace every N-th iteration")
    run.add_argument("--iterations", help='ranges such as "1-10,100"')
    run.add_argument("--ranks", help='ranges such as "0,4-7"')
    run.add_argument("--match", help="globs over paths and classes")
    run.add_argument("--ignore", help="globs that are left out")
    run.add_argument("--passes", help="of " + ",".join(PASSES))
    run.add_argument("--histogram", choices=("rows", "exact"))
    run.add_argument("--start", type=int, help="number of the first iteration")
    run.add_argument("target", nargs=argparse.REMAINDER)
    return top


def _command(target):
    """The command line for a script, a module or a program."""
    here = [sys.executable, *subprocess._args_from_interpreter_flags()]
    if target[0] == "-m" or target[0].endswith((".py", ".pyw")):
        return here + target
    return target


def main(arguments=None):
    """Becomes the training; returns only with an exit code for an error."""
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    target = given.pop("target")
    del given["command"]
    if target[:1] == ["--"]:
        target = target[1:]
    if not target or target == ["-m"]:
        parser.error("what is to be run? See python -m tracerd run --help")
    options = {k: v for k, v in given.items() if v is not None}
    environ = dict(os.environ, TRACERD_AUTO=json.dumps(options))
    paths = [SITE, environ.get("PYTHONPATH", "")]
    environ["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    command = _command(target)
    try:
        os.execvpe(command[0], command, environ)
    except OSError as error:
        print(
            f"python -m tracerd: cannot run '{command[0]}': "
            f"{error.strerror.lower()}",
            file=sys.stderr,
        )
        return 2


if __name__ == "__main__":
    sys.exit(main())
