"""Errors of the tracer itself: the training never sees them. They are told
once and counted."""

import dataclasses
import importlib
import inspect
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import programs
import tracerd
from recording import Block, pick
from seen import bits, runs, steps


class Model(nn.Module):
    """A bit of everything that is recorded."""

    def __init__(self):
        super().__init__()
        self.block = Block()
        self.again = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        x = checkpoint(self.again, x, use_reentrant=False)
        x = self.block(x)
        return {"y": self.head(x), "x": (x, torch.ones(3).to_sparse())}


PASSES = ("forward", "backward", "grad", "local", "param")


def train(traced=False, run=None, around=None, model=Model):
    """What is computed in three iterations, and the Trace."""
    torch.manual_seed(3)
    net = model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    trace = None
    if traced:
        trace = tracerd.attach(net, optimizer, run=run, passes=PASSES)
    try:
        inputs = [torch.randn(3, 2) for _ in range(3)]
        if around:
            around(trace)
        losses = steps(
            net, optimizer, inputs, lambda out: out["y"].pow(2).sum()
        )
        if trace:
            trace.record("user", torch.ones(2))
            trace.record("number", 3)
    finally:
        if trace:
            trace.flush(1)
            counters = trace.counters
            trace.close()
            trace.last = counters
    return bits([losses, dict(net.state_dict()), torch.get_rng_state()]), trace


@pytest.fixture(scope="module")
def plain():
    return train()[0]


@pytest.fixture
def told():
    """The tracer's warnings."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield lambda: [
            str(w.message) for w in seen if "tracerd" in str(w.message)
        ]


# ---- a bug anywhere ----

# What torch and the user call, what looks at the user's arguments, and what
# the others tell of errors.
OUTERMOST = {
    "__call__", "__init__", "__new__", "__reduce__", "__deepcopy__",
    "__enter__", "__exit__", "_check_patterns", "_module", "_passes",
    "_policy", "_quietly", "_threads", "after", "attach", "before", "close",
    "close_all", "counters", "failed", "flush", "forget", "iteration", "keep",
    "main", "number_of", "record", "run", "saved", "scaler_ended", "step",
    "stats", "warn",
}
# commands, and checks of arguments, whose errors are for the user
ASIDE = {"__init__", "__main__", "auto", "options", "schedule"}
# where an error costs a fact about the run, and no record
FACTS = {"context", "coordinates", "environment", "redact"}


def callables():
    """(owner, name) of the functions and methods behind the hooks."""
    here = Path(importlib.import_module("tracerd.hooks").__file__).parent
    rooms = [
        importlib.import_module(f"tracerd.{path.stem}")
        for path in sorted(here.glob("*.py")) if path.stem not in ASIDE
    ]
    found = []
    for room in rooms:
        for name, thing in sorted(vars(room).items()):
            mine = getattr(thing, "__module__", "") == room.__name__
            if room.__name__.partition(".")[2] in FACTS and name[0] == "_":
                continue  # all behind one guard
            if inspect.isfunction(thing) and mine and name not in OUTERMOST:
                found.append((room, name))
            elif inspect.isclass(thing) and mine:
                found += [
                    (thing, n) for n, f in sorted(vars(thing).items())
                    if inspect.isfunction(f) and n not in OUTERMOST
                ]
    return found


WHERE = callables()


def title(where):
    owner, name = where
    owner = getattr(owner, "__qualname__", owner.__name__.rpartition(".")[2])
    return f"{owner}.{name}"


def room_of(owner):
    name = owner.__module__ if inspect.isclass(owner) else owner.__name__
    return name.partition(".")[2]


@pytest.fixture(scope="module")
def sane(room):
    """How many records there are where nothing is broken."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACERD_DIR", room.dir)
        return train(True, f"run{next(runs)}")[1].last["submitted"]


@pytest.mark.parametrize("where", WHERE, ids=title)
def test_a_bug(room, monkeypatch, fresh, plain, sane, where):
    """Once (out of memory), or always. The training's bits are its own, and
    where records are missing one warning says so."""
    monkeypatch.setenv("TRACERD_DIR", room.dir)
    owner, name = where
    original = getattr(owner, name)
    for error in (ZeroDivisionError, MemoryError):
        if error is MemoryError and room_of(owner) in FACTS:
            continue
        raised = []

        def broken(*args, error=error, raised=raised, **kwargs):
            if error is MemoryError and raised:
                return original(*args, **kwargs)
            raised.append(1)
            raise error("on purpose")

        with monkeypatch.context() as patch, warnings.catch_warnings(
            record=True
        ) as seen:
            warnings.simplefilter("always")
            patch.setattr(owner, name, broken)
            got, trace = train(True, f"run{next(runs)}")
        told = [str(w.message) for w in seen if "tracerd" in str(w.message)]
        assert got == plain
        assert len(told) <= 1, told
        records = trace.last.get("submitted", 0)
        lost = sum(trace.last.get("lost", {}).values())
        assert told or (records >= sane and not lost)
        if told:
            assert error.__name__ in told[0]


