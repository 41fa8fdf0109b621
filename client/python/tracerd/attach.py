"""attach(): tracing of a model, and the object that stands for it."""

import itertools
import os
import time
import weakref

from . import _tracerd
from .context import LOCAL_RANK, context, info
from .process import Figures, Policy, connect, forget, keep, warn
from .schedule import Schedule, contains, number_of, ranges
from .tensors import histogram_of, samples_of, sampling_of

PASSES = ("forward", "backward", "grad", "local", "param")
USER = _tracerd.PASSES["user"] * 4  # slot of Object.sites


def attach(
    model,
    optimizer=None,
    run=None,
    samples=16,
    every=1,
    iterations=None,
    ranks=None,
    match=None,
    ignore=None,
    passes=("forward", "backward", "grad"),
    name=None,
    start=1,
    tags=None,
    sampling="equidistant",
    histogram=None,
    threads=None,
    same=True,
    block_ms=0,
    spool=None,
    spool_bytes=1 << 30,
):
    """Traces a model from now on; returns a Trace.

    model: a torch.nn.Module, or a list of them. Wrappers (DDP, FSDP, a
        compiled module) may be round it or inside it.
    optimizer: its step() ends an iteration. Without one it is the first
        optimizer that holds a parameter of the model, or Trace.step().
    run: the name of the run: letters, digits, ".", "_", "-". By default
        $TRACERD_RUN, else the script's name with the date and time at which
        it (under a launcher: the launcher) was started.
    samples: elements stored of each tensor, 0 to 4096.
    every, iterations: iterations 1, 1+every, ... within ranges such as
        "1-10,100" are traced. Steps count in the others too.
    ranks: ranges of ranks to trace, such as "0,4-7"; all by default.
    match, ignore: globs over module paths, class names and Class-n.
    passes: of "forward", "backward", "grad" (a parameter's gradient as the
        optimizer finds it), "local" (the same as each backward pass of this
        rank makes it, before it is added to others and before ranks
        exchange theirs; label local) and "param".
    name: put before the module paths, to tell two models apart.
    start: number of the first iteration, for a resumed training.
    tags: what is to be kept with the run (anything JSON can hold).
    sampling: which elements are stored: "equidistant", ("every", distance)
        or ("random", seed); see stats().
    histogram: counts of exponents, "rows" or "exact" (see stats()); True
        means "rows". By default none.
    threads: how many may work on one tensor of more than 4 MiB, the
        training's one included; 1 by default. For the whole process.
    same: a large tensor that is seen again and was not written to, such as
        the output of a layer that is the input of the next, is not read
        again: its record repeats the figures, labelled same. Writes are
        seen by torch's version counter, by whether a collective ran, and
        by some 80 places of the memory that are compared; and nothing is
        remembered beyond a forward or a backward pass. Where code writes
        to single elements behind torch's back within one (raw pointers,
        x.data, numpy and dlpack views, other processes, collectives that
        have not ended) and is to be caught at it, say same=False.
    block_ms: how long a hook waits for room when the journal is full (all
        of the training waits with it). By default it never does, and what
        finds no room is counted as lost. A wait in vain is not repeated
        before a daemon has taken something.
    spool: a directory on a disk, of yours and with nobody else writing to it,
        for what the journal has no room for while no daemon takes it. By
        default $TRACERD_SPOOL, else none; "" is none. What is in it survives
        this process and an orderly restart of the machine.
    spool_bytes: the most that the file of this process may have there; 0 is
        none.

    Where an argument is left at its default, the environment decides:
    TRACERD_RUN, TRACERD_EVERY, TRACERD_ITERATIONS, TRACERD_RANKS,
    TRACERD_MATCH, TRACERD_THREADS and TRACERD_SPOOL. TRACERD_DISABLE=1 turns
    tracing off.
    Rank, world size and restart number come from the launcher (torchrun,
    mpirun, srun).

    Recorded are tensors of any shape, dtype and device. On the CPU they are
    read in place, within the hook, before anything can change them; on
    other devices the reading is queued where the training's own work is,
    and no hook waits for it. The training computes the same bits with and
    without tracing.

    Threads: call it in one; the model may run in any. Blocks: for creating
    the journal (a file in memory), never for the daemon, nor does a hook
    unless block_ms says so. Raises ValueError
    or TypeError for wrong arguments and nothing else: when tracing itself
    fails, it warns and the training goes on untraced.
    """
    environ = os.environ
    if every == 1 and environ.get("TRACERD_EVERY"):
        every = number_of(environ["TRACERD_EVERY"], "TRACERD_EVERY")
    for patterns, what in ((match, "match"), (ignore, "ignore")):
        _check_patterns(patterns, what)
    schedule = Schedule(every, iterations or environ.get("TRACERD_ITERATIONS"))
    wanted_ranks = ranges(
        environ.get("TRACERD_RANKS") if ranks is None else ranks, "ranks"
    )
    passes = _passes(passes)
    samples = samples_of(samples)
    figures = Figures(
        sampling_of(sampling), histogram_of(histogram), same
    )
    _threads(threads, environ.get("TRACERD_THREADS"))
    if not isinstance(same, bool):
        raise ValueError(f"same={same!r}: expected True or False")
    policy = _policy(block_ms, spool, spool_bytes)
    start = number_of(start, "start")
    model = _module(model)
    me = context(run)
    if environ.get("TRACERD_DISABLE", "") not in ("", "0"):
        return Trace()
    if not contains(wanted_ranks, me.rank):
        return Trace()
    trace = Trace()
    try:
        trace._open(
            model, optimizer, me, samples, schedule, passes, name or "",
            start, tags, match or environ.get("TRACERD_MATCH"), ignore,
            figures, policy,
        )
        trace._connection.speaks = _speaks(me, wanted_ranks)
    except Exception as error:
        trace.close()
        warn(f"not tracing: {type(error).__name__}: {error}")
    return trace


