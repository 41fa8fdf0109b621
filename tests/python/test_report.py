"""tracectl report: what the page says, and the command."""

import json
import os
import re
import socket
import sqlite3
import subprocess
from pathlib import Path

import pytest

import made_run
import programs
from made_run import Run, make, transformer
from report_page import CULPRIT, MODEL, data, report, result, tracectl
from tracerd.tensors import LABEL

pytest_plugins = "report_fixtures"
EVIL = '</script><img src=x onerror="window.hit=1">'


# ---- what it says ----


def test_the_verdict_is_that_of_compare(browser, parted):
    page, files = parted
    want = result("compare", *files)
    assert want["culprit"]["module"] == CULPRIT
    browser.open(page)
    assert browser.text("#said") == want["verdict"] == "differs"
    assert browser.text("h1") == CULPRIT
    reason = want["reason"]
    assert browser.text(".reason") == reason[0].upper() + reason[1:] + "."
    got = data(page)
    for name in ("verdict", "reason"):
        assert got[name] == want[name]
    assert got["counts"] == {n: want["counts"][n] for n in got["counts"]}
    assert ([p["name"] for p in got["ranked"]]
            == [p["name"] for p in want["ranked"]])
    for name in ("first", "culprit"):
        assert got[name]["name"] == want[name]["name"]
        assert got[name]["rank"] == want[name]["rank"]
    browser.quiet()


def test_functions_of_one_run_alone_are_a_note(browser, parted, tmp_path):
    """Dumps have them as objects whose class is their path."""
    function = [("Functional.relu", "Functional.relu")]
    page, files = report(tmp_path, Run(MODEL, 3), Run(MODEL + function, 3))
    want = result("compare", *files)
    assert want["only_b"] == [] and want["counts"]["functions_b"] > 0
    assert data(page)["counts"] == {
        n: want["counts"][n] for n in data(page)["counts"]}
    browser.open(page)
    text = tracectl("compare", *files).stdout
    (line,) = [one for one in text.split("\n") if "of functions" in one]
    assert browser.text("#functions") == line[0].upper() + line[1:] + "."
    assert not browser.all("#missing")
    browser.quiet()
    browser.open(parted[0])
    assert not browser.all("#functions")


def test_the_findings_are_those_of_check(browser, ill):
    page, files = ill
    want = result("check", *files)
    assert want["findings"][0]["module"] == CULPRIT
    browser.open(page)
    assert browser.text("#said") == want["verdict"] == "unhealthy"
    assert browser.text("h1") == CULPRIT
    got = data(page)
    assert got["nonfinite"] == want["nonfinite"]
    assert ([(f["kind"], f["at"]["name"], f["detail"], f["records"])
             for f in got["findings"]]
            == [(f["kind"], f["name"], f["detail"], f["records"])
                for f in want["findings"]])
    browser.quiet()


def test_options_of_compare_change_the_page_alike(tmp_path, parted):
    _, files = parted
    rules = tmp_path / "rules"
    rules.write_text("* ignore\n")
    for more in (("--skip", "20"), ("--rules", rules)):
        want = result("compare", *files, *more)
        page, _ = report(tmp_path, *files, more=more)
        assert data(page)["verdict"] == want["verdict"] != "differs" or (
            want["counts"]["compared"] == 0)
        assert data(page)["counts"]["compared"] == 0


def test_the_map_has_the_worst_error_of_what_was_given(parted):
    """Against the errors of compare, which ranks the worst of all."""
    page, files = parted
    got = data(page)
    want = result("compare", *files)["ranked"]
    given = [p for p in want if not p["name"].endswith("-input")]
    assert len(given) > 3
    rows = {(got["objects"][p[0]][0], got["passes"][p[1]]): p
            for p in got["places"]}
    for p in given:
        row = rows[p["module"], p["pass"]]
        column = p["iteration"] - got["columns"][0]
        cell = got["map"][row[7]][column]
        assert cell >= float(f"{p['error']:.4g}")
        assert row[3] >= cell
    assert max(p[3] for p in got["places"]) == float(
        f"{given[0]['error']:.4g}")


