import pytest
from tests.report.browser import chromium, find_chromium
from tests.report.runs import two_estimators

from gdpo.lab.experiments.analysis import analyse
from gdpo.lab.report import write_report


@pytest.fixture(scope="session")
def compared(tmp_path_factory):
    """The results of two estimators with two seeds, and the page about them."""
    folder = tmp_path_factory.mktemp("compared")
    comparison = analyse(two_estimators(folder / "runs"))
    write_report(comparison, folder / "report.html")
    return comparison, folder / "report.html"


@pytest.fixture(scope="module")
def browser():
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium: install one (Debian: chromium), or name it with GDPO_CHROMIUM")
    with chromium(program) as page:
        yield page