def _check_patterns(patterns, what):
    if patterns is None or isinstance(patterns, str):
        return
    if not isinstance(patterns, (list, tuple, set)) or not all(
        isinstance(p, str) for p in patterns
    ):
        raise TypeError(f"{what} must be a glob or a list of globs")


def _threads(asked, environ):
    """Sets how many threads may work on one tensor."""
    if asked is None and not environ:
        return
    number = asked if asked is not None else environ.strip()
    what = "threads" if asked is not None else "TRACERD_THREADS"
    if isinstance(number, str) and number.isascii() and number.isdigit():
        number = int(number)
    if (
        not isinstance(number, int)
        or isinstance(number, bool)
        or not 1 <= number <= _tracerd.MAX_THREADS
    ):
        raise ValueError(
            f"{what}={number!r}: expected 1 to {_tracerd.MAX_THREADS}"
        )
    _tracerd.threads(number)


def _policy(block_ms, spool, spool_bytes):
    for what, number, most in (
        ("block_ms", block_ms, (1 << 32) - 1),
        ("spool_bytes", spool_bytes, (1 << 63) - 1),
    ):
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or not 0 <= number <= most
        ):
            raise ValueError(f"{what}={number!r}: expected 0 to {most}")
    path = os.fspath(spool) if isinstance(spool, os.PathLike) else spool
    if path is not None and (not isinstance(path, str) or "\0" in path):
        raise ValueError(f"spool={spool!r}: expected a directory")
    return Policy(block_ms, path, spool_bytes)


def _passes(passes):
    if isinstance(passes, str):
        passes = [p.strip() for p in passes.split(",")]
    passes = frozenset(passes)
    if not passes <= set(PASSES):
        raise ValueError(f"passes must be of {', '.join(PASSES)}")
    return passes


def _module(model):
    import torch

    if isinstance(model, (list, tuple)):
        model = torch.nn.ModuleList(model)
    if not isinstance(model, torch.nn.Module):
        raise TypeError(
            f"model must be a torch.nn.Module, not {type(model).__name__}"
        )
    return model