def test_samples_and_figures_are_those_of_the_records(parted):
    page, (a, b) = parted
    got = data(page)
    name = got["culprit"]["name"]
    (shown,) = [s for s in got["sampled"] if s["at"]["name"] == name
                and s["at"]["rank"] == got["culprit"]["rank"]]
    assert shown["index"] == [i * 4095 // 15 for i in range(16)]
    for file, side in ((a, shown["a"]), (b, shown["b"])):
        (want,) = [
            json.loads(line) for line in tracectl(
                "-d", file, "-o", "json", "query", name, "--rank",
                got["culprit"]["rank"]).stdout.splitlines()]
        assert side["value"] == want["samples"]
        assert side["hash"] == want["hash"]
        assert side["figures"][:5] == [
            float(f"{want[n]:.6g}") for n in ("max", "min", "mean", "std",
                                              "l2")]
    assert shown["a"]["value"] != shown["b"]["value"]


# ---- size ----


def test_ten_records(browser, tmp_path):
    net = [("fc1", "Linear"), ("", "Net")]
    page, _ = report(tmp_path, Run(net, 1))
    assert data(page)["bounds"]["records"] == 9
    browser.open(page)
    assert browser.text("#said") == "healthy"
    assert [r.get_attribute("aria-level")
            for r in browser.all("[role=treeitem]")] == ["1", "2"]
    browser.quiet()


def test_an_empty_run(browser, tmp_path):
    page, (run,) = report(tmp_path, Run(MODEL, 0))
    browser.open(page)
    assert browser.text("#said") == result("check", run)["verdict"]
    assert browser.text("h1") == "There is no record to look at."
    assert "This run has no records." in browser.text("#modules")
    browser.quiet()
    done = tracectl("check", run)
    assert done.returncode == 1 and "has no records" in done.stderr


def test_a_note_makes_no_run_unhealthy(browser, tmp_path):
    """A step that a gradient scaler skipped."""
    run = make(tmp_path / "a.db", Run(
        MODEL, 3, hole=lambda module, what, step, rank:
        3 * (what == made_run.GRAD and step == 1)))
    with sqlite3.connect(run) as db:
        db.execute("UPDATE record SET labels = ? WHERE pass = ? AND step = 1",
                   (LABEL["skipped"], made_run.GRAD))
    page, _ = report(tmp_path, run)
    assert data(page)["findings"][0]["detail"].startswith("note: ")
    browser.open(page)
    assert browser.text("#said") == result("check", run)["verdict"]
    assert browser.text("#said") == "healthy"
    assert browser.text("h1") == "Nothing found."
    assert len(browser.all("#worst tbody tr")) == 1
    browser.quiet()


def test_two_runs_with_nothing_in_common(browser, tmp_path):
    page, files = report(tmp_path, Run([("x", "Linear"), ("", "A")], 1),
                         Run([("y", "Conv2d"), ("", "B")], 1))
    browser.open(page)
    assert browser.text("#said") == result("compare", *files)["verdict"]
    only = browser.text("#missing")
    assert "x" in only and "y" in only
    browser.quiet()


def test_a_hundred_thousand_records_are_thinned_and_that_is_said(
        browser, tmp_path):
    model = transformer(12)
    far = made_run.fault("blocks.7.attn.proj", model)
    steps = 180
    page, _ = report(tmp_path, Run(model, steps),
                     Run(model, steps, shift=far))
    got = data(page)
    assert got["bounds"]["records"] > 100_000
    assert page.stat().st_size < 10_000_000
    shown, of = got["bounds"]["histories"]
    assert len(got["histories"]) == shown < of
    assert got["bin"] == 2 and got["columns"] == [1, 1, steps, 1]
    assert all(len(h["points"]) <= 100 for h in got["histories"])
    whole = got["curve"]["whole"]
    given = sum(1 for h in whole for _ in range(h[4]))
    assert len(whole) <= 2000 < given
    # the culprit and what ranks stay in the curve, with histories and samples
    culprit, worst = got["culprit"], got["ranked"][0]
    assert got["objects"][culprit["object"]][0] == "blocks.7.attn.proj"
    assert culprit["seq"] in [p[0] for p in whole]
    for p in (culprit, worst):
        assert [h for h in got["histories"]
                if (h["object"], h["pass"], h["io"])
                == (p["object"], p["pass"], p["io"])]
        assert [s for s in got["sampled"] if s["at"]["name"] == p["name"]]
    browser.open(page)
    about = browser.text("#about")
    assert f"{shown} of about {of:,}" in about
    assert f"{got['bounds']['records']:,}" in about
    assert browser.text("h1") == "blocks.7.attn.proj"
    browser.quiet()


def test_of_more_modules_than_fit_the_worst_stay(browser, tmp_path):
    model = [(f"layers.{i}", "Linear") for i in range(10_100)] + [("", "Net")]
    odd = {"layers.10090": 1e-2, "layers.3": 1e-3}
    page, _ = report(tmp_path, Run(model, 1), Run(
        model, 1, shift=lambda m, *_: odd.get(m, 2.0**-24)))
    got = data(page)
    assert got["bounds"]["objects"] == [10_000, 10_101]
    shown = {o[0] for o in got["objects"]}
    assert len(got["objects"]) == 10_000 and shown >= set(odd)
    assert got["objects"][got["culprit"]["object"]][0] == "layers.3"
    assert page.stat().st_size < 10_000_000
    browser.open(page)
    assert browser.text("h1") == "layers.3"
    assert "10,000 of 10,101" in browser.text("#about")
    browser.quiet()


def test_columns_follow_the_iterations_that_were_traced(browser, tmp_path):
    run = make(tmp_path / "a.db", Run(transformer(1), 12))
    with sqlite3.connect(run) as db:
        db.execute("UPDATE record SET iteration = 100 * iteration - 49")
    page, _ = report(tmp_path, run)
    got = data(page)
    assert got["columns"] == [51, 100, 12, 100]
    assert all(None not in row for row in got["map"])
    browser.open(page)
    assert "A column is" not in browser.text("#heat")
    browser.quiet()


def test_columns_of_several_iterations_keep_the_worst(browser, tmp_path):
    net = [("fc", "Linear"), ("", "Net")]
    worse = {7: 1e-3, 500: 1e-2}
    page, _ = report(tmp_path, Run(net, 500), Run(
        net, 500, shift=lambda m, what, step, rank: worse.get(step, 0)))
    got = data(page)
    assert got["columns"] == [1, 3, 167, 1]
    (place,) = [p for p in got["places"] if p[:2] == [0, 1]]
    row = got["map"][place[7]]
    assert [i for i, v in enumerate(row) if v] == [2, 166]
    browser.open(page)
    assert "A column is the worst of 3 iterations." in browser.text("#heat")
    browser.quiet()


# ---- hostile names ----


def test_names_are_text_whatever_they_hold(browser, tmp_path):
    net = [
        (f"a.{EVIL}", f"Lin{EVIL}"),
        ("b.{data}.{script}", "Linear"),
        ("c.\u202e\u2028<!--<script>", "Linear"),
        ('d."\\', "'`${1}"),
        ("", f"Net{EVIL}"),
    ]
    worse = made_run.fault(f"a.{EVIL}", net)
    page, _ = report(tmp_path, Run(net, 3),
                     Run(net, 3, shift=worse, info={"argv": [EVIL]}))
    text = page.read_text()
    assert text.count("</script>") == 2 and EVIL not in text
    assert [o[0] for o in data(page)["objects"]] == [m for m, _ in net]
    browser.open(page)
    assert browser.text("h1") == f"a.{EVIL}"
    browser.run("document.querySelectorAll('details').forEach(d => "
                "d.open = true)")
    assert browser.run("return window.hit") is None
    assert browser.all("img") == []
    assert len(browser.all("script")) == 2
    assert EVIL in browser.text("#runs-part")
    browser.quiet()


def test_a_name_that_is_no_utf8_is_shown_with_marks(browser, tmp_path):
    run = make(tmp_path / "a.db", Run([("fc", "Linear"), ("", "Net")], 1))
    with sqlite3.connect(run) as db:
        db.execute("UPDATE object SET module = CAST(x'66ff63' AS TEXT)"
                   " WHERE id = 1")
    page, _ = report(tmp_path, run)
    assert data(page)["objects"][0][0] == "f\ufffdc"
    browser.open(page)
    browser.quiet()


def test_nothing_can_reach_a_network(browser, parted):
    """Not even a script that got in would."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        browser.open(parted[0])
        tried = browser.driver.execute_async_script("""
            const done = arguments[1], out = [];
            document.addEventListener("securitypolicyviolation",
                e => out.push(e.effectiveDirective));
            new Image().src = arguments[0];
            fetch(arguments[0]).catch(() => {});
            try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); }
            catch { out.push("html"); }
            setTimeout(() => done(out), 500);
        """, f"http://127.0.0.1:{server.getsockname()[1]}/")
        assert {"connect-src", "html", "img-src"} <= set(tried)
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


# ---- the command ----


def test_the_page_goes_to_stdout(parted, tmp_path):
    page, files = parted
    done = tracectl("report", *files, "--out", "-")
    made = re.compile('"made":"[^"]*"')
    assert done.returncode == 0
    assert made.sub("", done.stdout) == made.sub("", page.read_text())


def test_a_page_replaces_a_file_when_it_is_whole(parted, tmp_path):
    _, (a, _) = parted
    page = tmp_path / "page.html"
    page.write_text("before")
    done = tracectl("report", a, tmp_path / "none.db", "--out", page)
    assert done.returncode == 3 and "none.db" in done.stderr
    assert page.read_text() == "before"
    assert os.listdir(tmp_path) == ["page.html"]
    assert tracectl("report", a, "--out", page).returncode == 0
    assert page.read_text().startswith("<!doctype html>")
    assert os.listdir(tmp_path) == ["page.html"]


def test_what_is_no_page_is_not_replaced(parted, tmp_path):
    _, (a, b) = parted
    os.mkfifo(tmp_path / "pipe")
    before = Path(b).read_bytes()
    for place, why in ((tmp_path, "is no regular file"),
                       (tmp_path / "pipe", "is no regular file"),
                       ("/dev/null", "is no regular file"),
                       (b, "is a run, no page")):
        done = tracectl("report", a, "--out", place)
        assert done.returncode == 2
        assert f"'{place}' {why}: not replaced" in done.stderr
    assert Path(b).read_bytes() == before


@pytest.mark.parametrize("args, why", [
    (("--out", "x"), "report takes one run, or two to compare"),
    (("a", "b", "c", "--out", "x"), "report takes one run, or two"),
    (("a.db",), "report needs --out FILE"),
    (("a.db", "--out", "x", "--skip", "1"), "are for two runs"),
])
def test_a_wrong_call_is_told(tmp_path, args, why):
    done = tracectl("report", *args)
    assert done.returncode == 2 and why in done.stderr
    assert not os.path.exists("x")


def test_a_full_disk_is_told(parted):
    _, (a, _) = parted
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [programs.program("tracectl"), "report", a, "--out", "-"],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 3
    assert "cannot write" in done.stderr