def test_losses_are_in_the_status(room, monkeypatch, fresh, plain, told):
    monkeypatch.setenv("TRACERD_DIR", room.dir)
    from tracerd import tensors

    def lost():
        out = room.tracectl("status").stdout.splitlines()
        (n,) = [line.split()[1] for line in out if line[:5] == "lost "]
        return int(n)

    before = lost()

    def wrong(*args, **kwargs):
        raise ZeroDivisionError("on purpose")

    # sparse tensors, sites and notes come this way
    where = [(o, n) for o, n in WHERE if n in ("resolve", "_resolve_one")]
    assert where and tensors
    for owner, name in where:
        monkeypatch.setattr(owner, name, wrong)
    for module in ("hooks", "attach", "steps"):
        if hasattr(sys.modules[f"tracerd.{module}"], "resolve"):
            monkeypatch.setattr(
                sys.modules[f"tracerd.{module}"], "resolve", wrong
            )
    got, trace = train(True, f"run{next(runs)}")
    assert got == plain and len(told()) == 1
    assert trace.last["lost"] == {"error": 3}  # one sparse tensor a step
    room.wait(lambda: lost() >= before + 3)
    assert lost() == before + 3


def without_memory(n, many, call, *args):
    """The call, in which some allocations of Python's fail from the nth on."""
    testcapi = pytest.importorskip("_testcapi")
    testcapi.set_nomemory(n, n + many)
    try:
        return call(*args)
    finally:
        testcapi.remove_mem_hooks()


@pytest.mark.parametrize("many", [1, 4])
def test_memory_runs_out_anywhere_in_the_hooks(look, many):
    """What Python itself does without any for good is its own affair."""
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    layer = model[0]
    told = []
    with look.trace(model, warns=any) as t:
        (pre,) = layer._forward_pre_hooks.values()
        (post,) = layer._forward_hooks.values()
        for n in range(120):
            x = torch.ones(1, 2, requires_grad=True) * 1
            told.append(without_memory(n, many, pre, layer, (x,), {}))
            y = layer.forward(x)
            told.append(without_memory(n, many, post, layer, (x,), {}, y))
            for hook in list((y._backward_hooks or {}).values()):
                told.append(without_memory(n, many, hook, torch.ones(1, 2)))
            y.sum().backward()
        assert t.counters["lost"]["error"] > 0
        before = t.counters["submitted"]
        model(torch.ones(1, 2)).sum().backward()
        assert t.counters["submitted"] == before + 10
    assert len(told) > 300 and not any(told)


# ---- what is passed in is not what it seems ----


class Liar(torch.Tensor):
    """Answers every question with nonsense."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return "nonsense"


class Refuses(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise ValueError("ask somebody else")


class Stranger:
    """No tensor at all, but as torch.overrides allows."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise ValueError("ask somebody else")

    @property
    def shape(self):
        raise ValueError("no shape")


class Lazy:
    def __getattribute__(self, name):
        if name.startswith("__") and name != "__torch_function__":
            return object.__getattribute__(self, name)
        raise ValueError(name)


@dataclasses.dataclass
class Breaks:
    a: object
    b: object

    def __getattribute__(self, name):
        if name == "a":
            raise ValueError("not yet")
        return object.__getattribute__(self, name)


class Endless(list):
    def __len__(self):
        raise ValueError

    def __getitem__(self, at):
        return self