def _speaks(me, wanted_ranks):
    """One process of a machine tells what concerns the machine."""
    first = me.rank - me.local_rank
    if not any(n in os.environ for n in LOCAL_RANK):
        first = 0
    while first < me.rank and not contains(wanted_ranks, first):
        first += 1
    return me.rank == first


class Trace:
    """A traced model. All methods may be called at any time, also after
    close() and where tracing is off; they then do nothing."""

    def __init__(self):
        self._connection = None
        self._recorder = None
        self._steps = None
        self._handles = []
        self._users = {}  # name -> (site, count)

    def _open(
        self, model, optimizer, me, samples, schedule, passes, name, start,
        tags, match, ignore, figures, policy,
    ):
        from . import names, tensors
        from .hooks import Recorder
        from .steps import Steps, collectives

        tensors.setup()
        rows = names.walk(model, name)
        things = [row.thing for row in rows if not row.wrapper]
        _select(names, things, names.globs(match), names.globs(ignore))
        self._connection = connect(me, info(model, tags), figures, policy)
        self._connection.client.watch(collectives)
        self._recorder = Recorder(
            self._connection, samples, passes, schedule, start, things
        )
        self._recorder.open_devices(model)
        keep(self)
        if passes & {"forward", "backward", "local"}:
            self._place(names, rows)
        owners = [
            (weakref.ref(row.module), row.thing)
            for row in rows
            if row.thing is not None
        ]
        self._steps = Steps(
            self._recorder, owners, passes, _steppable(optimizer)
        )

    def _place(self, names, rows):
        """Puts the hooks of a model in place."""
        from .hooks import PostHook, PreHook

        recorder = self._recorder
        compiled = [r.raw for r in rows if names.is_compiled(r.module)]
        refused = []
        inside = recorder.forward or recorder.backward
        for row in rows:
            if row.thing is None:
                continue
            edge = row.raw in compiled
            if row.wrapper and not edge:
                continue
            if any(_below(row.raw, c) for c in compiled):
                continue  # compiled code runs no hooks put on later
            if recorder.root is None:
                recorder.root = row.thing
            elif not row.thing.wanted or not inside:
                continue
            try:
                # the root's also where it is not wanted: they count
                self._handles.append(
                    row.module.register_forward_pre_hook(
                        PreHook(recorder, row.thing), with_kwargs=True
                    )
                )
                self._handles.append(
                    row.module.register_forward_hook(
                        PostHook(recorder, row.thing),
                        with_kwargs=True,
                        always_call=True,
                    )
                )
            except RuntimeError:
                refused.append(row.thing.path or row.thing.name)
        if refused:
            warn(
                "these modules take no hooks (torch.jit.script?) and are "
                "not traced: " + ", ".join(refused[:8])
            )
        if compiled:
            warn(
                "of a compiled module the inputs, outputs and gradients are "
                "traced, what happens inside is not"
            )

    @property
    def run(self):
        """The run's name as the daemon gave it, or as asked for while none
        has answered; "" where tracing is off."""
        if self._connection is None:
            return ""
        return self._connection.client.run_name()

    @property
    def iteration(self):
        """The iteration that runs now, from 1; 0 where tracing is off."""
        return self._recorder.iteration if self._recorder else 0

    @property
    def counters(self):
        """What became of the records of this process's run: a dict of
        submitted, committed, durable, lost (by cause), connects,
        journal_used_bytes, journal_bytes, connected, last_error,
        blocked_ns, spool_used_bytes and spool_error (why there is no spool,
        or why it took nothing when it was tried last)."""
        if self._connection is None:
            return {}
        return self._connection.client.counters()

    def saved(self):
        """What was not read again, since it was known (see `same`): a dict
        of tensors and bytes."""
        if self._connection is None:
            return {"tensors": 0, "bytes": 0}
        tensors, size = self._connection.client.saved()
        return {"tensors": tensors, "bytes": size}

    def step(self):
        """The end of an iteration, where no optimizer tells it. From the
        first call on, only these calls count.

        Records the gradients that the parameters hold now. Threads: the
        training's. Blocks: no. Raises nothing."""
        if self._steps is None or self._recorder.closed:
            return
        try:
            self._steps.step()
            self._connection.look()
        except Exception as error:
            self._recorder.failed(error)

    def record(self, name, tensor):
        """Records any tensor under a name of yours, as user-NAME-COUNT. A
        number, a list of numbers or a numpy array will do too.

        Threads: any. Blocks: no. Raises nothing; what cannot be recorded
        is counted and told once."""
        recorder = self._recorder
        if recorder is None or recorder.closed:
            return
        try:
            _record_user(recorder, self._users, str(name), tensor)
        except Exception as error:
            recorder.failed(error)

    def flush(self, seconds=10.0):
        """Waits until the daemon has stored what was recorded; True if it
        has. Blocks: up to the time given."""
        if self._connection is None:
            return True
        end = time.monotonic() + seconds
        if not self._recorder.wait(seconds):
            return False
        left = max(0, int((end - time.monotonic()) * 1000))
        return self._connection.client.flush(left) == 0

    def close(self):
        """Takes every hook away and says goodbye to the daemon. Done at exit
        too. Blocks: 100 ms, twice that where no daemon ever answered."""
        forget(self)
        connection = self._connection
        if self._recorder is not None and not self._recorder.closed:
            try:
                self._recorder.close()
            except Exception as error:
                self._recorder.failed(error)
        self._disown()
        if connection is not None:
            self._connection = None
            connection.release()

    def _disown(self):
        """Ends tracing without a word to the client (it is not ours in a
        forked child)."""
        if self._recorder is not None:
            self._recorder.disown()
        if self._steps is not None:
            self._steps.close()
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def _below(raw, compiled):
    return raw != compiled and (
        not compiled or raw.startswith(compiled + ".")
    )


