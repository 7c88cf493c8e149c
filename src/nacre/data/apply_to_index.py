"""A scenario applied to an index alone, which needs neither pictures nor torch."""

from pathlib import Path

from nacre.data import find_dataset
from nacre.data.index import read_index
from nacre.errors import NacreError
from nacre.labels.space import ranges
from nacre.scenarios.label_index import Index
from nacre.scenarios.scenario import (
    ImageLists,
    Scenario,
    check_images,
    make_scenario,
    read_scenario,
    step_images,
)


def apply_to_index(text: str, path: Path) -> tuple[Scenario, Index, ImageLists]:
    """Return a scenario, the index and the images of each step, all checked."""
    scenario, index = _without_pictures(text), read_index(path)
    _check_labels(path, index, scenario)
    images = step_images(scenario, index)
    check_images(scenario, index, images)
    return scenario, index, images


def _check_labels(path: Path, index: Index, scenario: Scenario) -> None:
    space = scenario.classes.space
    for name, labels in zip(index.names, index.labels, strict=True):
        unknown = sorted(labels - space.allowed)
        if unknown:
            raise NacreError(
                f"{path}: image {name!r} has the label {unknown[0]}, which {scenario.data!r} does "
                f"not know; labels: {ranges(space.allowed)}"
            )


def _without_pictures(text: str) -> Scenario:
    written = read_scenario(text)
    data = find_dataset(written.data, f"data set in scenario {text!r}:")
    if data.space is None:
        raise NacreError(
            f"the classes of {written.data!r} stand in its classes.yaml; give --root instead of "
            "--index"
        )
    return make_scenario(text, written, data.space, data.tasks())
