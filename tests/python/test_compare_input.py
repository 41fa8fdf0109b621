"""tracectl compare: runs and files that are not what they should be."""

import json
import sqlite3
import subprocess
from contextlib import closing

import pytest

import made_run
import programs
from made_run import Run, make, transformer

MODEL = transformer(1)


@pytest.fixture
def run(tmp_path):
    programs.need("tracectl")
    return make(tmp_path / "a.db", Run(MODEL, 2))


def compare(*args):
    return subprocess.run(
        [programs.program("tracectl"), "compare", *map(str, args)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )


def wrong(code, *args):
    """The one line that it says, when it ends so."""
    done = compare(*args)
    assert (done.returncode, done.stdout) == (code, "")
    (line,) = done.stderr.splitlines()
    return line


def changed(run, tmp_path, *sql):
    """The file of a run in which somebody wrote."""
    other = make(tmp_path / "b.db", Run(MODEL, 2))
    with closing(sqlite3.connect(other)) as db:
        db.execute(*sql)
        db.commit()
    return other


@pytest.mark.parametrize("text, line, why", [
    (b"a\n", 1, "expected two names"),
    (b"a b\n\na b c\n", 3, "expected two names"),
    (b"a pp=1\n", 1, "expected two names"),
    (b"pp=1\n", 1, "expected two names"),
    (b"a *\n", 1, "the second name may have as many '*' as the first"),
    (b"*****a b\n", 1, "and that at most 4"),
    (b"pp= a b\n", 1, "expected DIMENSION=PLACE"),
    (b"\npp=x a b\n", 2, "expected DIMENSION=PLACE"),
    (b"a =1 b\n", 1, "expected DIMENSION=PLACE"),
    (b"a pp=-1 b\n", 1, "expected DIMENSION=PLACE"),
    (b"a pp=99999999999999999999 b\n", 1, "expected DIMENSION=PLACE"),
    (b"x" * 100_000 + b" b\n", 1, "a name is too long"),
    (b"a b\n" * 5000, 4097, "there are more than 4096 lines"),
])
def test_a_map_says_its_line(run, tmp_path, text, line, why):
    file = tmp_path / "map"
    file.write_bytes(text)
    said = wrong(2, run, run, "--map", file)
    assert said.startswith(f"tracectl: {file}:{line}: ") and why in said


@pytest.mark.parametrize("text, line, why", [
    (b"a\n", 1, "nothing is said of 'a'"),
    (b"# x\n\na rtol=\n", 3, "not 'rtol='"),
    (b"* rtol=x\n", 1, "expected ignore, rtol=, atol= or noise="),
    (b"a rtol=-1\n", 1, "not 'rtol=-1'"),
    (b"a atol=nan\n", 1, "not 'atol=nan'"),
    (b"a noise=0\n", 1, "not 'noise=0'"),
    (b"a noise=2x\n", 1, "not 'noise=2x'"),
    (b"a ignore\n" * 5000, 4097, "more than 4096 rules"),
])
def test_rules_say_their_line(run, tmp_path, text, line, why):
    file = tmp_path / "rules"
    file.write_bytes(text)
    said = wrong(2, run, run, "--rules", file)
    assert said.startswith(f"tracectl: {file}:{line}: ") and why in said


@pytest.mark.parametrize("option", ["--map", "--rules"])
def test_what_is_no_file_of_lines_is_told(run, tmp_path, option):
    (tmp_path / "nul").write_bytes(b"a\0 b\n")
    (tmp_path / "large").write_bytes(b"a" * (4 << 20) + b"b\n")
    for file, why in ((tmp_path / "nul", "has a NUL byte"),
                      (tmp_path / "large", "is larger than 4 MiB"),
                      ("/dev/zero", "is larger than 4 MiB"),
                      (tmp_path / "none", "no such file"),
                      (tmp_path, "is a directory")):
        said = wrong(2, run, run, option, file)
        assert f"'{file}'" in said and why in said


@pytest.mark.parametrize("option", ["--map", "--rules"])
def test_lines_of_other_systems_and_other_bytes_are_read(
    run, tmp_path, option
):
    file = tmp_path / "lines"
    rest = b"ignore" if option == "--rules" else b"x"
    file.write_bytes(b"# \xff\r\n\r\n\xff\x80 " + rest + b"\r\nb " + rest)
    assert compare(run, run, option, file).returncode == 0


def test_what_is_no_run_is_told(run, tmp_path):
    (tmp_path / "empty.db").write_bytes(b"")
    (tmp_path / "text.db").write_text("hello")
    for name in ("empty.db", "text.db", "none.db"):
        for pair in ((run, tmp_path / name), (tmp_path / name, run)):
            assert name in wrong(3, *pair)
        assert name in wrong(3, run, run, "--noise", tmp_path / name)


def test_an_attempt_that_is_not_there_is_told(run):
    for option in ("--attempt", "--attempt-b"):
        said = wrong(2, run, run, option, 7)
        assert f"'{run}' has no attempt 7: its last is 0" in said


@pytest.mark.parametrize("column", ["class", "module"])
def test_a_name_that_no_client_sends_is_damage(run, tmp_path, column):
    other = changed(run, tmp_path,
                    f"UPDATE object SET {column} = ? WHERE id = 3",
                    ("m" * 100_000,))
    for pair in ((run, other), (other, run)):
        said = wrong(2, *pair)
        assert other in said and "the name of an object is too long" in said


@pytest.mark.parametrize("column", ["pass", "io", "dtype"])
def test_a_code_that_is_not_known_is_damage(run, tmp_path, column):
    other = changed(run, tmp_path,
                    f"UPDATE record SET {column} = 99 WHERE seq = 9")
    for pair in ((run, other), (other, run)):
        assert "a code that is not known" in wrong(2, *pair)


def test_runs_without_records_have_none_in_common(run, tmp_path):
    empty = str(tmp_path / "b.db")
    with closing(sqlite3.connect(empty)) as db:
        db.executescript(made_run.SCHEMA.read_text())
    for pair in ((run, empty), (empty, run), (empty, empty)):
        done = compare(*pair)
        assert (done.returncode, done.stderr) == (1, "")
        assert "0 compared" in done.stdout
    none = make(tmp_path / "c.db", Run(MODEL, 0))
    done = compare(none, none)
    assert "have no record in common" in done.stdout


def test_an_attempt_that_began_late_is_not_searched_from_the_first(tmp_path):
    """What the attempt before it has of each step is passed over once, not
    once for each object of the other run: that took hours."""
    a, b = (make(tmp_path / f"{name}.db", Run(MODEL, 1000)) for name in "ab")
    with closing(sqlite3.connect(b)) as db:
        columns = {
            table: [row[1] for row in db.execute(
                f"PRAGMA table_info({table})")]
            for table in ("stream", "record")
        }
        for table, key, where in (
            ("stream", "id", "1"), ("record", "stream", "step > 990"),
        ):
            new = {key: f"{key} + 1000", "attempt": "1", "epoch": "99"}
            what = ", ".join(new.get(c, c) for c in columns[table])
            db.execute(
                f"INSERT INTO {table} SELECT {what} FROM {table}"
                f" WHERE {where}"
            )
        db.commit()
        (late,), = db.execute(
            "SELECT count(*) FROM record WHERE stream >= 1000"
        )
        (all_of,), = db.execute("SELECT count(*) FROM record")
    assert late * 100 == all_of - late
    for pair, only in ((a, b), "only_a"), ((b, a), "only_b"):
        done = subprocess.run(
            [programs.program("tracectl"), "-o", "json", "compare", *pair],
            capture_output=True, timeout=120,
        )
        counts = json.loads(done.stdout)["counts"]
        assert (counts["equal"], counts[only]) == (late, 99 * late)
