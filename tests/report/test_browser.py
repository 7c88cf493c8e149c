"""The page in a real browser: no errors, nothing fetched, charts and images with their numbers.

A copy of the page gets a small script that looks at it once it is loaded and writes what it saw
into the page around it, whose frame has the width to be tested (a browser's own window cannot be
as narrow as a phone). The browser then prints the outer page and its console.
"""

import json
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import pytest

from nacre.report.page import write_report
from nacre.report.results import ScenarioResults, load_results, percent

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
    "--window-size=1300,1000",
)

PROBE = """
<script>
const errors = [];
addEventListener("error", event => errors.push(String(event.message)), true);
addEventListener("load", () => {
  const all = query => [...document.querySelectorAll(query)];
  const box = element => { const b = element.getBoundingClientRect(); return [b.width, b.height]; };
  const words = element => element.textContent.trim();
  parent.document.getElementById("told").textContent = JSON.stringify({
    errors,
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    images: all("img").map(image => [image.naturalWidth, ...box(image)]),
    charts: all("svg.chart").map(box),
    tips: all("svg.chart g.mark > title").map(words),
    table: [...all("table.results")[0].tBodies[0].rows].map(row => [...row.cells].map(words)),
    heat: all("table.heat").map(table => [
      words(table.caption), ...[...table.tBodies[0].rows].map(row => [...row.cells].map(words))
    ]),
    fetched: performance.getEntriesByType("resource").map(entry => entry.name)
      .filter(name => !name.startsWith("data:")),
    ink: getComputedStyle(document.body).color,
  });
});
</script>
"""

OUTER = """<!doctype html><html><head><link rel="icon" href="data:,"></head><body>
<pre id="told"></pre>
<iframe style="border:0;width:{width}px;height:900px" srcdoc="{page}"></iframe></body></html>
"""


def find_browser() -> str:
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    return found[0]


def visit(page: Path, folder: Path, width: int, scheme: str = "light") -> dict[str, Any]:
    """Open a page in a frame of a width; return what the probe saw there."""
    browser = find_browser()
    folder.mkdir()
    text = page.read_text(encoding="utf-8")
    text = escape(text.replace("</head>", PROBE + "</head>"))
    (folder / "outer.html").write_text(OUTER.format(width=width, page=text), encoding="utf-8")
    setting = f"--blink-settings=preferredColorScheme={1 if scheme == 'light' else 0}"
    profile = f"--user-data-dir={folder / 'profile'}"
    address = (folder / "outer.html").as_uri()
    command = [browser, *FLAGS, setting, profile, "--dump-dom", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert [line for line in done.stderr.splitlines() if ":CONSOLE" in line] == []
    told = re.search(r'<pre id="told">(.+?)</pre>', done.stdout, re.DOTALL)
    assert told, "the page never finished loading"
    found: dict[str, Any] = json.loads(unescape(told[1]))
    return found


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_browser()
    return write_report([runs], tmp_path_factory.mktemp("report"), images=3)


@pytest.fixture(scope="module")
def wide(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return visit(page, tmp_path_factory.mktemp("wide") / "visit", 1200)


@pytest.fixture(scope="module")
def results(runs: Path) -> ScenarioResults:
    (found,) = load_results([runs])
    return found


def check_whole(found: dict[str, Any]) -> None:
    assert found["errors"] == []
    assert found["fetched"] == []
    # Tables and images may be scrolled in their places, the page as a whole may not.
    assert found["overflow"] <= 0
    assert found["images"]
    assert all(min(sizes) > 0 for sizes in found["images"])
    assert found["charts"]
    assert all(width > 100 and height > 50 for width, height in found["charts"])


def test_is_whole_on_a_desk(wide: dict[str, Any]) -> None:
    assert wide["width"] == 1200
    check_whole(wide)


def test_is_whole_on_a_phone_in_the_dark(page: Path, tmp_path: Path, wide: dict[str, Any]) -> None:
    narrow = visit(page, tmp_path / "visit", 400, "dark")
    assert narrow["width"] == 400
    check_whole(narrow)
    assert narrow["ink"] != wide["ink"]
    assert narrow["table"] == wide["table"]


def test_table_shows_the_metrics(wide: dict[str, Any], results: ScenarioResults) -> None:
    expected = []
    for row in results.rows:
        cells = [percent(row.mean(0, "all"))]
        for step in (1, 2):
            cells += [percent(row.mean(step, group)) for group in ("old", "new", "all")]
        expected.append([row.name, *cells])
    assert wide["table"] == expected


def test_heat_maps_show_the_metrics(wide: dict[str, Any], results: ScenarioResults) -> None:
    assert [one[0] for one in wide["heat"]] == [row.name for row in results.rows]
    for row, shown in zip(results.rows, wide["heat"], strict=True):
        steps = [step for step in range(3) if row.runs[0].after(step)]
        for name, *values in shown[1:]:
            assert values == [percent(row.iou(step, name)) for step in steps]


def test_hovering_shows_the_metrics(wide: dict[str, Any], results: ScenarioResults) -> None:
    for row in results.incremental:
        for step in (1, 2):
            for group in ("old", "new", "all"):
                told = f"{row.name}, step {step}, {group}: {percent(row.mean(step, group))} %"
                assert told in wide["tips"]


def test_the_probe_sees_what_is_wrong(page: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.html"
    wrong = '<img src="http://127.0.0.1:9/missing.png" alt=""><div style="width:2000px">wide</div>'
    text = page.read_text(encoding="utf-8").replace("<main>", f"<main>{wrong}")
    broken.write_text(text, encoding="utf-8")
    found = visit(broken, tmp_path / "visit", 1200)
    assert found["overflow"] > 0
    assert found["images"][0][0] == 0
    assert found["errors"]
    assert found["fetched"] == ["http://127.0.0.1:9/missing.png"]
