"""The page in a real browser: no errors, nothing fetched, images and charts in their places."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from export.page.browser import Browser, find_browser
from nacre.report.page import write_report
from nacre.report.results import load_results, percent

LOOK = """(() => {
  const all = query => [...document.querySelectorAll(query)];
  const box = element => { const b = element.getBoundingClientRect(); return [b.width, b.height]; };
  return {
    overflow: document.documentElement.scrollWidth - innerWidth,
    images: all("img").map(image => [image.naturalWidth, ...box(image)]),
    charts: all("svg.chart").map(box),
    tips: all("svg.chart g.mark > title").map(element => element.textContent.trim()),
  };
})()"""


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_browser()
    return write_report([runs], tmp_path_factory.mktemp("report"), images=3)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


def visit(browser: Browser, page: Path) -> dict[str, Any]:
    browser.console.clear()
    browser.requests.clear()
    browser.open(page.as_uri())
    found: dict[str, Any] = browser.run(LOOK)
    return found


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (400, "dark")])
def test_is_whole_on_a_desk_and_on_a_phone(
    browser: Browser, page: Path, runs: Path, width: int, scheme: str
) -> None:
    browser.resize(width, 900, scheme)
    found = visit(browser, page)
    assert browser.console == []
    assert browser.requests == [page.as_uri()]
    # Tables and images may be scrolled in their places, the page as a whole may not.
    assert found["overflow"] <= 0
    assert found["images"]
    assert all(min(sizes) > 0 for sizes in found["images"])
    assert found["charts"]
    assert all(width > 100 and height > 50 for width, height in found["charts"])
    (results,) = load_results([runs])
    for row in results.incremental:
        assert f"{row.name}, step 2, all: {percent(row.mean(2, 'all'))} %" in found["tips"]
