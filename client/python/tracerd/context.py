"""Who this process is: rank, world, attempt, run and job, from what the
launcher says. Nothing is imported that the program has not imported."""

import multiprocessing
import os
import re
import sys
import time

from . import _tracerd

RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
LOCAL_RANK = (
    "LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
    "SLURM_LOCALID",
)
LOCAL_WORLD = (
    "LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS",
)

RUN_RULE = (
    "letters, digits, '.', '_' and '-', not starting with '.', at most "
    f"{_tracerd.MAX_RUN} characters"
)
_RUN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
_RUN_NOT = re.compile(r"[^A-Za-z0-9._-]+")


def _number(names, default):
    for name in names:
        text = os.environ.get(name, "")
        if text.strip().isdigit():
            return int(text)
    return default


def _distributed():
    dist = sys.modules.get("torch.distributed")
    try:
        if dist and dist.is_available() and dist.is_initialized():
            return dist
    except Exception:
        pass
    return None


class Context:
    """Numbers and names of this process; see context()."""

    __slots__ = ("attempt", "job", "local_rank", "rank", "run", "world")


def context(run=None):
    """Reads the environment. Raises ValueError when the run's name is not
    legal."""
    me = Context()
    dist = _distributed()
    if dist:
        me.rank, me.world = dist.get_rank(), dist.get_world_size()
    else:
        me.rank, me.world = _number(RANK, 0), _number(WORLD, 1)
    me.local_rank = _number(LOCAL_RANK, me.rank)
    me.attempt = _number(("TORCHELASTIC_RESTART_COUNT",), 0)
    pid, ticks = _launcher(me.world)
    me.job = _job(pid, ticks)
    me.run = (
        run or os.environ.get("TRACERD_RUN")
        or _run_of_nodes(me.world) or _default_run(pid, ticks)
    )
    check_run(me.run)
    return me


def check_run(name):
    """Raises ValueError when the name is not legal."""
    if not _RUN.match(name) or len(name) > _tracerd.MAX_RUN:
        raise ValueError(f"run name {name!r}: allowed are {RUN_RULE}")


def _start_ticks(pid):
    """When a process started, clock ticks after boot; 0 if unknown."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as f:
            # the name in parentheses may hold anything, blanks included
            return int(f.read().rpartition(b")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def _launcher(world):
    """(pid, start) of the process that all ranks of this job come from; of
    this process where there are no ranks."""
    several = (
        world > 1
        or "TORCHELASTIC_RUN_ID" in os.environ
        or multiprocessing.parent_process() is not None
    )
    pid = os.getppid() if several else os.getpid()
    ticks = _start_ticks(pid)
    if not ticks:
        pid = os.getpid()
        ticks = _start_ticks(pid)
    return pid, ticks


def _job(pid, ticks):
    env = os.environ
    elastic = env.get("TORCHELASTIC_RUN_ID", "")
    parts = [elastic or env.get("SLURM_JOB_ID", "")]
    # after an elastic restart the ranks may meet at another port
    if not elastic:
        parts.append(env.get("MASTER_ADDR", ""))
        parts.append(env.get("MASTER_PORT", ""))
    parts += [str(pid), str(ticks)]
    return "/".join(parts)[:512]


def _boot_seconds():
    try:
        with open("/proc/stat") as f:
            for line in f:
                if line.startswith("btime "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return None


def _id_of_nodes(world):
    """What all nodes of a job of several nodes know it by, and no other job;
    "" where there is nothing such, or one node."""
    env = os.environ
    here = _number(LOCAL_WORLD, 0)
    nodes = _number(("SLURM_STEP_NUM_NODES", "SLURM_JOB_NUM_NODES"), 1)
    if world <= here or (not here and nodes < 2):
        return ""
    elastic = env.get("TORCHELASTIC_RUN_ID", "none")
    if elastic != "none":
        return elastic
    if "SLURM_JOB_ID" not in env:
        return ""
    restart = _number(("SLURM_RESTART_COUNT",), 0)
    return (
        env["SLURM_JOB_ID"]
        + (f".{env['SLURM_STEP_ID']}" if "SLURM_STEP_ID" in env else "")
        + (f"-restart{restart}" if restart else "")
    )


def _run_of_nodes(world):
    """Every node must come to the same name: clocks and pids are its own."""
    name = _RUN_NOT.sub("_", _id_of_nodes(world))
    return name and f"{script_name()}-{name}"[:_tracerd.MAX_RUN]


def script_name():
    """The name of the program, in characters that a run may have."""
    path = sys.argv[0] if sys.argv and sys.argv[0] else "python"
    if path in ("-c", "-"):
        path = "python"
    folder, name = os.path.split(path)
    if name == "__main__.py":
        name = os.path.basename(folder)
    name = re.sub(r"\.pyw?\Z", "", name)
    name = _RUN_NOT.sub("_", name).lstrip(".-_")
    return name[:100] or "run"


def _default_run(pid, ticks):
    boot = _boot_seconds()
    if boot is None or not ticks:
        seconds = time.time()
    else:
        seconds = boot + ticks // os.sysconf("SC_CLK_TCK")
    at = time.strftime("%Y%m%d-%H%M%S", time.localtime(seconds))
    return f"{script_name()}-{at}"
