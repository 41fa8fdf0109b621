"""python -m tracerd run: traces a training whose script says nothing of it."""

import argparse
import json
import os
import subprocess
import sys

from . import __version__
from .context import check_run
from .options import PASSES, bytes_of, read, switch_of

SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")

EXAMPLES = """\
A script runs with this Python; anything else is looked up as a command, and
all Python processes that it starts are traced. What is traced is every model
that reaches a torch optimizer, from then on. The options are those of
tracerd.attach(); of the environment's TRACERD_... those that are not given.

examples:
  python -m tracerd run -- train.py --lr 1e-4
  python -m tracerd run --run a --every 10 -- torchrun --nproc-per-node 2 \
train.py
  torchrun --nproc-per-node 2 -m tracerd run -r b --match 'layers.*' train.py
  python -m tracerd run -- -m package.train
"""


def _tags(text):
    if text.lstrip().startswith(("{", "[", '"')):
        return json.loads(text)
    pairs = [p.partition("=") for p in text.split(",") if p.strip()]
    if not all(equal for _, equal, _ in pairs):
        raise ValueError
    return {key.strip(): value for key, _, value in pairs}


def _sampling(text):
    rule, colon, number = text.partition(":")
    return [rule, int(number)] if colon else rule


def _switch(text):
    return switch_of(text, "")


def _bytes(text):
    return bytes_of(text, "")


# what argparse calls them where it refuses one
_tags.__name__ = "tags"
_sampling.__name__ = "sampling"
_switch.__name__ = "switch"
_bytes.__name__ = "size"


def _check(options):
    """Raises ValueError or TypeError for what attach() would refuse."""
    read(**{k: v for k, v in options.items() if k != "run"})
    run = options.get("run") or os.environ.get("TRACERD_RUN")
    if run:
        check_run(run)


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
    run.add_argument("--name", help="put before the module paths")
    run.add_argument("--tags", type=_tags, help="JSON, or KEY=VALUE,...")
    run.add_argument("--start", type=int, help="number of the first iteration")
    what = run.add_argument_group("what is traced")
    what.add_argument("--every", type=int, help="every N-th iteration")
    what.add_argument("--iterations", help='ranges: "1-10,100-200:10"')
    what.add_argument("--ranks", help='ranges such as "0,4-7"')
    what.add_argument("--match", help="globs over paths and classes")
    what.add_argument("--ignore", help="globs that are left out")
    what.add_argument("--depth", type=int, help="0: only the whole model")
    what.add_argument(
        "--leaf-only", action="store_const", const=True,
        help="only modules without modules in them",
    )
    what.add_argument("--passes", help="of " + ",".join(PASSES))
    what.add_argument(
        "--no-input-gradients", dest="input_gradients",
        action="store_const", const=False,
        help="in the backward pass only gradients of outputs",
    )
    what.add_argument(
        "--inside-compile", action="store_const", const=True,
        help="also modules inside of compiled code",
    )
    how = run.add_argument_group("what is recorded of a tensor")
    how.add_argument("--samples", type=int, help="elements, 0 to 4096")
    how.add_argument(
        "--sampling", type=_sampling, metavar="RULE",
        help="equidistant, every:DISTANCE or random:SEED",
    )
    how.add_argument("--histogram", choices=("rows", "exact"))
    how.add_argument(
        "--same", type=_switch, metavar="YES|NO",
        help="no: read again what was not written to",
    )
    how.add_argument("--threads", type=int, help="on one large tensor")
    way = run.add_argument_group("on the way to the daemon")
    way.add_argument("--journal-bytes", metavar="SIZE", help="such as 64M")
    way.add_argument("--block-ms", type=int, help="wait for room so long")
    way.add_argument("--spool", metavar="DIR", help="for what has no room")
    way.add_argument(
        "--spool-bytes", type=_bytes, metavar="SIZE", help="such as 4G"
    )
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
    try:
        _check(options)
    except (ValueError, TypeError) as error:
        parser.error(str(error))
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
