"""tracectl report: the page, in a real Chromium without a network."""

import json
import os
import re
import socket
import sqlite3
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

import made_run
import programs
from made_run import Run, make, transformer

selenium = pytest.importorskip("selenium")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
MODEL = transformer(4)
CULPRIT = "blocks.2.mlp.act"
ORDER = [m for m, _ in MODEL]
EVIL = '</script><img src=x onerror="window.hit=1">'


def tracectl(*args):
    programs.need("tracectl")
    return subprocess.run(
        [programs.program("tracectl"), *map(str, args)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
    )


def result(*args):
    return json.loads(tracectl("-o", "json", *args).stdout)


def poisoned(module, what, step, rank):
    """NaN is born in the culprit at step 4 and is in the weights later."""
    born = step == 4 and (what != 1 or ORDER.index(module) >=
                          ORDER.index(CULPRIT))
    return 3 if step > 4 or born else 0


def report(folder, *runs, more=()):
    """The page of runs, files or Run; and those as files."""
    files = []
    for i, run in enumerate(runs):
        if isinstance(run, Run):
            run = make(folder / f"{'ab'[i]}.db", run)
        files.append(run)
    page = folder / "page.html"
    done = tracectl("report", *files, "--out", page, *more)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
    return page, files


def data(page):
    """What the page holds, read as a browser does."""
    text = Path(page).read_text()
    block = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', text,
        re.S)
    assert len(block) == 1
    return json.loads(block[0])


class Browser:
    """A Chromium; open() ends the test when it complains or asks for
    anything but the page."""

    def __init__(self):
        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for word in ("--headless=new", "--disable-gpu", "--hide-scrollbars",
                     "--disable-dev-shm-usage", "--no-first-run"):
            options.add_argument(word)
        if os.getuid() == 0:
            options.add_argument("--no-sandbox")
        options.set_capability(
            "goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(
            options=options, service=webdriver.ChromeService(DRIVER))
        self.page = None

    def open(self, page, theme="light", width=1280):
        self.logs()
        self.page = Path(page).as_uri()
        self.command("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": theme}])
        self.command("Emulation.setDeviceMetricsOverride", width=width,
                     height=900, deviceScaleFactor=1, mobile=False)
        self.driver.get(self.page)
        return self

    def command(self, name, **how):
        return self.driver.execute_cdp_cmd(name, how)

    def run(self, script, *args):
        return self.driver.execute_script(script, *args)

    def logs(self):
        """Complaints, and addresses that were asked for."""
        asked = []
        for entry in self.driver.get_log("performance"):
            event = json.loads(entry["message"])["message"]
            if event["method"] == "Network.requestWillBeSent":
                asked.append(event["params"]["request"]["url"])
        return [e["message"] for e in self.driver.get_log("browser")], asked

    def quiet(self):
        complaints, asked = self.logs()
        assert complaints == []
        assert {a.split("#")[0] for a in asked} <= {self.page}

    def all(self, css):
        return self.driver.find_elements(By.CSS_SELECTOR, css)

    def text(self, css):
        return self.run(
            "return document.querySelector(arguments[0]).textContent", css)

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)

    def focused(self, what="aria-label"):
        return self.run(
            "return document.activeElement.getAttribute(arguments[0])", what)


@pytest.fixture(scope="module")
def browser():
    if not (os.path.exists(CHROMIUM) and os.path.exists(DRIVER)):
        pytest.skip("no chromium")
    b = Browser()
    yield b
    b.driver.quit()


@pytest.fixture(scope="module")
def parted(tmp_path_factory):
    """Two runs of two ranks with a culprit: the page, its files."""
    return report(
        tmp_path_factory.mktemp("parted"), Run(MODEL, 20, 2),
        Run(MODEL, 20, 2, shift=made_run.fault(CULPRIT, MODEL),
            info={"torch": "2.12.0", "threads": 4}))


@pytest.fixture(scope="module")
def ill(tmp_path_factory):
    """A run with NaN."""
    return report(tmp_path_factory.mktemp("ill"),
                  Run(MODEL, 20, 2, hole=poisoned))


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
    assert "This run has no records." in browser.text("#modules")
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


# ---- keyboard and screen reader ----


def tree_focus(browser):
    browser.run("document.querySelector('[role=treeitem][tabindex=\"0\"]')"
                ".focus()")


