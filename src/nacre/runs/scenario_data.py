"""From a config to the data of its scenario, and the order in which a step sees them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from nacre.data import DATASETS, open_source
from nacre.data.ram_cache import Cached
from nacre.data.sampler import StepSampler
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.methods import find_method
from nacre.scenarios.label_index import Index
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
    if config.images.cache_mib:
        source = Cached(source, config.images.cache_mib << 20)
    written = read_scenario(config.scenario)
    tasks = DATASETS[written.data].tasks()
    task = make_scenario(config.scenario, written, source.space, tasks)
    merges = find_method(config.method.name).is_joint
    return ScenarioData(
        source=source,
        task=task,
        scenario=task.merged() if merges else task,
        config=config.images,
        conventions=config.conventions,
        seed=config.seed,
        lists=config.lists,
    )


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
    return StepSampler(
        num_images=num_images,
        batch_size=train.batch_size,
        epochs=(train.incremental_epochs or train.epochs) if step else train.epochs,
        seed=recipe.seed,
        rank=rank,
        world_size=world_size,
        micro_batch=train.micro_batch,
        total=train.iterations,
        shares=shares,
    )


def check_takes_hidden(recipe: Recipe, hidden: Tensor | None) -> None:
    """Refuse data that say what their background hides to a method whose losses cannot know."""
    kind = find_method(recipe.method.name)
    if hidden is None or kind.takes_hidden:
        return
    if recipe.train.unlabeled == "background":
        raise NacreError(
            f"train.unlabeled: 'background' is a matter of the cross-entropy over all classes, "
            f"which {kind.name} does not have; take another method"
        )
    raise NacreError(
        f"{kind.name} cannot learn from data whose background hides other classes than "
        "all old ones: it has no cross-entropy over the classes; take another method"
    )


def apply_scenario(
    scenario: str,
    *,
    root: Path | None = None,
    lists: Path | None = None,
    file: Path | None = None,
    sets: Sequence[str] = (),
) -> tuple[Scenario, Index, ImageLists]:
    """Apply a scenario to a data folder; return it, the index and the images of each step."""
    values: dict[str, Any] = {"scenario": scenario}
    if lists is not None:
        values["lists"] = str(lists)
    if root is not None:
        values["data"] = {"root": str(root)}
    data = open_scenario(build_config(file=file, assignments=sets, overrides=values))
    return data.scenario, data.train_index, data.image_lists
