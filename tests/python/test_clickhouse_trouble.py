"""Servers that answer as no ClickHouse should: no record goes to them, and it
is told."""

import contextlib
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from clickhouse_server import keeper_of
from test_clickhouse import rows, status, tracectl, wait_empty
from test_durability import Training, whole

LATE = (
    b"Code: 241, e.displayText() = DB::Exception: Memory limit exceeded,"
    b" e.what() = DB::Exception\n"
)
NOBODY = "what answers there is no ClickHouse"
# what each is: the status and body of its answers, and what is said of it
ODD = {
    "a web page": (200, b"<html>\nWelcome\n</html>\n", NOBODY),
    "one that says nothing": (200, b"", NOBODY),
    "a page that moved": (302, b"", "HTTP status 302"),
    "a gateway": (502, b"<html>Bad Gateway</html>", "HTTP status 502"),
    "an error behind its status": (200, LATE, "Memory limit exceeded (code"),
}


class Odd(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.say(*self.server.answer(self.path, body))

    def say(self, code, body, length=None):
        self.send_response(code)
        self.send_header("Location", "http://127.0.0.1:9/")
        self.send_header("Content-Length", str(length or len(body)))
        self.send_header("Connection", "close")  # the next asks the next
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def listening(answer, port=0):
    """Its port; answer: of a path and a body, a status and a body."""
    with ThreadingHTTPServer(("127.0.0.1", port), Odd) as server:
        server.answer = answer
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("kind", ODD)
def test_a_server_that_is_no_engine_gets_no_record(folder, server, kind):
    code, text, said = ODD[kind]

    def answer(path, body):
        if text == LATE and (body == b"SELECT 1" or b"CREATE" in body):
            return 200, b"1\n" if body == b"SELECT 1" else b""
        return code, text

    with contextlib.ExitStack() as running:
        with listening(answer, server.port):
            keeper = running.enter_context(keeper_of(folder, server.url()))
            training = Training(keeper.dir, "odd", 5, 0)
            assert training.end() == ""
            keeper.wait(lambda: said in keeper.log())
            keeper.wait(lambda: status(keeper)["forward_failures"] > 1)
            held = status(keeper)
            assert held["queue_rows"] == training.submitted
            assert (held["forwarded"], held["store_down"]) == (0, 1)
            out = tracectl("--store", server.url(), "-o", "json", "runs")
            assert out.stdout == b""
            # no rows at all are the answer of an engine without runs
            assert out.returncode == (3 if text or code > 200 else 1), out
        server.start()
        wait_empty(keeper)
        found = rows(server)
        assert whole(found) and len(found) == training.submitted


def cut(body):
    return 200, body[:-5]


def broken_off(body):
    return 200, body[:-5], len(body)


def late_error(body):
    return 200, body[: len(body) // 2] + LATE


def refused(body):
    return 500, LATE


def of_another_table(body):
    return 404, b"Code: 47, e.displayText() = DB::Exception: Missing columns\n"


@pytest.mark.parametrize("how, said", [
    (cut, "is damaged"), (broken_off, "transfer closed"),
    (late_error, "is damaged"), (refused, "Memory limit exceeded (code 241)"),
    (of_another_table, "Missing columns (code 47)"),
])
def test_half_an_answer_is_none(folder, server, how, said):
    server.start()
    with keeper_of(folder, server.url()) as keeper:
        assert Training(keeper.dir, "half", 5, 0).end() == ""
        wait_empty(keeper)

    def answer(path, body):
        url = f"http://127.0.0.1:{server.port}{path}"
        with urllib.request.urlopen(url, data=body) as found:
            good = found.read()
        return how(good) if b"RowBinary" in body else (200, good)

    with listening(answer) as port:
        url = f"clickhouse://default@127.0.0.1:{port}/traced"
        out = tracectl("--store", url, "-o", "json", "query", "*")
        assert out.returncode == 3, out
        assert out.stdout == b"" and said in out.stderr.decode(), out


def test_a_database_that_is_not_there_is_told(server):
    server.start()
    out = tracectl("--store", server.url("nowhere"), "runs")
    assert out.returncode == 3 and b"nowhere" in out.stderr, out
    assert b"(code 81)" in out.stderr
