"""The image lists of every step are those that were published, name for name.

`facts/` holds the label values in every training mask of Pascal VOC 2012 (train_aug) and ADE20K,
and the sizes and digests of published lists.
"""

import csv
import lzma
from pathlib import Path

import pytest

from nacre.data.apply_to_index import apply_to_index
from nacre.data.index import read_index
from nacre.scenarios.plan import make_plan, plan_as_json

FACTS = Path(__file__).parents[1] / "facts"
SPLITS = list(csv.DictReader((FACTS / "published_splits.csv").read_text().splitlines()))
INDEX_OF = {"voc": "voc_train_aug", "ade20k": "ade20k_train"}


@pytest.fixture(scope="session")
def index_files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts")
    for data, name in INDEX_OF.items():
        (folder / f"{data}.csv").write_bytes(
            lzma.decompress((FACTS / f"{name}.csv.xz").read_bytes())
        )
    return folder


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