def _select(names, things, match, ignore):
    """Marks the objects that are wanted; tells of globs that fit none."""
    for patterns, what in ((match, "match"), (ignore, "ignore")):
        for pattern, near in names.idle_patterns(things, patterns):
            hint = f"; nearest: {', '.join(near)}" if near else ""
            warn(f"{what}={pattern!r} fits no module{hint}")
    for thing in things:
        thing.wanted = (
            not match or names.matches(thing, match)
        ) and not names.matches(thing, ignore)


def _steppable(optimizer):
    """The torch optimizer inside what a framework made of it."""
    for _ in range(8):
        if optimizer is None or hasattr(optimizer, "register_step_pre_hook"):
            return optimizer
        inner = getattr(optimizer, "optimizer", None)
        if inner is None or inner is optimizer:
            warn(
                f"{type(optimizer).__name__} has no step hooks; iterations "
                "are counted by the first optimizer that steps, or by step()"
            )
        optimizer = inner
    return None


class _Now:
    __slots__ = ("iteration", "microbatch", "step")

    def __init__(self, step, recorder):
        self.step = step
        self.iteration = recorder.iteration
        self.microbatch = recorder.microbatch


def _record_user(recorder, users, name, tensor):
    from .names import Object

    thing = users.get(name)
    if thing is None:
        thing = users[name] = Object("", 0, "")
        thing.count = itertools.count(1)
    when = _Now(next(thing.count), recorder)
    if recorder.active:
        site = thing.sites.get((USER, 0, name))
        if site is None:
            site = recorder.site(thing, USER, 0, name)
        recorder.put_once(site, when, 0, _as_tensor(tensor))


def _as_tensor(value):
    import torch

    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, (float, list, tuple)):
        return torch.tensor(value, dtype=torch.float64)
    if isinstance(value, (int, complex)) or hasattr(value, "__array__"):
        return torch.as_tensor(value)
    raise TypeError(
        f"record() takes a tensor or numbers, not {type(value).__name__}"
    )
