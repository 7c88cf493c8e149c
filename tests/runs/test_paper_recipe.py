"""The paper's recipe, unchanged, on generated images in VOC folders: it runs."""

import json

import numpy as np
import pytest
from PIL import Image

from nacre.runs.run import run_scenario
from nacre.training.config import build_config
from nacre.training.events import Trained, read_events

IMAGES = 48  # two batches of 24 for each of the two steps
SIZE = (500, 375)


def make_voc(root):
    """Write images of VOC's size; each holds a class of step 0 and one of step 1."""
    rng = np.random.default_rng(1)
    for folder in ("JPEGImages", "SegmentationClassAug", "ImageSets/Segmentation"):
        (root / folder).mkdir(parents=True)
    names = {"train_aug": [], "val": []}
    for i in range(IMAGES + 2):
        name = f"2026_{i:06d}"
        names["val" if i >= IMAGES else "train_aug"].append(name)
        mask = np.zeros((SIZE[1], SIZE[0]), np.uint8)
        mask[50:200, 50:250] = 1 + i % 15
        mask[150:300, 200:400] = 16 + i % 5
        mask[200:204] = 255
        noise = rng.integers(0, 60, (SIZE[1], SIZE[0], 3))
        image = noise + (mask[..., None] * np.array([7, 3, 5])) % 180
        Image.fromarray(image.astype(np.uint8)).save(root / "JPEGImages" / f"{name}.jpg")
        Image.fromarray(mask).save(root / "SegmentationClassAug" / f"{name}.png")
    for split, members in names.items():
        (root / "ImageSets" / "Segmentation" / f"{split}.txt").write_text("\n".join(members) + "\n")


def paper_config(root, **train):
    values = {"scenario": "voc/15-5/overlapped", "data": {"root": str(root)}, "train": train}
    values["model"] = {"weights": "none"}
    return build_config(preset="paper", overrides=values)


def test_the_preset_is_the_papers(tmp_path):
    config = paper_config(tmp_path)
    assert (config.model.backbone, config.model.output_stride, config.model.norm) == (
        "resnet101",
        16,
        "iabn",
    )
    assert (config.train.batch_size, config.train.epochs) == (24, 30)
    assert (config.train.lr, config.train.incremental_lr) == (0.01, 0.001)
    assert (config.train.nesterov, config.train.weight_decay) == (True, 1e-4)
    assert (config.images.crop_size, config.images.crop) == (512, "paper")
    assert config.method.model_dump()["weight"] == 10


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_two_iterations_a_step_at_full_size(tmp_path):
    import torch

    torch.set_num_threads(2)
    make_voc(tmp_path / "VOC2012")
    config = paper_config(tmp_path / "VOC2012", epochs=1, micro_batch=2)
    run_scenario(config, tmp_path / "run")
    events = read_events(tmp_path / "run" / "events.jsonl")
    trained = [(one.step, one.iteration) for one in events if isinstance(one, Trained)]
    assert trained == [(0, 1), (0, 2), (1, 1), (1, 2)]
    last = json.loads((tmp_path / "run" / "step-1" / "metrics.json").read_text())
    assert len(last["classes"]) == 21
    assert last["images"] == 2
