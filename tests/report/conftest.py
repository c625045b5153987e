import pytest
from tests.report.browser import chromium, find_chromium


@pytest.fixture(scope="module")
def browser():
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium: install one (Debian: chromium), or name it with GDPO_CHROMIUM")
    with chromium(program) as page:
        yield page
