"""tracectl report: the page under keys, a screen reader and themes."""

import re
import sqlite3
from itertools import pairwise

import pytest
from selenium.webdriver.common.keys import Keys

from made_run import Run, make
from report_page import CULPRIT, MODEL, data, poisoned, report

pytest_plugins = "report_fixtures"


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


# ---- what is long, close or missing ----


@pytest.mark.parametrize("width", [1280, 400])
def test_a_name_of_a_thousand_letters_widens_no_page(
        browser, tmp_path, width):
    model = [("x" * 1000, "Y" * 900), ("", "Net")]
    page, _ = report(tmp_path, Run(
        model, 2, hole=lambda module, *_: 2 * (module != "")))
    browser.open(page, width=width)
    assert "x" * 1000 == browser.text("h1")
    room = browser.run("""return [document.documentElement.scrollWidth,
        document.querySelector("h1").getBoundingClientRect().height]""")
    assert room[0] == width and room[1] < 300
    browser.quiet()


def ticks(browser):
    return browser.run("""return [...document.querySelectorAll(
        "#detail .chart text[text-anchor=end]")].map(t => t.textContent)""")


def test_the_ticks_of_a_figure_that_hardly_moves_differ(browser, tmp_path):
    run = make(tmp_path / "a.db", Run([("", "Net")], 4))
    with sqlite3.connect(run) as db:
        db.execute("UPDATE record SET l2 = 524 + step / 4.0")
    page, _ = report(tmp_path, run)
    browser.open(page)
    browser.run("return new Promise(r => setTimeout(r, 100))")
    got = ticks(browser)
    assert len(got) > 3 and len(set(got)) == len(got)
    browser.quiet()


def test_a_history_shows_where_no_figure_is(browser, tmp_path):
    """All elements are NaN from the third iteration on."""
    run = make(tmp_path / "a.db", Run(
        [("", "Net")], 5, hole=lambda module, what, step, rank:
        4096 * (step > 2)))
    with sqlite3.connect(run) as db:
        db.execute("UPDATE record SET l2 = NULL, mean = NULL, std = NULL,"
                   " max = NULL, min = NULL WHERE nan > 0")
    page, _ = report(tmp_path, run)
    browser.open(page)
    browser.run("return new Promise(r => setTimeout(r, 100))")
    assert "NaN, ∞" in ticks(browser)
    places = browser.run("""return [...document.querySelectorAll(
        "#detail .chart text[text-anchor=end]")].map(t =>
        Number(t.getAttribute("y")))""")
    assert min(places) == places[ticks(browser).index("NaN, ∞")] > 0
    (plot,) = browser.all("#detail .chart")
    plot.send_keys(Keys.END)
    assert browser.text("#detail .say").startswith("iteration 5: ")
    browser.quiet()
