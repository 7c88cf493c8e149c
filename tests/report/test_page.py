"""The page: whole in one file, with the numbers of the metrics files in it."""

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from nacre.report.page import write_report
from nacre.report.results import load_results, percent

VOID = {"meta", "link", "hr", "br", "img"}


class Reader(HTMLParser):
    """Checks that elements close in order; collects addresses, ids and alternatives."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self.alternatives: list[str] = []
        self.labeled: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.addresses += [found[name] or "" for name in ("src", "href") if name in found]
        self.ids += [found["id"] or ""] if "id" in found else []
        self.labeled += (found.get("aria-labelledby") or "").split()
        if tag == "img":
            self.alternatives.append(found.get("alt") or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(path: Path) -> tuple[str, Reader]:
    text = path.read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([runs], tmp_path_factory.mktemp("report"), images=3)


def test_needs_nothing_beside_it(page: Path) -> None:
    text, reader = read(page)
    assert page.name == "index.html"
    assert all(one.startswith(("data:", "#")) for one in reader.addresses)
    assert not re.search(r"@import|url\(|<script", text)
    assert page.stat().st_size < 10_000_000
    assert sorted(one.name for one in page.parent.iterdir()) == [
        "index.html",
        "table.csv",
        "table.md",
    ]


def test_charts_and_pictures_have_alternatives(page: Path) -> None:
    text, reader = read(page)
    assert len(reader.ids) == len(set(reader.ids))
    assert set(reader.labeled) <= set(reader.ids)
    assert text.count("<desc") == 3 + 4
    assert len(reader.alternatives) == 3 * (1 + 4 + 1)
    assert all(reader.alternatives)


def test_holds_the_figures_of_the_metrics_files(page: Path, runs: Path) -> None:
    text, _ = read(page)
    (results,) = load_results([runs])
    for row in results.rows:
        for step in range(3):
            for group in ("old", "new", "all"):
                assert percent(row.mean(step, group)) in text
            for name in results.classes:
                value = row.iou(step, name)
                if value is not None:
                    told = f"{row.name}, {name} after step {step}: {percent(value)} %"
                    assert told in text
    for name, value in results.rows[0].runs[0].forgetting.items():
        assert f"FT forgot {percent(value)} points of {name}" in text
    assert "Joint forgot" not in text


def test_says_time_and_memory(page: Path) -> None:
    text, _ = read(page)
    assert "<h3>Time and memory</h3>" in text
    # Steps of 1.5, 2.5 and 3.5 seconds; 3 MiB at most.
    assert '<td class="n">7.5</td>' in text
    assert '<td class="n">3</td>' in text


def test_sets_the_paper_beside_only_where_asked(make_run: Any, tmp_path: Path) -> None:
    path = make_run("mib", scenario="voc/15-5/overlapped")
    plain, _ = read(write_report([path], tmp_path / "plain"))
    assert "paper's" not in plain
    beside, _ = read(write_report([path], tmp_path / "beside", paper=True))
    assert "MiB, paper&#39;s" in beside
    assert ">69.0</td>" in beside


def test_without_its_networks_a_page_says_so(make_run: Any, tmp_path: Path) -> None:
    path = make_run("mib")
    text, reader = read(write_report([path], tmp_path / "out"))
    assert "No images: " in text
    assert "hidden in its background" in text
    assert reader.alternatives == []


def test_of_many_steps_the_last_comes_first(make_run: Any, tmp_path: Path) -> None:
    path = make_run("mib", scenario="scenes/4-1/overlapped")
    text, _ = read(write_report([path], tmp_path / "out", images=0))
    assert text.index(">1-4</th>") < text.index("After every step")
    assert "8 classes learned in 5 steps: 4, 1, 1, 1, 1." in text


def test_names_are_escaped(make_run: Any, tmp_path: Path) -> None:
    text, _ = read(write_report([make_run("r")], tmp_path / "out", title="<b>&", images=0))
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;" in text
