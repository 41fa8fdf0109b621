"""attach(): tracing of a model, and the object that stands for it."""

import itertools
import os
import time

from . import _tracerd, choice, process, zero
from .context import LOCAL_RANK, check_run, context
from .environment import info
from .options import DEFAULT_PASSES, SAMPLES, SPOOL_BYTES, read
from .process import (
    connect,
    failed,
    forget,
    keep,
    of_a_signal,
    warn,
)
from .schedule import contains

USER = _tracerd.PASSES["user"] * 4  # slot of Object.sites


def attach(
    model,
    optimizer=None,
    run=None,
    samples=SAMPLES,
    every=1,
    iterations=None,
    ranks=None,
    match=None,
    ignore=None,
    passes=DEFAULT_PASSES,
    name=None,
    start=1,
    tags=None,
    sampling="equidistant",
    histogram=None,
    threads=None,
    same=True,
    block_ms=0,
    spool=None,
    spool_bytes=SPOOL_BYTES,
    journal_bytes=None,
    depth=None,
    leaf_only=False,
    inside_compile=False,
    input_gradients=True,
):
    """Traces a model from now on; returns a Trace.

    model: a torch.nn.Module, or a list of them. Wrappers (DDP, FSDP, a
        compiled module) may be round it or inside it. Modules that are put
        into it later are traced from its next forward pass or step on.
    optimizer: its step() ends an iteration; also what a framework made of a
        torch optimizer, or a list, of which the first counts. Without one it
        is the first optimizer that holds a parameter of the model, or
        Trace.step().
    run: the name of the run: letters, digits, ".", "_", "-". By default
        $TRACERD_RUN, else the script's name with the date and time at which
        it (under a launcher: the launcher) was started, or where a job has
        several nodes with the id of torchrun (--rdzv-id) or Slurm.
    samples: elements stored of each tensor, 0 to 4096.
    every, iterations: iterations 1, 1+every, ... within ranges are traced:
        "1-10,100", "1-1000:50" (every 50th of them), a number, a range()
        or a list of these. Steps count in the others too.
    ranks: ranges of ranks to trace, such as "0,4-7"; all by default.
    match, ignore: globs over module paths, class names and Class-n.
    depth: modules down to that depth, 0 for the root alone, 1 for those in
        it as well. Those of a list are at depth 1.
    leaf_only: only modules that have no modules in them.
    passes: of "forward", "backward", "grad" (a parameter's gradient as its
        optimizer finds it), "local" (the same as each backward pass of this
        rank makes it, before it is added to others and before ranks
        exchange theirs; label local), "param" (values before the step) and
        "optim" (tensors that optimizers keep for a parameter, after the
        step: optim-<parameter path>.<exp_avg and so on>-<iteration>).
        "user" alone leaves Trace.record(), which works with any of them.
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
        for what the journal has no room for while no daemon takes it; made
        where it is missing, but nothing above it. By default $TRACERD_SPOOL,
        else none; "" is none. What is in it survives this process and an
        orderly restart of the machine.
    spool_bytes: the most that the file of this process may have there; 0 is
        none.
    journal_bytes: room for records on their way to the daemon, in memory; a
        power of two from 1 MiB to 2 GiB, or text such as "64M". 32 MiB by
        default.
    inside_compile: also modules inside of what torch.compile() compiles, by
        operators that the compiler takes into its graphs; attach before the
        first compiled call. Their records are labelled materialized: the
        values are computed, but the compiler would perhaps not have written
        them out, and may fuse otherwise than untraced. With the backend
        aot_eager the training computes the same bits all the same; with
        inductor not in bf16, say, where fused code rounds later. By
        default only what crosses the boundary of the compiled code is
        traced, and the bits are the untraced run's with any backend. Inside
        gradients of inputs are the totals within a graph, nothing is seen
        in what a checkpoint or a loop encloses, nor a tensor of a subclass
        (DTensor). While traced, modules have an attribute _tracerd_number.
    input_gradients: also the gradients of inputs, by module (its own exact
        share for modules that have none in them, else the total). False
        leaves the gradients of outputs alone in the backward pass, at about
        half the cost of a hook.

    Where an argument is left at its default, the environment decides:
    TRACERD_RUN, TRACERD_EVERY, TRACERD_ITERATIONS, TRACERD_RANKS,
    TRACERD_MATCH, TRACERD_IGNORE, TRACERD_DEPTH, TRACERD_LEAF_ONLY,
    TRACERD_PASSES, TRACERD_SAMPLES, TRACERD_THREADS, TRACERD_JOURNAL_BYTES,
    TRACERD_SPOOL, TRACERD_INSIDE_COMPILE and TRACERD_INPUT_GRADIENTS.
    TRACERD_DISABLE=1 turns tracing off.
    Where all that leaves nothing to trace, a warning says so, with the
    nearest names, and there is no run.
    With a gradient scaler gradients of the backward pass are labelled
    scaled, and its scale is recorded at each step as user-grad_scale-COUNT.
    Kept with the run (v_run.info) are versions, devices, switches that
    change numbers, the command line, the commit of the working directory
    and tags, without what looks like a secret.
    Rank, world size and restart number come from the launcher (torchrun,
    mpirun, srun).

    Objects are numbered in the order of model.modules(), whether they are
    called or not. A call of module.forward() itself, or of a function with
    a module's weights, goes round all hooks and is not seen.

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
    options = read(
        samples, every, iterations, ranks, match, ignore, passes, name, start,
        tags, sampling, histogram, threads, same, block_ms, spool,
        spool_bytes, journal_bytes, depth, leaf_only, inside_compile,
        input_gradients,
    )
    model = _module(model)
    run = run or os.environ.get("TRACERD_RUN")
    if run:
        check_run(run)
    trace = Trace()
    if options.disabled:
        return trace
    try:
        trace._begin(model, optimizer, context(run), options)
    except Exception as error:
        if of_a_signal(error):
            raise
        trace.close()
        warn(f"not tracing: {type(error).__name__}: {error}")
    return trace


def _module(model):
    import torch

    for m in model if isinstance(model, (list, tuple)) else [model]:
        if not isinstance(m, torch.nn.Module):
            raise TypeError(
                f"model must be a torch.nn.Module, not {type(m).__name__}"
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
        self._tree = None
        self._steps = None
        self._told = False
        self._users = {}  # name -> (site, count)

    def _begin(self, model, optimizer, me, options):
        if options.threads is not None:
            _tracerd.threads(options.threads)
        speaks = _speaks(me, options.ranks)
        if not choice.is_idle(me, options, speaks) and contains(
            options.ranks, me.rank
        ):
            self._open(model, optimizer, me, options, speaks)

    def _open(self, model, optimizer, me, options, speaks):
        from . import tensors
        from .hooks import Recorder
        from .steps import Steps, collectives
        from .tree import Tree

        tensors.setup()
        tree = Tree(model, options)
        if choice.leaves_none(tree.rows, options, speaks):
            return
        things = [row.thing for row in tree.rows if not row.wrapper]
        self._connection = connect(
            me, info(tree.top, me, options.tags, speaks), options.figures,
            options.policy,
        )
        self._connection.speaks = speaks
        self._connection.client.watch(collectives)
        self._recorder = Recorder(
            self._connection, options.samples, options.passes,
            options.schedule, options.start, things,
            options.input_gradients,
        )
        self._recorder.open_devices(tree.top)
        keep(self)
        self._tree = tree
        tree.place(self._recorder)
        self._steps = Steps(
            self._recorder, tree, options, _steppable(optimizer, model),
            _others(optimizer),
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
            with process.unseen():
                self._steps.step()
            self._connection.look()
        except Exception as error:
            failed(self._recorder, error)

    def record(self, name, tensor):
        """Records any tensor under a name of yours, as user-NAME-COUNT. A
        number, a list of numbers or a numpy array will do too.

        Threads: any. Blocks: no. Raises nothing; what cannot be recorded
        is counted and told once."""
        recorder = self._recorder
        if recorder is None or recorder.closed:
            return
        try:
            with process.unseen():
                _record_user(recorder, self._users, str(name), tensor)
        except Exception as error:
            failed(recorder, error)

    def flush(self, seconds=10.0):
        """Waits until the daemon has stored what was recorded; True if it
        has. Blocks: up to the time given. Raises nothing."""
        if self._connection is None:
            return True
        end = time.monotonic() + seconds
        try:
            if not self._recorder.wait(seconds):
                return False
            left = max(0, int((end - time.monotonic()) * 1000))
            return self._connection.client.flush(left) == 0
        except Exception as error:
            failed(self._recorder, error, 0)
            return False

    def close(self):
        """Takes every hook away and says goodbye to the daemon. Done at exit
        too. Blocks: 100 ms, twice that where no daemon ever answered. Raises
        nothing."""
        forget(self)
        connection, self._connection = self._connection, None
        if self._recorder is not None and not self._recorder.closed:
            if self._tree and connection is not None and connection.speaks:
                self._quietly(self._tree.tell_uncalled)
            self._quietly(self._recorder.close)
        self._quietly(self._disown)
        if connection is not None:
            self._quietly(connection.release)

    def _disown(self):
        """Ends tracing without a word to the client (it is not ours in a
        forked child)."""
        if self._recorder is not None:
            self._recorder.closed = True
            self._quietly(self._recorder.disown)
        if self._steps is not None:
            self._quietly(self._steps.close)
        if self._tree is not None:
            self._quietly(self._tree.close)

    def _quietly(self, end):
        """Calls what ends a part; the others are to be ended, too."""
        try:
            end()
        except Exception as error:
            if of_a_signal(error):
                raise
            if not self._told and not getattr(self._recorder, "_told", False):
                self._told = True
                warn(f"a part was not ended ({type(error).__name__}: {error})")

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()


def _steppable(optimizer, model):
    """The torch optimizer inside what a framework made of it, or one of
    DeepSpeed's round it."""
    optimizer = zero.of_model(model) or optimizer
    for _ in range(8):
        if isinstance(optimizer, (list, tuple)):
            optimizer = optimizer[0] if optimizer else None
        own = getattr(optimizer, "__dict__", {})
        if (
            optimizer is None or "_optimizer_step_pre_hooks" in own
            or zero.is_one(optimizer)
        ):
            return optimizer
        inner = _inside(optimizer)
        if inner is None or inner is optimizer:
            warn(
                f"{type(optimizer).__name__} has no step hooks; iterations "
                "are counted by the first optimizer that steps, or by step()"
            )
        optimizer = inner
    return None


def _others(optimizer):
    """The torch optimizers of a list, but for the one that counts."""
    if not isinstance(optimizer, (list, tuple)):
        return []
    return [
        o for o in optimizer[1:]
        if "_optimizer_step_pre_hooks" in getattr(o, "__dict__", {})
    ]


def _inside(optimizer):
    for name in ("chained_optimizers", "optimizer", "_optimizer"):
        try:
            inner = getattr(optimizer, name, None)
        except Exception:
            continue  # a property of one that holds several
        if inner is not None:
            return inner
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
        if not name:
            raise ValueError("record() needs a name")
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
        return torch.tensor(value, dtype=torch.float64, device="cpu")
    if isinstance(value, (int, complex)) or hasattr(value, "__array__"):
        return torch.as_tensor(value, device="cpu")
    raise TypeError(
        f"record() takes a tensor or numbers, not {type(value).__name__}"
    )
