"""The pages: complete in one file, with the numbers of the metrics files."""

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import nacre
from nacre.data.scenes import ScenesConfig
from nacre.errors import NacreError
from nacre.report.page import is_learn_folder, write_learn_page, write_report
from nacre.report.results import load_results, percent
from partial_data import write_folder

WORLD = ScenesConfig(train=16, val=8, size=32, seed=3)
TINY = {
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"iterations": 3, "batch_size": 4},
}
VOID = {"meta", "link", "hr", "br", "img"}


class Reader(HTMLParser):
    """Reads a page; checks that its elements are closed in order."""

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


def test_the_page_needs_no_other_file(page: Path) -> None:
    text, reader = read(page)
    assert all(address.startswith(("data:", "#")) for address in reader.addresses)
    assert not re.search(r"@import|url\(|<script", text)
    files = ["index.html", "table.csv", "table.md"]
    assert sorted(path.name for path in page.parent.iterdir()) == files


def test_charts_and_images_have_alternatives(page: Path) -> None:
    text, reader = read(page)
    assert len(reader.ids) == len(set(reader.ids))
    assert set(reader.labeled) <= set(reader.ids)
    assert text.count("<desc") == 3
    assert len(reader.alternatives) == 3 * (1 + 4 + 1)
    assert all(reader.alternatives)


def test_the_page_has_the_numbers_of_the_metrics_files(page: Path, runs: Path) -> None:
    text, _ = read(page)
    (results,) = load_results([runs])
    for row in results.rows:
        for step in range(3):
            for group in ("old", "new", "all"):
                assert percent(row.mean(step, group)) in text
            for name in results.classes:
                value = row.iou(step, name)
                if value is not None:
                    assert f"{row.name}, {name} after step {step}: {percent(value)} %" in text
    for name, value in results.rows[0].runs[0].forgetting.items():
        assert f"FT forgot {percent(value)} points of {name}" in text
    assert "Joint forgot" not in text
    # Steps of 1.5, 2.5 and 3.5 seconds; at most 3 MiB.
    assert "<h3>Time and memory</h3>" in text
    assert '<td class="n">7.5</td>' in text
    assert '<td class="n">3</td>' in text


def test_the_paper_is_beside_the_runs_only_on_request(make_run: Any, tmp_path: Path) -> None:
    path = make_run("mib", scenario="voc/15-5/overlapped")
    plain, _ = read(write_report([path], tmp_path / "plain"))
    assert "paper's" not in plain
    beside, _ = read(write_report([path], tmp_path / "beside", paper=True))
    assert "MiB, paper&#39;s" in beside
    assert ">69.0</td>" in beside


def test_a_page_without_networks_names_what_is_missing(make_run: Any, tmp_path: Path) -> None:
    path = make_run("mib")
    text, reader = read(write_report([path], tmp_path / "out"))
    assert "No images: " in text
    assert "hidden in its background" in text
    assert reader.alternatives == []


def test_the_last_of_many_steps_comes_first(make_run: Any, tmp_path: Path) -> None:
    path = make_run("mib", scenario="scenes/4-1/overlapped")
    text, _ = read(write_report([path], tmp_path / "out", images=0))
    assert text.index(">1-4</th>") < text.index("After every step")
    assert "8 classes learned in 5 steps: 4, 1, 1, 1, 1." in text


def test_names_are_escaped(make_run: Any, tmp_path: Path) -> None:
    text, _ = read(write_report([make_run("r")], tmp_path / "out", title="<b>&", images=0))
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;" in text


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("page")
    write_folder(root / "pets", ["pearl", "starfish"], world=WORLD)
    write_folder(root / "birds", ["crate"], world=WORLD)
    nacre.learn(root / "pets", out=root / "first", config=TINY)
    nacre.learn(root / "birds", start=root / "first", out=root / "second", config=TINY)
    return root


def test_the_page_of_a_step_shows_classes_and_images_before_and_after(
    steps: Path, tmp_path: Path
) -> None:
    assert is_learn_folder(steps / "second")
    page = write_learn_page(steps / "second", tmp_path, images=2).read_text()
    for text in ("pearl", "crate <em>new</em>", "agreement", "before", "after", "no test images"):
        assert text in page
    assert page.count("<figure>") == 2 * 4
    assert "of the pixels correct" not in page, "a folder labels only some of the classes"
    assert "http" not in page.replace("http-equiv", ""), "it needs nothing beside it"


def test_the_page_of_a_first_model_has_no_before(steps: Path, tmp_path: Path) -> None:
    page = write_learn_page(steps / "first", tmp_path, images=2).read_text()
    assert "before on" not in page
    assert page.count("<figure>") == 2 * 3


def test_the_page_of_a_step_without_its_data_has_the_numbers(steps: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    shutil.copytree(steps / "second", moved)
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace("birds", "gone"))
    page = write_learn_page(moved, tmp_path / "out").read_text()
    assert "No images: " in page
    assert "crate <em>new</em>" in page


def test_an_unfinished_step_is_refused(steps: Path, tmp_path: Path) -> None:
    shutil.copytree(steps / "second", tmp_path / "cut")
    (tmp_path / "cut" / "metrics.json").unlink()
    with pytest.raises(NacreError, match="is not finished: resume it with"):
        write_learn_page(tmp_path / "cut", tmp_path / "out")
