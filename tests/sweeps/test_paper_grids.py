"""The grids of the paper's tables in `examples/`, on tiny folders of VOC's and ADE20K's form."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nacre.report.kinds import NUMBERS, make_tables
from nacre.report.published import published
from nacre.report.results import load_results
from nacre.runs.run import run_scenario
from nacre.sweeps.grid import check_grid, make_jobs, read_grid
from nacre.training.config import deep_merge

EXAMPLES = Path(__file__).parents[2] / "examples"
SMALL = {
    "model": {"backbone": "tiny", "output_stride": None, "decoder_channels": 4, "weights": "none"},
    "images": {"crop_size": 16},
    "train": {"iterations": 1, "batch_size": 2},
}
# The kind of table that a grid is for, and how many runs it has
GRIDS = {
    "paper-voc": ("voc", 54),
    "paper-ade20k": ("ade20k", 36),
    "paper-ablation": ("ablation", 12),
    "paper-lwf-mc-voc": ("lwf-mc", 15),
    "paper-lwf-mc-ade20k": ("lwf-mc", 10),
}

each_grid = pytest.mark.parametrize("name", GRIDS)


def write_pair(image: Path, mask: Path, label: int) -> None:
    labels = np.zeros((12, 16), np.uint8)
    labels[3:9, 4:12] = label
    for path in (image, mask):
        path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((12, 16, 3), label, np.uint8)).save(image)
    Image.fromarray(labels).save(mask)


@pytest.fixture(scope="module")
def voc(tmp_path_factory):
    """Two training images and a test image of each class, alone."""
    root = tmp_path_factory.mktemp("VOC2012")
    lists = {"train_aug": [], "val": []}
    for i in range(60):
        name = f"2026_{i:06d}"
        lists["val" if i >= 40 else "train_aug"].append(name)
        mask = root / "SegmentationClassAug" / f"{name}.png"
        write_pair(root / "JPEGImages" / f"{name}.jpg", mask, 1 + i % 20)
    for split, names in lists.items():
        path = root / "ImageSets" / "Segmentation" / f"{split}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(names) + "\n")
    return root


@pytest.fixture(scope="module")
def ade20k(tmp_path_factory):
    """A training image and a test image of each class, alone."""
    root = tmp_path_factory.mktemp("ADEChallengeData2016")
    for split, short in (("training", "train"), ("validation", "val")):
        for label in range(1, 151):
            name = f"ADE_{short}_{label:08d}"
            mask = root / "annotations" / split / f"{name}.png"
            write_pair(root / "images" / split / f"{name}.jpg", mask, label)
    return root


@pytest.fixture
def root(request, name):
    return request.getfixturevalue("ade20k" if "ade20k" in name else "voc")


def jobs_of(name, root, out, **changes):
    content = read_grid(EXAMPLES / f"{name}.yaml").model_dump() | changes
    values = deep_merge(content["config"], deep_merge(SMALL, {"data": {"root": str(root)}}))
    return make_jobs(check_grid({**content, "config": values}), out)


def carry_out(jobs):
    """Carry out runs in this process, those first that learn step 0 for others."""
    for job in sorted(jobs, key=lambda job: job.first is not None):
        run_scenario(job.config, job.folder.path, cache=job.cache)


@each_grid
def test_a_grid_has_a_run_for_every_figure_of_its_table(name, root, tmp_path):
    kind, count = GRIDS[name]
    jobs = jobs_of(name, root, tmp_path)
    assert len(jobs) == count
    data = "ade20k" if "ade20k" in name else "voc"
    layouts = [published()[number] for number in NUMBERS[kind]]
    (layout,) = [one for one in layouts if one.places[0].data == data]
    orders = 2 if data == "ade20k" else 1
    assert count == len(layout.places) * len(layout.methods) * orders


def test_a_part_of_the_ablation_fills_its_part_of_the_table(voc, tmp_path):
    jobs = jobs_of("paper-ablation", voc, tmp_path, scenarios=["voc/19-1/overlapped"])
    carry_out(jobs)
    (table,) = make_tables(load_results([tmp_path]), "ablation", paper=True)
    ours = [row.name for row in table.rows if row.source == "ours"]
    assert ours == ["LwF*", "LwF + CE*", "LwF + CE + KD*", "MiB (CE + KD + init)*"]
    for note in (
        "model.backbone: tiny (paper: resnet101)",
        "model.weights: none, a random start (paper: ImageNet)",
        "images.crop_size: 16 (paper: 512)",
        "train.batch_size: 2 (paper: 24)",
        "training images: 40 (paper: 10,958)",
        "test images: 20 (paper: 1,449)",
    ):
        assert note in table.caption
    assert "method." not in table.caption, "the methods are the paper's"