ODD = {
    "liar": lambda: torch.ones(2).as_subclass(Liar),
    "refuses": lambda: torch.ones(2).as_subclass(Refuses),
    "stranger": Stranger,
    "lazy": Lazy,
    "breaks": lambda: Breaks(1, torch.ones(2)),
    "endless": lambda: Endless([torch.ones(2)]),
    "meta": lambda: torch.empty(2, device="meta"),
    "sparse": lambda: torch.eye(2).to_sparse(),
    "csr": lambda: torch.eye(2).to_sparse_csr(),
    "bsr": lambda: torch.eye(2).to_sparse_bsr((1, 1)),
    "mkldnn": lambda: torch.ones(2, 2).to_mkldnn(),
    "quantized": lambda: torch.quantize_per_tensor(
        torch.ones(2), 0.1, 0, torch.quint8
    ),
    "per channel": lambda: torch.quantize_per_channel(
        torch.ones(2, 2), torch.ones(2), torch.zeros(2), 0, torch.qint8
    ),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged
    ),
    "bits": lambda: torch.zeros(2, dtype=torch.bits8),
    "uint16": lambda: torch.zeros(2, dtype=torch.uint16),
    "uint64": lambda: torch.full((2,), 2**63, dtype=torch.uint64),
    "complex32": lambda: torch.zeros(2, dtype=torch.complex32),
    "float8": lambda: torch.zeros(2, dtype=torch.float8_e8m0fnu),
    "float4": lambda: torch.zeros(2, dtype=torch.float4_e2m1fn_x2),
    "conjugate": lambda: torch.ones(2, dtype=torch.complex64).conj(),
    "negated": lambda: torch.ones(2, dtype=torch.complex64).conj().imag,
    "zero": lambda: torch._efficientzerotensor((2,)),
    "freed": lambda: freed(),
    "inference": lambda: inference(),
    "uninitialized": nn.parameter.UninitializedParameter,
    "empty": lambda: torch.empty(0, 3),
    "huge": lambda: torch.ones(1).expand(1 << 14, 1 << 10),
    "many dimensions": lambda: torch.ones([1] * 40),
    "packed": lambda: nn.utils.rnn.pack_sequence(
        [torch.ones(3), torch.ones(2)]
    ),
    "size": lambda: torch.Size([1, 2]),
}


def freed():
    x = torch.ones(2)
    x.untyped_storage().resize_(0)
    return x


@torch.inference_mode()
def inference():
    return torch.ones(2)


class Passes(nn.Module):
    """Takes an odd thing at every place and gives it back at every place."""

    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)
        self.inner = Inner()

    def forward(self, x, odd, *more, key=None, kind):
        found = self.inner(odd, [odd, {"k": odd}], key=odd)
        return {"y": self.l(x), "odd": odd, "more": (more, found)}


class Inner(nn.Module):
    def forward(self, odd, more, key):
        return odd


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ODD)
def test_what_cannot_be_read_at_every_place(look, kind):
    torch.manual_seed(3)
    odd = ODD[kind]()
    model = Passes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        for p in model.parameters():
            p.grad = None
        out = model(torch.ones(1, 2), odd, odd, [odd], key=odd, kind="text")
        assert out["odd"] is odd
        out["y"].sum().backward()
        return bits([out["y"], model.l.weight.grad])

    plain = run()
    # told and counted is as good as recorded
    with look.trace(model, optimizer, warns=any) as t:
        assert run() == plain
        if isinstance(odd, torch.Tensor):
            t.record("odd", odd)
        optimizer.step()
    out = pick(t.records, object="Linear-1", pass_="forward", io="output")
    assert [r.step for r in out] == [1]


# ---- the machine ----


def depth_left(n, function):
    """Calls the function with so many frames left."""
    deep = len(inspect.stack())
    room = sys.getrecursionlimit() - deep - n

    def down(k):
        return function() if k <= 0 else down(k - 1)

    return down(room)


def test_hardly_any_stack_is_left(look):
    """Where a model with hooks that do nothing runs, a traced one does."""
    x = torch.ones(1, 2)

    def build(hooks):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        if hooks:
            for m in model.modules():
                m.register_forward_hook(
                    idle_post, with_kwargs=True, always_call=True
                )
                m.register_forward_pre_hook(idle_pre, with_kwargs=True)
        return model

    def idle_pre(module, args, kwargs):
        pass

    def idle_post(module, args, kwargs, output):
        pass

    def tries(model):
        found = []
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(400)
        try:
            for n in range(2, 40):
                try:
                    y = depth_left(n, lambda: model(x).sum())
                    found.append(y.item())
                except RecursionError:
                    found.append(None)
        finally:
            sys.setrecursionlimit(limit)
        return found

    wanted = tries(build(True))
    assert None in wanted and wanted[-1] is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = build(False)
        with tracerd.attach(net, run=f"run{next(runs)}") as t:
            got = tries(net)
            # and afterwards all is well
            before = t.counters["submitted"]
            net(x).sum().backward()
            assert t.counters["submitted"] == before + 10
    missed = [
        i for i, (w, g) in enumerate(zip(wanted, got, strict=True))
        if w is not None and g != w
    ]
    assert not missed


class TooLate(Exception):
    pass


@dataclasses.dataclass
class Signals:
    """Sends a signal when the tracer looks at it."""

    y: object

    def __getattribute__(self, name):
        if name == "y" and Signals.armed:
            signal.raise_signal(signal.SIGUSR1)
        return object.__getattribute__(self, name)


Signals.armed = False


