"""The shipped scenarios on a few small real images, from the data to the figures."""

from pathlib import Path

import pytest

from nacre.evaluation.metrics import summarize
from nacre.runs.run import learn_scenario, open_scenario
from nacre.training.config import build_config

EXAMPLES = Path(__file__).parents[2] / "examples"


def learn_a_little(scenario, data, tmp_path):
    """Learn a scenario from eight images per step with preset small, at 64 pixels."""
    values = {
        "scenario": scenario,
        "data": data,
        "images": {"crop_size": 64},
        "train": {"epochs": 1, "batch_size": 4},
    }
    config = build_config(preset="small", overrides=values)
    assert config.model.backbone == "lite0"
    few = open_scenario(config)
    few.__dict__["image_lists"] = tuple(images[:8] for images in few.image_lists)
    return summarize(learn_scenario(config, tmp_path / "run", data=few))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["4-2", "4-1"])
def test_voc_animals(task, voc_part, tmp_path):
    metrics = learn_a_little(f"voc-animals-{task}", {"root": str(voc_part)}, tmp_path)
    assert metrics["classes"] == [
        "background",
        "cat",
        "cow",
        "dog",
        "horse",
        "person",
        "sheep",
    ]
    assert len(metrics["mean_iou_by_step"]) == (2 if task == "4-2" else 3)
    assert all(value is not None for value in metrics["iou_by_step_and_class"][-1])


def test_camvid_without_a_background_class(camvid, tmp_path):
    data = {"root": str(camvid), "classes": str(EXAMPLES / "camvid-classes.yaml")}
    metrics = learn_a_little("camvid-6-5", data, tmp_path)
    assert len(metrics["classes"]) == 12
    first, last = metrics["iou_by_step_and_class"]
    # Channel 0 is what has not been named yet: in the end nothing is left of it.
    assert last[0] is None
    assert first[0] is None
    assert all(value is not None for value in last[1:])
