"""What the tests of the page share; they name this file as a plugin."""

import os

import pytest

import made_run
from made_run import Run
from report_page import (
    CHROMIUM,
    CULPRIT,
    DRIVER,
    MODEL,
    Browser,
    poisoned,
    report,
)


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
