"""Nothing that was submitted is lost or doubled, whoever is killed."""

import glob
import os
import subprocess
import sys
import threading
import time

from programs import TOP, Daemon, environment, need, python

SCRIPT = TOP / "tests/python/steady_script.py"


class Training:
    """The steady script, running."""

    def __init__(self, folder, run, iterations, seconds):
        self.process = subprocess.Popen(
            [sys.executable, SCRIPT, run, str(iterations), str(seconds)],
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines = []
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.strip())

    def wait_lines(self, n):
        end = time.monotonic() + 60
        while len(self.lines) < n:
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.01)

    def end(self):
        self.process.wait(60)
        self.thread.join()
        return self.process.stderr.read()

    @property
    def submitted(self):
        return int([line for line in self.lines if line.isdigit()][-1])


def seqs(daemon, run):
    return sorted(r.seq for r in daemon.query(run))


def whole(numbers):
    """From 1 on, none missing, none twice."""
    return numbers == list(range(1, len(numbers) + 1))


def test_the_daemon_is_killed_and_comes_back(daemon):
    training = Training(daemon.dir, "kill", 60, 0.05)
    for lines in (10, 30):
        training.wait_lines(lines)
        daemon.kill()
        time.sleep(0.3)
        daemon.start()
    assert training.end() == ""
    assert training.process.returncode == 0
    daemon.wait(lambda: len(seqs(daemon, "kill")) >= training.submitted)
    found = seqs(daemon, "kill")
    assert whole(found) and len(found) == training.submitted
    (run,) = daemon.runs()
    assert run["losses"] == 0


def test_a_rank_is_killed(daemon):
    training = Training(daemon.dir, "rank", 1000, 0.01)
    training.wait_lines(20)
    training.process.kill()
    training.end()
    submitted = training.submitted
    daemon.wait(lambda: len(seqs(daemon, "rank")) >= submitted)
    assert whole(seqs(daemon, "rank"))


def test_both_are_killed(daemon):
    training = Training(daemon.dir, "both", 1000, 0.01)
    training.wait_lines(10)
    daemon.kill()
    training.wait_lines(20)
    training.process.kill()
    training.end()
    daemon.start()
    daemon.wait(
        lambda: len(seqs(daemon, "both")) >= training.submitted, 30
    )
    assert whole(seqs(daemon, "both"))


def without_daemon(folder):
    """How many records a training left in the journal there."""
    done = python(SCRIPT, "alone", 5, 0.01, folder=folder)
    assert done.stdout.splitlines()[-1] == "end"
    assert done.stderr.count("tracerd:") == 1, done.stderr
    assert "no daemon answers" in done.stderr
    assert len(glob.glob(f"{folder}/*.journal")) == 1
    return int(done.stdout.splitlines()[-2])


def test_no_daemon_at_all(folder):
    need("tracerd", "tracectl")
    submitted = without_daemon(folder)
    with Daemon(folder) as daemon:
        daemon.wait(lambda: len(seqs(daemon, "alone")) >= submitted)
        assert seqs(daemon, "alone") == list(range(1, submitted + 1))
        daemon.wait(lambda: not glob.glob(f"{folder}/*.journal"))


def test_a_journal_is_imported_by_hand(folder):
    need("tracerd", "tracectl")
    submitted = without_daemon(folder)
    (journal,) = glob.glob(f"{folder}/*.journal")
    other = f"{folder}/other"
    os.mkdir(other, 0o700)
    with Daemon(other) as daemon:
        for _ in range(2):  # a second time adds nothing
            daemon.tracectl("import", journal, ok=(0,))
            daemon.wait(lambda: len(seqs(daemon, "alone")) >= submitted)
            assert seqs(daemon, "alone") == list(range(1, submitted + 1))


def test_an_elastic_restart_is_one_run(daemon):
    for attempt in range(2):
        python(
            SCRIPT, "elastic", 1 + attempt, 0, folder=daemon.dir, RANK=0,
            WORLD_SIZE=1, TORCHELASTIC_RUN_ID="job",
            TORCHELASTIC_RESTART_COUNT=attempt,
        )
    daemon.wait(lambda: len(daemon.query("elastic", "forward-0-1")) == 4)
    steps = [
        (r.attempt, r.step) for r in daemon.query("elastic", "forward-0")
    ]
    assert sorted(set(steps)) == [(0, 1), (1, 1), (1, 2)]
    assert [r["name"] for r in daemon.runs()] == ["elastic"]


def test_another_job_of_the_same_name_is_another_run(daemon):
    for _ in range(2):
        python(SCRIPT, "job", 1, 0, folder=daemon.dir)
    daemon.wait(lambda: len(daemon.runs()) == 2)
    assert sorted(r["name"] for r in daemon.runs()) == ["job", "job-2"]
    assert daemon.query("job-2", "forward-0-1")


def test_a_warning_comes_in_time(folder):
    training = Training(folder, "late", 1000, 0.02)
    line = training.process.stderr.readline()
    assert "no daemon answers" in line
    assert training.process.poll() is None
    training.process.kill()
    training.end()
    assert 20 < len(training.lines) < 500


def test_workers_of_a_loader_add_nothing(here):
    import torch

    import tracerd

    model = torch.nn.Linear(2, 2)

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            return model(torch.full((2,), float(i))).detach()

    with tracerd.attach(model, run="fork") as t:
        model(torch.zeros(2))
        loader = torch.utils.data.DataLoader(Data(), num_workers=2)
        assert len(list(loader)) == 4
        model(torch.zeros(2))
        assert t.flush()
    assert [r.step for r in here.query("fork", "forward-Linear-1")] == [
        1, 1, 2, 2,
    ]
