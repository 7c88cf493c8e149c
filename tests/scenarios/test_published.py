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

from nacre.data import find_dataset
from nacre.labels.space import LabelIndex
from nacre.report import published
from nacre.scenarios.scenario import (
    check_images,
    make_plan,
    make_scenario,
    plan_as_json,
    read_scenario,
    step_images,
)

FACTS = Path(__file__).parents[1] / "facts"
RELEASED = Path(published.__file__).with_name("released_lists.csv")
SPLITS = list(csv.DictReader(RELEASED.read_text().splitlines()))
INDEX_OF = {"voc": "voc_train_aug", "ade20k": "ade20k_train"}


@cache
def read_index(data):
    lines = lzma.decompress((FACTS / f"{INDEX_OF[data]}.csv.xz").read_bytes()).decode().splitlines()
    rows = sorted(csv.reader(lines[1:]))
    # How many pixels there are is not known, and decides nothing.
    return LabelIndex(
        tuple(name for name, _ in rows),
        tuple(dict.fromkeys(map(int, labels.split()), 1) for _, labels in rows),
    )


@cache
def apply(text):
    """Return a scenario, the label index of its data and the images of each step."""
    written = read_scenario(text)
    data, index = find_dataset(written.data), read_index(written.data)
    scenario = make_scenario(text, written, data.space, data.tasks())
    images = step_images(scenario, index)
    check_images(scenario, index, images)
    return scenario, index, images


@cache
def plan_of(text):
    scenario, index, images = apply(text)
    return plan_as_json(scenario, make_plan(scenario, index, images))


@pytest.mark.parametrize(
    "row",
    SPLITS,
    ids=lambda row: f"{row['dataset']}-{row['scenario']}-{row['regime']}-{row['step']}",
)
def test_published_lists(row):
    text = f"{row['dataset']}/{row['scenario']}/{row['regime']}"
    step = plan_of(text)["steps"][int(row["step"])]
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


@pytest.mark.parametrize("setup", ["disjoint", "overlapped"])
@pytest.mark.parametrize("task", ["19-1", "15-5", "15-1", "10-10", "10-5", "10-1", "5-3", "2-2"])
def test_every_voc_task_reaches_every_class(task, setup):
    steps = plan_of(f"voc/{task}/{setup}")["steps"]
    assert sum(len(step["classes"]) for step in steps) == 20
    if setup == "disjoint":
        assert sum(step["images"] for step in steps) == 10_582
        assert all(not step["hidden"]["future"] for step in steps)


@pytest.mark.parametrize("order", ["", "b", "c"])
@pytest.mark.parametrize("task", ["100-50", "100-10", "50-50"])
def test_the_partition_gives_each_labeled_image_once(task, order):
    steps = plan_of(f"ade20k/{task}{order}/partition")["steps"]
    assert sum(step["images"] for step in steps) == 20_210 - 14
    if task == "100-50":
        finer = plan_of(f"ade20k/100-10{order}/partition")["steps"]
        assert steps[0]["sha256"] == finer[0]["sha256"]
        assert steps[1]["images"] == sum(step["images"] for step in finer[1:])
