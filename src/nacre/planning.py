"""What `nacre plan` and `nacre scenarios` show, put together from the tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table

from nacre.data import DATASETS, Index
from nacre.data.index.build import read_index
from nacre.errors import NacreError, unknown_name
from nacre.scenarios.classes import ranges
from nacre.scenarios.published_lists import read_lists
from nacre.scenarios.scenario import (
    SETUPS,
    ImageLists,
    Scenario,
    check_images,
    make_scenario,
    read_scenario,
    shipped_scenarios,
    step_images,
)


def planned(
    scenario: str,
    *,
    root: Path | None = None,
    index: Path | None = None,
    lists: Path | None = None,
    file: Path | None = None,
    sets: Sequence[str] = (),
) -> tuple[Scenario, Index, ImageLists]:
    """Apply a scenario to an index file alone, or to a data folder."""
    if index is not None:
        if root is not None or file is not None or sets:
            raise NacreError(
                "--index stands for the data: --root, --config and --set do not go with it"
            )
        applied = _without_pictures(scenario)
        labels = read_index(index)
        _check_labels(index, labels, applied)
        images = (
            step_images(applied, labels) if lists is None else read_lists(lists, applied, labels)
        )
        check_images(applied, labels, images)
        return applied, labels, images
    # Only the way through a config needs torch, and an index should be answered at once.
    from nacre.data.step_data import prepare
    from nacre.training.config import gather

    values: dict[str, Any] = {"scenario": scenario}
    if lists is not None:
        values["lists"] = str(lists)
    if root is not None:
        values["data"] = {"root": str(root)}
    prepared = prepare(gather(file=file, assignments=sets, overrides=values))
    return prepared.scenario, prepared.train_index, prepared.images


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
    if written.data not in DATASETS:
        raise unknown_name(f"data set in scenario {text!r}:", written.data, DATASETS)
    data = DATASETS[written.data]
    if data.space is None:
        raise NacreError(
            f"the classes of {written.data!r} stand in its classes.yaml; give --root instead of "
            "--index"
        )
    return make_scenario(text, written, data.space, data.tasks())


def scenarios_table() -> RenderableType:
    """Return the data sets with their tasks, and the scenario files that come with nacre."""
    data = Table(title="data / task / setup", title_justify="left")
    for column in ("data", "what it is", "tasks, for example", "setups"):
        data.add_column(column)
    for name, one in DATASETS.items():
        setups = SETUPS if name == "ade20k" else SETUPS[:2]
        data.add_row(name, one.about, ", ".join(one.examples), ", ".join(setups))
    files = Table(title="scenarios that come with nacre", title_justify="left")
    for column in ("name", "data", "setup", "what it is"):
        files.add_column(column)
    for name in shipped_scenarios():
        written = read_scenario(name)
        files.add_row(name, written.data, written.setup, written.about)
    return Group(data, files) if files.row_count else data
