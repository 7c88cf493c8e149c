"""Complete run folders with random metrics and untrained networks."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nacre.data import DATASETS
from nacre.evaluation.metrics import compute_metrics, summarize
from nacre.methods import find_method
from nacre.models.build import build_network
from nacre.models.io import ModelInfo, save_model
from nacre.report.published import ALL_IMAGES, TEST_IMAGES, released_lists
from nacre.runs.folder import RunFolder
from nacre.scenarios.scenario import Scenario, make_scenario, read_scenario
from nacre.training.config import RunConfig, build_config, deep_merge
from nacre.training.events import (
    EventFile,
    Position,
    Recorder,
    RunBegan,
    StepBegan,
    StepLearned,
    Trained,
)
from nacre.utils.io import save_json

SCENARIO = "scenes/4-2-2/overlapped"
BACKBONE = "tiny"

MakeRun = Callable[..., Path]


def make_config(method: Any, seed: int, scenario: str = SCENARIO, **overrides: Any) -> RunConfig:
    own = {"train": 40, "val": 12, "size": 32} if scenario.startswith("scenes") else {"root": "x"}
    values = {
        "scenario": scenario,
        "method": method,
        "seed": seed,
        "data": own,
        "model": {"backbone": BACKBONE, "decoder_channels": 4},
        "images": {"crop_size": 32, "crop": "plain"},
    }
    train = {"epochs": 4, "lr": 0.2, "incremental_lr": 0.06} | overrides.pop("train", {})
    return build_config(overrides={**values, **overrides, "train": train})


def make_paper_config(method: Any, seed: int, scenario: str, **overrides: Any) -> RunConfig:
    """Return the config of the preset `paper` for a scenario and a method."""
    values = {"scenario": scenario, "method": method, "seed": seed, "data": {"root": "x"}}
    values = deep_merge({**values, "model": {"weights": "resnet101.pth"}}, overrides)
    return build_config(preset="paper", overrides=values)


def write_run(
    path: Path,
    method: Any = "mib",
    seed: int = 1,
    *,
    networks: bool = False,
    make: Callable[..., RunConfig] = make_config,
    fingerprint: dict[str, Any] | None = None,
    **overrides: Any,
) -> Path:
    """Write a finished run with random confusion matrices that depend on its method and seed."""
    config = make(method, seed, **overrides)
    scenario = scenario_of(config)
    folder = RunFolder(path)
    path.mkdir(parents=True, exist_ok=True)
    images = {"images": 3, "sha256": "0" * 64}
    learned = {**images, "classes": {"1": "a class"}}
    some = {"background": 0, "steps": [learned], "tests": [images]}
    folder.bind_config(config, fingerprint or some)
    folder.append_start({"device": "cpu", "seed": seed, "precision": "float32: no GPU"})
    _write_events(folder, config, len(scenario.classes.steps))
    draw = torch.Generator().manual_seed(seed * 100 + len(config.method.name))
    steps = []
    for step in range(len(scenario.classes.steps)):
        metrics = _metrics(scenario, step, draw)
        save_json(folder.step_metrics(step), metrics)
        steps.append(metrics)
        if networks:
            _write_network(folder, config, scenario, step)
    names = scenario.classes.space.names
    summary = {
        "scenario": config.scenario,
        "method": config.method.name,
        "seed": seed,
        "groups": [[names[label] for label in labels] for labels in scenario.groups],
        "conventions": {"border": "background", "unseen": "ignored", "test": "crop"},
        **summarize(steps),
    }
    save_json(folder.metrics, summary)
    return path


def scenario_of(config: RunConfig) -> Scenario:
    """Return the scenario of a config without opening its data."""
    written = read_scenario(config.scenario)
    data = DATASETS[written.data]
    assert data.space is not None
    scenario = make_scenario(config.scenario, written, data.space, data.tasks())
    return scenario.merged() if find_method(config.method.name).is_joint else scenario


def _metrics(scenario: Scenario, step: int, draw: torch.Generator) -> dict[str, Any]:
    channels = len(scenario.classes.channels(step))
    confusion = torch.randint(0, 50, (channels, channels), generator=draw)
    confusion += torch.diag(torch.randint(0, 900, (channels,), generator=draw))
    metrics = compute_metrics(scenario.classes, scenario.groups, step, confusion)
    conventions = {"border": "background", "unseen": "ignored", "test": "crop"}
    return metrics | {"images": 12, "conventions": conventions}


def _write_events(folder: RunFolder, config: RunConfig, steps: int) -> None:
    recorder = Recorder([EventFile(folder.events, Position(0))])
    name, seed = config.method.name, config.seed
    recorder(RunBegan(config.scenario, name, seed, "cpu", 1, "float32", "none", [30] * steps))
    for step in range(steps):
        recorder(StepBegan(step=step, classes=["a"], images=40, iterations=30, first=0))
        for iteration in (10, 20, 30):
            losses = {"ce": 2.0 / iteration} | ({"kd": 0.5} if step else {})
            recorder(Trained(step, iteration, 0.1, losses, images_per_second=100.0))
        recorder(StepLearned(step, seconds=1.5 + step, peak_memory_bytes=3 * 2**20))


def _write_network(folder: RunFolder, config: RunConfig, scenario: Scenario, step: int) -> None:
    classes = scenario.classes
    sizes = [1 + len(classes.new(0)), *(len(one) for one in classes.steps[1 : step + 1])]
    torch.manual_seed(config.seed * 10 + len(config.method.name))
    network = build_network(config.model, sizes, config.images.crop_size)
    info = ModelInfo(
        classes=list(classes.names(step)),
        colors=list(classes.channels(step).colors),
        steps=sizes,
        history=[],
        model=config.model.model_dump(mode="json"),
        predict_mode="crop",
        crop=config.images.crop_size,
        config=config.to_dict(),
    )
    save_model(folder.model(step), network, info, {})


def released_images(scenario: str, *, joint: bool = False) -> dict[str, Any]:
    """Return the fingerprint of a run on the released images of a scenario."""
    data, task, setup = scenario.split("/")
    lists = ALL_IMAGES[data] if joint else None
    steps = {0: lists} if lists else released_lists()[data, task, setup]
    tests = TEST_IMAGES[data]
    return {
        "background": 0,
        "steps": [{**_images(steps[step]), "classes": {"1": "a class"}} for step in sorted(steps)],
        "tests": [_images(tests)] * len(steps),
    }


def _images(noted: tuple[int, str]) -> dict[str, Any]:
    return {"images": noted[0], "sha256": noted[1]}


@pytest.fixture
def make_paper_run(tmp_path: Path) -> MakeRun:
    """Write runs with the preset `paper` on the released images."""

    def make(name: str, method: Any, scenario: str, **more: Any) -> Path:
        images = released_images(scenario, joint=method == "joint")
        values = {"fingerprint": images, "make": make_paper_config, **more}
        return write_run(tmp_path / name, method, scenario=scenario, **values)

    return make


@pytest.fixture
def make_run(tmp_path: Path) -> MakeRun:
    """Write runs into the temporary folder of a test."""

    def make(name: str, *args: Any, **more: Any) -> Path:
        return write_run(tmp_path / name, *args, **more)

    return make


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of four methods and their networks."""
    folder = tmp_path_factory.mktemp("runs")
    for method in ("ft", "lwf", "mib", "joint"):
        write_run(folder / method, method, networks=True)
    return folder
