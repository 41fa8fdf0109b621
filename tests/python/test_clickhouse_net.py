"""What is between daemons and a ClickHouse: cut, slow, lossy, by TLS. Nothing
is lost or twice, no training waits, and who is at fault is told."""

import contextlib
import os
import time
from pathlib import Path

import pytest

from clickhouse_server import Server, keeper_of, make_ca
from programs import Daemon, need
from slow_path import SlowPath
from spaces import two_spaces
from test_clickhouse import SHARD, rows, status, tracectl, wait_empty
from test_durability import Training, whole

PASSWORD = "a word of its own"


def rank_of(monkeypatch, rank, *args):
    """A training that is this rank of four."""
    with monkeypatch.context() as m:
        m.setenv("RANK", str(rank))
        m.setenv("WORLD_SIZE", "4")
        m.setenv("LOCAL_RANK", str(rank % 2))
        return Training(*args)


def took(training):
    """Seconds from the first iteration to the end."""
    training.wait_lines(1)
    begin = time.monotonic()
    assert training.end() == ""
    return time.monotonic() - begin


def test_the_network_between_two_nodes_is_cut_and_comes_back(
    folder, monkeypatch
):
    need("tracerd", "tracectl")
    with (
        two_spaces() as spaces,
        Server(f"{folder}/a", host=spaces[0].address) as a,
        Server(f"{folder}/b", host=spaces[1].address) as b,
        contextlib.ExitStack() as running,
    ):
        shards = "".join(
            SHARD.format(s.tcp_port).replace("127.0.0.1", s.host)
            for s in (a, b)
        )
        a.clusters = b.clusters = f"<both>{shards}</both>"
        for space, server in zip(spaces, (a, b)):
            space(server.start)
        keepers, trainings = [], []
        for i, (space, server) in enumerate(zip(spaces, (a, b))):
            os.mkdir(f"{folder}/node{i}", 0o700)
            url = server.url(tail="?cluster=both")
            keeper = Daemon(f"{folder}/node{i}", "--store", url)
            space(keeper.start)
            running.callback(keeper.stop)
            keepers.append(keeper)
        for rank in range(4):
            trainings.append(spaces[rank // 2](
                rank_of, monkeypatch, rank, keepers[rank // 2].dir, "net", 80,
                0.05,
            ))
        for lines in (10, 40):
            for t in trainings:
                t.wait_lines(lines)
            spaces[1].link("down")
            time.sleep(1.5)
            spaces[1].link("up")
        trainings[0].wait_lines(60)
        spaces[1].link("down")
        # every rank ends while the nodes do not see each other
        for t in trainings:
            assert t.end() == ""
        submitted = [t.submitted for t in trainings]
        for i, keeper in enumerate(keepers):
            keeper.wait(
                lambda: status(keeper)["records"] == sum(
                    submitted[2 * i : 2 * i + 2]
                )
            )
            keeper.wait(lambda: status(keeper)["store_down"] == 1)
            assert status(keeper)["queue_rows"] > 0
            assert status(keeper)["lost"] == 0
        spaces[1].link("up")
        for keeper in keepers:
            wait_empty(keeper, 120)
            keeper.stop()
        for space, server in zip(spaces, (a, b)):
            for rank in range(4):
                text = space(
                    server.ask, "SELECT seq FROM record FINAL WHERE rank ="
                    f" {rank} ORDER BY seq", "traced",
                )
                found = [int(line) for line in text.split()]
                assert whole(found) and len(found) == submitted[rank]
            here = space(
                server.ask, "SELECT DISTINCT rank FROM record_local"
                " ORDER BY rank", "traced",
            )
            assert here.split() == (["0", "2"] if server is a else ["1", "3"])
            out = space(
                tracectl, "--store", server.url(), "-o", "json", "check",
                "net",
            )
            assert out.returncode in (0, 1), out


def test_a_slow_path_slows_no_training(folder, server):
    server.start()
    with SlowPath(server.port) as path:
        url = f"clickhouse://default@127.0.0.1:{path.port}/traced"
        with keeper_of(folder, url) as keeper:
            plain = took(Training(keeper.dir, "quick", 60, 0.02))
            wait_empty(keeper)
            path.rate = 4000
            training = Training(keeper.dir, "slow", 60, 0.02)
            slow = took(training)
            held = status(keeper)
            assert held["queue_rows"] > 0 and held["lost"] == 0
            assert slow < 2 * plain + 1, (slow, plain)
            path.rate = None
            wait_empty(keeper)
            text = server.ask(
                "SELECT seq FROM record FINAL WHERE run = 'slow'"
                " ORDER BY seq", "traced",
            )
            found = [int(line) for line in text.split()]
            assert whole(found) and len(found) == training.submitted


def test_what_is_sent_again_for_want_of_an_answer_is_there_once(
    folder, server
):
    server.start()
    with SlowPath(server.port) as path:
        url = f"clickhouse://default@127.0.0.1:{path.port}/traced"
        with keeper_of(folder, url) as keeper:
            training = Training(keeper.dir, "again", 60, 0.05)
            for lines in (10, 30):
                training.wait_lines(lines)
                path.lossy = True
                keeper.wait(lambda: status(keeper)["store_down"] == 1)
                time.sleep(0.5)
                path.lossy = False
            assert training.end() == ""
            wait_empty(keeper)
            assert path.lost >= 2
            found = rows(server)
            assert whole(found) and len(found) == training.submitted


def problem(keeper):
    return str(status(keeper).get("problem"))


def hides(keeper, *more):
    """The password is in nothing that others may read."""
    cmdline = Path(f"/proc/{keeper.process.pid}/cmdline").read_text()
    said = keeper.tracectl("-o", "json", "status").stdout
    for text in (cmdline, keeper.log(), said, *more):
        assert PASSWORD not in text


def test_records_go_by_tls_with_a_password_that_nobody_sees(
    folder, server, monkeypatch
):
    monkeypatch.setenv("TRACERD_STORE_CA", server.use_tls())
    server.start()
    secret = Path(folder, "secret")
    secret.write_text(PASSWORD + "\n")
    monkeypatch.setenv("TRACERD_STORE_PASSWORD_FILE", str(secret))
    with keeper_of(folder, server.tls_url()) as keeper:
        training = Training(keeper.dir, "tls", 10, 0)
        assert training.end() == ""
        wait_empty(keeper)
        found = rows(server)
        assert whole(found) and len(found) == training.submitted
        out = tracectl("--store", server.tls_url(), "-o", "json", "runs")
        assert out.returncode == 0 and b'"tls"' in out.stdout, out
        hides(keeper, str(out))


@pytest.mark.parametrize("wrong", ["password", "authority", "no file"])
def test_what_is_wrong_is_told_and_nothing_lost(
    folder, server, monkeypatch, wrong
):
    good = {"TRACERD_STORE_CA": server.use_tls(),
            "TRACERD_STORE_PASSWORD": PASSWORD}
    bad = dict(good)
    if wrong == "password":
        bad["TRACERD_STORE_PASSWORD"] = "a word of others"
        said = ["the password is wrong", "Wrong password for user secret"]
    else:
        bad["TRACERD_STORE_CA"] = f"{folder}/missing"
        said = ["its certificate is not trusted", "missing"]
    if wrong == "authority":
        os.mkdir(f"{folder}/other")
        bad["TRACERD_STORE_CA"] = make_ca(f"{folder}/other")
        said[1] = "certificate"
    for name, value in bad.items():
        monkeypatch.setenv(name, value)
    server.start()
    with keeper_of(folder, server.tls_url()) as keeper:
        training = Training(keeper.dir, "told", 10, 0)
        assert training.end() == ""
        keeper.wait(lambda: status(keeper)["store_down"] == 1)
        assert said[0] in problem(keeper)
        assert said[1] in keeper.log()
        assert status(keeper)["queue_rows"] == training.submitted
        out = tracectl("--store", server.tls_url(), "runs")
        assert out.returncode == 3 and said[1] in out.stderr.decode(), out
        hides(keeper, str(out))
        assert bad["TRACERD_STORE_PASSWORD"] not in keeper.log()
        keeper.stop()
        for name, value in good.items():
            monkeypatch.setenv(name, value)
        keeper.start()
        keeper.wait(lambda: status(keeper)["forwarded"] > 0)
        wait_empty(keeper)
        found = rows(server)
        assert whole(found) and len(found) == training.submitted
        hides(keeper)