class Makes(nn.Module):
    def __init__(self):
        super().__init__()
        self.l = nn.Linear(2, 2)

    def forward(self, x):
        return Signals(self.l(x))


def test_a_signal_handler_raises_within_a_hook(look):
    """Its exception is the training's, whatever its kind."""

    def handler(number, frame):
        raise TooLate

    model = Makes()
    old = signal.signal(signal.SIGUSR1, handler)
    try:
        with look.trace(model) as t:
            model(torch.ones(1, 2))
            Signals.armed = True
            with pytest.raises(TooLate):
                model(torch.ones(1, 2))
            Signals.armed = False
            model(torch.ones(1, 2)).y.sum().backward()
    finally:
        Signals.armed = False
        signal.signal(signal.SIGUSR1, old)
    ins = pick(t.records, object="Makes-1", pass_="forward", io="input")
    assert [(r.step, r.microbatch) for r in ins] == [(1, 1), (2, 2), (3, 3)]
    back = pick(t.records, object="Makes-1", pass_="backward", io="input")
    assert [r.step for r in back] == [3]


# ---- the daemon and the disk ----


def test_the_daemon_is_killed_in_the_middle(folder, monkeypatch, fresh, plain,
                                            told):
    programs.need("tracerd", "tracectl")
    monkeypatch.setenv("TRACERD_DIR", folder)
    with programs.Daemon(folder) as daemon:
        def around(trace):
            trace.record("first", torch.ones(1))
            assert trace.flush()
            daemon.kill()

        got, trace = train(True, "killed", around)
        assert got == plain
        # a training this short may be over before that is seen
        texts = told()
        assert len(texts) <= 1
        assert all("the daemon is gone" in text for text in texts)
        assert trace.last["committed"] < trace.last["submitted"]
        daemon.start()
        daemon.wait(lambda: daemon.query("killed"))
        # what was not sent is taken over from the journal
        daemon.wait(
            lambda: len(daemon.query("killed")) == trace.last["submitted"]
        )


@pytest.mark.parametrize("there", [False, True])
def test_the_daemon_takes_nothing_any_more(monkeypatch, told, there):
    """It is told once, after a while in which it may come back."""
    from tracerd import process

    class Client:
        counted = {"connects": 1, "connected": True, "lost": {},
                   "submitted": 9, "committed": 5}

        def counters(self):
            return self.counted

    connection = object.__new__(process.Connection)
    vars(connection).update(
        client=Client(), speaks=True, _lost_told=False, _lost_looked=0.0,
        _gone_told=False, _committed=-1, _committed_at=0.0,
    )
    connection.look_for_losses(100.0)
    Client.counted = {**Client.counted, "connected": there}
    patience = process.IDLE_S if there else process.GONE_S
    connection.look_for_losses(100.0 + patience - 0.1)
    assert told() == []
    for later in (2, 4):
        connection.look_for_losses(100.0 + patience + later)
    [text] = told()
    assert "4 records wait" in text
    assert ("tracectl status" in text) == there
    Client.counted = {**Client.counted, "committed": 9}
    connection.look_for_losses(1000.0)
    assert len(told()) == 1


def test_the_directory_goes_away(folder, monkeypatch, fresh, plain, told):
    monkeypatch.setenv("TRACERD_DIR", os.path.join(folder, "no", "such"))
    got, _ = train(True, "nowhere")
    assert got == plain and len(told()) <= 1


def test_the_disk_of_the_daemon_is_full(folder, monkeypatch, fresh, plain,
                                        told):
    programs.need("tracerd", "tracectl")
    disk = os.path.join(folder, "data")
    os.mkdir(disk)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "full", disk],
        capture_output=True,
    )
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")
    try:
        monkeypatch.setenv("TRACERD_DIR", folder)
        with programs.Daemon(folder) as daemon:
            with open(os.path.join(disk, "filler"), "wb", 0) as f:
                try:
                    while True:
                        f.write(bytes(4096))
                except OSError:
                    pass
            got, trace = train(True, "full")
            assert got == plain and len(told()) <= 1
            assert trace.last["durable"] == 0
            status = daemon.tracectl("status").stdout
            assert "disk" in status
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_the_clients_own_files_cannot_grow(folder):
    """Neither the journal nor the spool has room."""
    script = f"""
import resource, signal, sys, warnings
sys.path.insert(0, {str(programs.TOP / "tests/python")!r})
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
import test_own_errors as own
want = own.train()[0]
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    got, trace = own.train(True, "small")
assert got == want
print(len([w for w in seen if "tracerd" in str(w.message)]))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], env=programs.environment(folder),
        capture_output=True, text=True, timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["1"], done.stdout
