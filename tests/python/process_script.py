"""A small training to which something happens in the middle.

    process_script.py

For each line of input, "CASE FOLDER", runs the case twice, with and without
tracing, and prints both exit codes. It is one program so that torch is
loaded once; a training is a fork of it, and imports tracerd itself.

A training writes the losses with all digits and, at the end, the SHA-256 of
the parameters to FOLDER/MODE.out, errors to FOLDER/MODE.err. What was
submitted it tells in FOLDER/tell: pid, records, forward passes.
"""

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import hashlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 1)
        self.before = None  # called in the middle of a forward pass

    def forward(self, x):
        x = torch.relu(self.a(x))
        if self.before:
            self.before()
        return self.b(x)


class Training:
    def __init__(self, traced):
        torch.manual_seed(3)
        self.model = Net()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.calls = 0
        self.trace = None
        if traced:
            import tracerd

            self.trace = tracerd.attach(
                self.model, self.optimizer, run="run"
            )

    def step(self):
        self.calls += 1
        loss = self.model(torch.randn(16, 4)).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        print(repr(loss.item()), flush=True)
        self.tell()

    def train(self, n=3):
        for _ in range(n):
            self.step()

    def tell(self):
        if self.trace is None:
            return
        n = self.trace.counters["submitted"]
        with open(os.environ["TELL"], "w") as f:
            f.write(f"{os.getpid()} {n} {self.calls}")

    def digest(self):
        digest = hashlib.sha256()
        for p in self.model.parameters():
            digest.update(p.detach().numpy().tobytes())
        print(digest.hexdigest(), flush=True)


# ---- ends ----


def os_exit(t):
    os._exit(3)


def sys_exit(t):
    sys.exit(4)


def uncaught(t):
    def fail():
        raise RuntimeError("in the middle of a forward pass")

    t.model.before = fail
    t.step()


def sigint(t):
    t.model.before = lambda: os.kill(os.getpid(), signal.SIGINT)
    t.step()


def sigterm(t):
    t.model.before = lambda: os.kill(os.getpid(), signal.SIGTERM)
    t.step()


def segv(t):
    ctypes.string_at(0)


def segv_told(t):
    faulthandler.enable()
    ctypes.string_at(0)


def abort(t):
    os.abort()


def execv(t):
    os.execv("/bin/sh", ["sh", "-c", "exit 7"])


def daemon_threads(t):
    """Some are still at work when the interpreter ends."""
    def work():
        while True:
            sum(range(1000))

    for _ in range(3):
        threading.Thread(target=work, daemon=True).start()


def training_in_a_daemon_thread(t):
    """It submits while the interpreter ends."""
    begun = threading.Event()

    def work():
        while True:
            t.model(torch.ones(16, 4))
            begun.set()

    threading.Thread(target=work, daemon=True).start()
    begun.wait()


def at_exit(t):
    """Handlers of both kinds: registered before attach() and after it."""
    atexit.register(lambda: (t.model(torch.zeros(1, 4)), print("after")))


def collected(t):
    t.trace = None
    gc.collect()
    t.train()


def model_deleted(t):
    t.trace = None  # of what follows nothing is told
    model = t.model
    t.model = Net()
    t.optimizer = torch.optim.SGD(t.model.parameters(), lr=0.05)
    del model
    gc.collect()
    t.train()


# ---- it goes on ----


def caught(t):
    """Exceptions in every place of a step."""
    def fail(*args):
        raise ValueError("no")

    for put in (
        lambda: setattr(t.model, "before", fail),
        lambda: t.model.a.register_forward_hook(fail),
        lambda: t.model.b.register_forward_pre_hook(fail),
        lambda: t.model.b.weight.register_hook(fail),
        lambda: t.optimizer.register_step_pre_hook(fail),
    ):
        handle = put()
        try:
            t.step()
        except ValueError as error:
            print(error)
        t.model.before = None
        if handle:
            handle.remove()
        t.optimizer.zero_grad()
        t.train(1)


def interrupted(t):
    t.model.before = lambda: os.kill(os.getpid(), signal.SIGINT)
    try:
        t.step()
    except KeyboardInterrupt:
        print("interrupted")
    t.model.before = None
    t.train()


# ---- children ----


class Data(Dataset):
    def __init__(self, model, n=8):
        self.model = model
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.model(torch.full((1, 4), float(i))).detach()


def loader(t):
    """H47: the dataset calls the traced model in forked workers."""
    for _ in range(2):
        for batch in DataLoader(Data(t.model), batch_size=2, num_workers=2):
            print(repr(batch.sum().item()))
        t.train(1)


def loader_dies(t):
    class Dying(Data):
        def __getitem__(self, i):
            if i == 5:
                os._exit(1)
            return super().__getitem__(i)

    try:
        # one only: torch raises at any moment when the others follow
        for _ in DataLoader(Dying(t.model), num_workers=1):
            pass
    except Exception:  # of several kinds, as it falls
        print("a worker died")


