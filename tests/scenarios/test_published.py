"""The image lists of every step are those that were published, name for name.

`facts/` holds the label values in every training mask of Pascal VOC 2012 (train_aug) and ADE20K,
`nacre/report/released_lists.csv` the sizes and digests of the lists that were released: all
42 of the paper's, and 90 of later papers.
"""

import csv
import lzma
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from nacre.data import apply_to_index
from nacre.data.index import read_index
from nacre.report import published
from nacre.scenarios.plan import make_plan, plan_as_json

FACTS = Path(__file__).parents[1] / "facts"
RELEASED = Path(published.__file__).with_name("released_lists.csv")
SPLITS = list(csv.DictReader(RELEASED.read_text().splitlines()))
INDEX_OF = {"voc": "voc_train_aug", "ade20k": "ade20k_train"}


@pytest.fixture(scope="session")
def index_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts")
    for data, name in INDEX_OF.items():
        (folder / f"{data}.csv").write_bytes(
            lzma.decompress((FACTS / f"{name}.csv.xz").read_bytes())
        )
    return folder


@cache
def plan_of(text, index_files):
    scenario, index, images = apply_to_index(text, index_files / f"{text.split('/')[0]}.csv")
    return plan_as_json(scenario, make_plan(scenario, index, images))


@pytest.mark.parametrize(
    "row",
    SPLITS,
    ids=lambda row: f"{row['dataset']}-{row['scenario']}-{row['regime']}-{row['step']}",
)
def test_published_lists(row, index_files):
    text = f"{row['dataset']}/{row['scenario']}/{row['regime']}"
    step = plan_of(text, index_files)["steps"][int(row["step"])]
    assert step["images"] == int(row["images"])
    assert step["sha256"] == row["sha256_of_sorted_names"]


def test_every_list_of_the_papers_tables_is_among_those_compared():
    papers = [row for row in SPLITS if "MiB" in row["published_in"].split()]
    assert len(papers) == 42
    steps = Counter(f"{row['dataset']}/{row['scenario']}/{row['regime']}" for row in papers)
    voc = {"19-1": 2, "15-5": 2, "15-1": 6}
    ade20k = {"100-50": 2, "100-10": 6, "50-50": 3}
    setups = ("disjoint", "overlapped")
    assert steps == {
        **{f"voc/{task}/{setup}": n for task, n in voc.items() for setup in setups},
        **{f"ade20k/{task}{b}/partition": n for task, n in ade20k.items() for b in ("", "b")},
    }


@pytest.mark.parametrize("order", ["", "b"])
@pytest.mark.parametrize("task", ["100-50", "100-10", "50-50"])
def test_every_class_of_ade20k_but_one_has_50_images_in_its_own_step(task, order, index_files):
    text = f"ade20k/{task}{order}/partition"
    scenario, index, lists = apply_to_index(text, index_files / "ade20k.csv")
    few = {}
    for step, images in enumerate(lists):
        held = Counter(label for i in images for label in index.labels[i])
        few |= {label: held[label] for label in scenario.classes.new(step) if held[label] < 50}
    everywhere = Counter(label for labels in index.labels for label in labels)
    (escalator,) = few  # it has fewer than 50 in all of ADE20K
    assert scenario.classes.space.names[escalator].startswith("escalator")
    assert everywhere[escalator] == 41
    assert all(everywhere[label] >= 50 for label in range(1, 151) if label != escalator)


@pytest.mark.parametrize("setup", ["disjoint", "overlapped"])
@pytest.mark.parametrize("task", ["19-1", "15-5", "15-1", "10-10", "10-5", "10-1", "5-3", "2-2"])
def test_every_voc_task_reaches_every_class(task, setup, index_files):
    steps = plan_of(f"voc/{task}/{setup}", index_files)["steps"]
    assert sum(len(step["classes"]) for step in steps) == 20
    if setup == "disjoint":
        assert sum(step["images"] for step in steps) == 10_582
        assert all(not step["hidden"]["future"] for step in steps)


@pytest.mark.parametrize("order", ["", "b", "c"])
@pytest.mark.parametrize("task", ["100-50", "100-10", "50-50"])
def test_the_partition_gives_each_labelled_image_once(task, order, index_files):
    steps = plan_of(f"ade20k/{task}{order}/partition", index_files)["steps"]
    assert sum(step["images"] for step in steps) == 20_210 - 14
    if task == "100-50":
        finer = plan_of(f"ade20k/100-10{order}/partition", index_files)["steps"]
        assert steps[0]["sha256"] == finer[0]["sha256"]
        assert steps[1]["images"] == sum(step["images"] for step in finer[1:])


def test_an_index_is_read_in_any_order(index_files):
    lines = (index_files / "voc.csv").read_text().splitlines()
    shuffled = index_files / "shuffled.csv"
    shuffled.write_text("\n".join([lines[0], *reversed(lines[1:])]) + "\n")
    assert read_index(shuffled) == read_index(index_files / "voc.csv")
    shuffled.unlink()
