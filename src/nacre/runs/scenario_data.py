"""From a config to the data of its scenario, and the order in which a step sees them."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nacre.data import find_dataset, open_source
from nacre.data.saliency import Saliency
from nacre.data.sampler import StepSampler
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex
from nacre.methods import find_method
from nacre.scenarios.scenario import (
    ImageLists,
    Scenario,
    make_scenario,
    read_scenario,
)
from nacre.training.config import Recipe, RunConfig, build_config


def open_scenario(config: RunConfig) -> ScenarioData:
    """Open the data of a config and apply its scenario."""
    source = open_source(config.data)
    written = read_scenario(config.scenario)
    tasks = find_dataset(written.data).tasks()
    task = make_scenario(config.scenario, written, source.space, tasks)
    merges = find_method(config.method.name).is_joint
    return ScenarioData(
        source=source,
        scenario=task.merged() if merges else task,
        config=config.images,
        policy=config.labels,
        seed=config.seed,
        memory=config.memory,
        saliency=open_saliency(config),
    )


def open_saliency(recipe: Recipe) -> Saliency | None:
    """Return the maps of what is salient, where the method learns from such."""
    folder = recipe.method.saliency_maps
    if folder is not None and not folder.is_dir():
        raise NacreError(f"method.saliency: there is no folder {folder}")
    return None if folder is None else Saliency(folder)


def step_sampler(
    recipe: Recipe,
    num_images: int,
    step: int,
    rank: int = 0,
    world_size: int = 1,
    shares: tuple[tuple[int, float], ...] | None = None,
) -> StepSampler:
    """Return which images of a step come when in a process."""
    train = recipe.train
    updates = (train.incremental_iterations or train.iterations) if step else train.iterations
    one_pass = not find_method(recipe.method.name).learns_by_gradient
    return StepSampler(
        num_images=num_images,
        batch_size=train.batch_size,
        epochs=(train.incremental_epochs or train.epochs) if step else train.epochs,
        seed=recipe.seed,
        rank=rank,
        world_size=world_size,
        # What fits a GPU is found when the step's networks are there.
        micro_batch=train.micro_batch,
        total=math.ceil(num_images / train.test_batch(1)) if one_pass else updates,
        shares=shares,
    )


def apply_scenario(
    scenario: str,
    *,
    root: Path | None = None,
    file: Path | None = None,
    sets: Sequence[str] = (),
) -> tuple[Scenario, LabelIndex, ImageLists]:
    """Apply a scenario to a data folder; return it, the index and the images of each step."""
    values: dict[str, Any] = {"scenario": scenario}
    if root is not None:
        values["data"] = {"root": str(root)}
    data = open_scenario(build_config(file=file, assignments=sets, overrides=values))
    return data.scenario, data.train_index, data.image_lists