def _child(model, traced, queue):
    """Uses a model that is traced elsewhere, then traces one of its own."""
    torch.set_num_threads(1)
    print_to = []
    with torch.no_grad():
        print_to.append(model(torch.ones(2, 4)).sum().item())
    torch.manual_seed(4)
    own = Net()
    optimizer = torch.optim.SGD(own.parameters(), lr=0.05)
    if traced:
        import tracerd

        trace = tracerd.attach(own, optimizer, run="child")
    for _ in range(3):
        loss = own(torch.randn(4, 4)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print_to.append(loss.item())
    n = 0
    if traced:
        n = trace.counters["submitted"]
        trace.close()
    queue.put((print_to, os.getpid(), n))


def _multiprocessing(t, method):
    context = multiprocessing.get_context(method)
    model = t.model
    if method != "fork":  # hooks do not travel, weights do
        model = Net()
        model.load_state_dict(t.model.state_dict())
    queue = context.Queue()
    child = context.Process(
        target=_child, args=(model, t.trace is not None, queue)
    )
    child.start()
    values, pid, n = queue.get()
    child.join()
    print(values, child.exitcode)
    if t.trace is not None:
        with open(os.environ["TELL"] + ".child", "w") as f:
            f.write(f"{pid} {n}")


def mp_fork(t):
    _multiprocessing(t, "fork")


def mp_spawn(t):
    _multiprocessing(t, "spawn")


def mp_forkserver(t):
    _multiprocessing(t, "forkserver")


def spawned(t):
    for close in (True, False):
        done = subprocess.run(
            ["sh", "-c", "echo $$ >/dev/null; exit 5"], close_fds=close
        )
        print(done.returncode)
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    print(os.waitpid(pid, 0)[1], os.system("exit 3"))


def double_fork(t):
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            loss = t.model(torch.ones(2, 4)).sum()
            loss.backward()
            os.write(writer, repr(loss.item()).encode())
        os._exit(0)
    os.wait()
    os.close(writer)
    print(os.read(reader, 100))


def child_stays(t):
    """It holds the parent's socket; the test ends it."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.closerange(0, 3)
        os.write(writer, b"k")
        signal.pause()
    os.read(reader, 1)
    with open(os.environ["TELL"] + ".stays", "a") as f:
        f.write(f"{pid}\n")
    os._exit(6)


def forks_in_a_storm(t):
    for _ in range(30):
        pid = os.fork()
        if pid == 0:
            t.model(torch.ones(1, 4)).sum().backward()
            os._exit(0)
        t.step()
        print(os.waitpid(pid, 0)[1])


def imported_in_a_child(traced):
    """The parent knows nothing of it."""
    for _ in range(2):
        if os.fork() == 0:
            t = Training(traced)
            t.train()
            t.digest()
            if t.trace:
                t.trace.close()
            os._exit(0)
        print(os.wait()[1])


# ---- descriptors ----


def _occupy(first, last):
    """Files, pipes and sockets at all those numbers; the other ends."""
    ends = {}
    for number in range(first, last):
        if number % 3 == 0:
            mine, other = os.memfd_create("mine"), -1
        elif number % 3 == 1:
            other, mine = os.pipe()
        else:
            a, b = socket.socketpair()
            mine, other = a.detach(), b.detach()
        aside = os.dup(mine)
        os.dup2(mine, 1000 + number)
        if other >= 0:
            os.dup2(other, 2000 + number)
        for fd in {mine, other, aside} - {-1}:
            os.close(fd)
        ends[number] = 2000 + number if other >= 0 else -1
    for number in ends:
        os.dup2(1000 + number, number)
        os.close(1000 + number)
    return ends


def _untouched(ends):
    bytes_there = 0
    for number, other in ends.items():
        if other < 0:
            bytes_there += os.fstat(number).st_size
            continue
        os.set_blocking(other, False)
        with contextlib.suppress(BlockingIOError):
            bytes_there += len(os.read(other, 100))
    print("foreign bytes", bytes_there)


def _room_for_numbers():
    import resource

    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))


def closerange(t):
    _room_for_numbers()
    os.closerange(3, 65536)
    ends = _occupy(3, 300)
    t.train(5)
    if t.trace:
        t.trace.flush(30)
    _untouched(ends)


def dup2(t):
    _room_for_numbers()
    ends = _occupy(200, 300)
    t.train(5)
    if t.trace:
        t.trace.flush(30)
    _untouched(ends)


def case_main(case, traced):
    if case == "imported_in_a_child":
        globals()[case](traced)
        return
    if case == "at_exit":
        atexit.register(lambda: print("before"))
    t = Training(traced)
    t.train()
    globals()[case](t)
    t.train()
    t.digest()


def become(mode, folder):
    """This process is a training from now on."""
    for fd, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, f"{folder}/{mode}.out", os.O_WRONLY | os.O_CREAT),
        (2, f"{folder}/{mode}.err", os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(name, flags, 0o600)
        os.dup2(opened, fd)
        os.close(opened)
    os.environ.update(TRACERD_DIR=folder, TELL=f"{folder}/tell")


def main():
    torch.set_num_threads(1)
    while line := sys.stdin.readline():
        case, folder = line.split()
        pids = []
        for mode in ("plain", "traced"):
            pids.append(os.fork())
            if pids[-1] == 0:
                become(mode, folder)
                return case_main(case, mode == "traced")
        codes = [os.waitstatus_to_exitcode(os.waitpid(p, 0)[1]) for p in pids]
        print(*codes, flush=True)


if __name__ == "__main__":
    main()