def test_the_tree_is_walked_by_keys(browser, parted):
    browser.open(parted[0])
    tree_focus(browser)
    assert browser.focused("title") == CULPRIT
    assert browser.focused("aria-selected") == "true"
    assert re.fullmatch(
        r"act, GELU, error forward [\d,]+, backward [\d,]+, culprit",
        browser.focused())
    browser.press(Keys.ARROW_UP)
    assert browser.focused("title") == "blocks.2.mlp.fc1"
    browser.press(Keys.ARROW_DOWN, Keys.ARROW_DOWN)
    assert browser.focused("title") == "blocks.2.mlp.fc2"
    browser.press(Keys.ARROW_LEFT)
    assert browser.focused("title") == "blocks.2.mlp"
    assert browser.focused("aria-expanded") == "true"
    browser.press(Keys.ARROW_LEFT)
    assert browser.focused("aria-expanded") == "false"
    browser.press(Keys.ARROW_LEFT)
    assert browser.focused("title") == "blocks.2"
    browser.press(Keys.ARROW_RIGHT)
    assert browser.focused("title") == "blocks.2.ln1"
    browser.press(Keys.HOME)
    assert browser.focused("aria-level") == "1"
    browser.press(Keys.END)
    assert browser.focused("title") == "head"
    browser.press("n")
    assert browser.focused("title") == "norm"
    browser.press(Keys.ENTER)
    assert browser.text("#detail-name") == "norm"
    assert browser.focused("aria-selected") == "true"
    # one stop of the tab key, and every row says its place
    rows = browser.all("[role=treeitem]")
    assert len([r for r in rows if r.get_attribute("tabindex") == "0"]) == 1
    assert all(r.get_attribute("aria-posinset") for r in rows)
    browser.quiet()


def test_the_tree_shows_one_iteration_or_all(browser, parted):
    browser.open(parted[0])
    slider = browser.all(".slide input")[0]
    assert slider.get_attribute("aria-valuetext") == "iteration 1"
    embed = "[title=embed]"
    label = browser.all(embed)[0].get_attribute("aria-label")
    first = float(re.search(r"forward ([\d.]+)", label)[1])
    assert 0 < first < 10
    slider.send_keys(Keys.HOME)
    assert slider.get_attribute("aria-valuetext") == "worst of all iterations"
    label = browser.all(embed)[0].get_attribute("aria-label")
    assert float(re.search(r"forward ([\d,.]+)", label)[1]
                 .replace(",", "")) > 1000


def test_a_module_is_found_by_a_part_of_its_name(browser, parted):
    browser.open(parted[0])
    search = browser.all("input[type=search]")[0]
    search.send_keys("1.attn.q")
    assert browser.text("#detail-name") == "blocks.1.attn.qkv"
    search.send_keys("nothing")
    assert "no module" in browser.text(".aside [role=status]")


def test_the_map_says_its_cells_and_has_a_table(browser, parted):
    page, _ = parted
    got = data(page)
    browser.open(page)
    (box,) = browser.all("#heat .mapbox")
    box.send_keys(Keys.ARROW_DOWN, Keys.ARROW_RIGHT)
    forward = sorted((p for p in got["places"] if p[1] == 1 and p[7] >= 0),
                     key=lambda p: p[6])
    row = got["map"][forward[0][7]]
    said = browser.text("#heat .say")
    assert said.startswith("embed, iteration 2: ")
    assert float(said.split(": ")[1].replace(",", "")) == pytest.approx(
        row[1], rel=0.01)
    box.send_keys(Keys.ENTER)
    assert browser.text("#detail-name") == "embed"
    browser.run("document.querySelector('#heat details').open = true")
    browser.run("return new Promise(r => setTimeout(r, 50))")
    cells = browser.run("""return [...document.querySelectorAll(
        '#heat tbody tr:first-child td')].map(c => c.textContent)""")
    assert cells[0] == "embed" and len(cells) == 1 + got["columns"][2]
    assert cells[2] == said.split(": ")[1]
    browser.quiet()


def test_curves_are_walked_by_keys(browser, parted):
    browser.open(parted[0])
    (plot,) = browser.all("#growth .chart")
    assert plot.get_attribute("role") == "slider"
    plot.send_keys(Keys.HOME)
    assert browser.text("#growth .say").startswith(
        "embed, forward, iteration 1, record 2: gave ")
    plot.send_keys(Keys.END)
    assert "grad" in plot.get_attribute("aria-valuetext")
    browser.quiet()


@pytest.mark.parametrize("which", ["parted", "ill"])
def test_what_can_be_used_has_a_name(browser, request, which):
    browser.open(request.getfixturevalue(which)[0])
    browser.command("Accessibility.enable")
    nodes = browser.command("Accessibility.getFullAXTree")["nodes"]
    roles = {}
    for node in nodes:
        role = node.get("role", {}).get("value")
        name = node.get("name", {}).get("value", "")
        roles.setdefault(role, []).append(name)
    for role in ("button", "link", "combobox", "slider", "searchbox", "tree",
                 "treeitem", "application", "region", "navigation", "table",
                 "image"):
        assert all(n.strip() for n in roles.get(role, [])), role
    for role in ("treeitem", "slider", "application", "combobox", "table",
                 "heading", "main", "banner", "navigation"):
        assert roles.get(role), role
    levels = browser.run("return [...document.querySelectorAll('h1,h2,h3')]"
                         ".map(h => Number(h.tagName[1]))")
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels))


