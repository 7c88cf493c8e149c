"""Tests of a saved model, under the conventions of its run or under others."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nacre.data.step_data import LabeledSet, LearnData, ScenarioData
from nacre.errors import NacreError
from nacre.evaluation.predictor import whole_predictor
from nacre.models.io import ModelInfo, find_model, load_model
from nacre.models.network import Network
from nacre.runs.learn import open_folders, open_tests
from nacre.runs.run import open_scenario
from nacre.runs.testing import LearnTests, Pass, ScenarioTests, class_ious, mean_ious
from nacre.training.config import (
    LearnConfig,
    RunConfig,
    deep_merge,
    parse_assignment,
    resolve,
)
from nacre.utils.distributed import init_distributed


def evaluate_checkpoint(
    path: Path, values: dict[str, Any], assignments: Sequence[str] = ()
) -> dict[str, Any]:
    """Test the model at a path with its own config, changed by plain values and ``a.b=value``.

    A model of `nacre learn` is tested on its own folders, or on the folder ``data.root``.
    """
    network, info, _ = load_model(find_model(path))
    plain, is_run, root = info.config, "scenario" in info.config, values.get("data", {}).get("root")
    if not is_run:
        values = {} if root is None else {"data": [root], "tests": []}
        plain = plain if root is None else {**plain, "rename": {}}
    for changes in (values, *map(parse_assignment, assignments)):
        plain = deep_merge(plain, changes)
    if not is_run:
        return _evaluate(resolve(LearnConfig, plain), network, info, is_own=root is None)
    config = resolve(RunConfig, plain)
    data, dist = open_scenario(config), init_distributed(config.train.device)
    step = len(info.steps) - 1
    _check_classes(path, info.classes, data, step)
    return ScenarioTests(data, config).test(network.to(dist.device), step, dist)


def evaluate_on_folder(network: Network, info: ModelInfo, folder: Path) -> dict[str, Any]:
    """Test any model on the test images of a data folder, as `nacre predict` shows them to it."""
    sections = ("images", "labels", "train")
    own: dict[str, Any] = {key: info.config[key] for key in sections if key in info.config}
    changes = {
        "images": {"eval_mode": info.predict_mode, "crop_size": info.crop},
        "train": {"device": next(network.parameters()).device.type},
        "data": [str(folder)],
    }
    config = resolve(LearnConfig, deep_merge(own, changes))
    return _evaluate(config, network, info, is_own=False)


def _check_classes(path: Path, known: list[str], data: ScenarioData, step: int) -> None:
    """Refuse data with other classes than the model."""
    wanted = list(data.scenario.classes.names(step)) if step < data.num_steps else []
    if wanted != known:
        raise NacreError(
            f"{path} knows {', '.join(known)}, but after step {step} the scenario "
            f"{data.scenario.name!r} has {', '.join(wanted) or 'no such step'}"
        )
    data.check_tests(step + 1)


def _evaluate(
    config: LearnConfig, network: Network, info: ModelInfo, *, is_own: bool
) -> dict[str, Any]:
    """Test a model on its own folders and test folders, or on others."""
    folders = open_folders(config.data) if is_own else []
    sets = tuple(LabeledSet(name, source, config.rename) for name, source in folders)
    tests = tuple(open_tests(config.tests if is_own else config.data, config.rename))
    channels = info.channels
    data = LearnData(sets, tests, channels, (), config.images, config.seed, config.labels)
    dist = init_distributed(config.train.device)
    predictor = whole_predictor(network.to(dist.device), config.images)
    one_pass = Pass(config.train, dist)
    figures = LearnTests(data, config).compare(predictor, channels, None, one_pass).after
    if not figures:
        named = sorted({name for dataset in (*sets, *tests) for name in dataset.names.values()})
        raise NacreError(
            "no test image has a pixel of a class that the model knows; the data name "
            f"{', '.join(named)}"
        )
    iou, step = class_ious(figures), len(info.steps) - 1
    learned = dict(zip(channels.names, channels.step_of, strict=True))
    new = [name for name in channels.names[1:] if learned[name] == step]
    old = [name for name in channels.names[1:] if learned[name] < step]
    return {
        "step": step,
        "classes": info.classes,
        "images": sum(test["images"] for test in figures),
        "iou": iou,
        "mean_iou": mean_ious(iou, old, new),
        "tests": figures,
        "conventions": config.conventions(),
    }
