"""Pages of `tracectl report`, and a real Chromium without a network."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

import programs
from made_run import Run, make, transformer

selenium = pytest.importorskip("selenium")
from selenium import webdriver  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
MODEL = transformer(4)
CULPRIT = "blocks.2.mlp.act"
ORDER = [m for m, _ in MODEL]


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