# ---- how it looks ----

CONTRAST = """
const light = c => c.map(v => (v /= 255) <= 0.04045 ? v / 12.92
    : Math.pow((v + 0.055) / 1.055, 2.4));
const shine = c => { const [r, g, b] = light(c);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const parse = s => s.match(/[\\d.]+/g).map(Number);
const behind = e => { for (; e; e = e.parentElement) {
    const c = parse(getComputedStyle(e).backgroundColor);
    if (c.length < 4 || c[3] === 1) return c.slice(0, 3); }
    return [255, 255, 255]; };
const poor = [];
document.querySelectorAll("details").forEach(d => d.open = true);
for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 &&
        n.textContent.trim());
    if (!own || !e.getClientRects().length ||
        /SCRIPT|NOSCRIPT|OPTION/.test(e.tagName) || e.closest(".hidden"))
        continue;
    const style = getComputedStyle(e);
    const svg = e instanceof SVGElement;
    const a = shine(parse(svg ? style.fill : style.color).slice(0, 3));
    const b = shine(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const big = parseFloat(style.fontSize) >= 24;
    if (ratio < (big ? 3 : 4.5))
        poor.push([e.className, e.textContent.slice(0, 20), ratio]);
}
return poor;
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("which", ["parted", "ill"])
def test_text_stands_out_from_what_is_behind(browser, request, which, theme):
    browser.open(request.getfixturevalue(which)[0], theme)
    assert browser.run(
        "return document.documentElement.dataset.theme") == theme
    assert browser.run(CONTRAST) == []
    browser.quiet()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_of_values_rise_in_lightness_alone(browser, parted, theme):
    """Who sees no hue sees the order still: lightness goes one way."""
    browser.open(parted[0], theme)
    for row in "hm":
        shine = browser.run("""
            const style = getComputedStyle(document.documentElement);
            return [0, 1, 2, 3, 4, 5, 6, 7].map(i => {
                const c = style.getPropertyValue(`--${arguments[0]}${i}`)
                    .trim().match(/[0-9a-f]{2}/g).map(x => parseInt(x, 16));
                const l = c.map(v => (v /= 255) <= 0.04045 ? v / 12.92
                    : Math.pow((v + 0.055) / 1.055, 2.4));
                return 0.2126 * l[0] + 0.7152 * l[1] + 0.0722 * l[2];
            });""", row)
        steps = [(b + 0.05) / (a + 0.05) for a, b in pairwise(shine)]
        if theme == "light":
            steps = [1 / s for s in steps]
        assert all(s > 1.1 for s in steps), (row, steps)


def test_the_theme_is_changed_by_hand(browser, parted):
    browser.open(parted[0], "dark")
    (button,) = browser.all("#theme")
    assert button.text == "Light theme"
    before = browser.run("return getComputedStyle(document.body)"
                         ".backgroundColor")
    button.click()
    assert button.text == "Dark theme"
    after = browser.run("return getComputedStyle(document.body)"
                        ".backgroundColor")
    assert before != after
    browser.quiet()


@pytest.mark.parametrize("width", [360, 768])
@pytest.mark.parametrize("which", ["parted", "ill"])
def test_a_narrow_window_needs_no_scrolling_aside(
        browser, request, which, width):
    browser.open(request.getfixturevalue(which)[0], width=width)
    assert browser.run(
        "return document.documentElement.scrollWidth") == width
    browser.quiet()


def test_the_map_of_nan_tells_the_sides_apart(browser, tmp_path):
    page, _ = report(tmp_path, Run(MODEL, 6),
                     Run(MODEL, 6, hole=poisoned))
    got = data(page)
    (place,) = [p for p in got["places"] if p[1] == 1
                and got["objects"][p[0]][0] == CULPRIT]
    a, b = got["nan"][place[8]]
    assert a == [0] * 6 and b == [0, 0, 0, 3, 3, 3]
    browser.open(page)
    assert browser.text("#nan").count("in B only") == 1
    (box,) = browser.all("#nan .mapbox")
    box.send_keys(Keys.ARROW_DOWN, Keys.END)
    assert browser.text("#nan .say").endswith("A 0, B 3")
    browser.quiet()


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
