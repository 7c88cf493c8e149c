"""How the same image is seen as classes are added: a row per method, a column per step."""

from collections.abc import Sequence
from dataclasses import dataclass

from nacre.data.step_data import ScenarioData
from nacre.report.pictures.predict import Color, Pixels, TestImage, look, open_network
from nacre.report.results.aggregate import ScenarioResults
from nacre.report.results.runs import RunResult
from nacre.runs.folder import RunFolder

Masks = tuple[Pixels | None, ...]
"""A mask for each step of the task; joint training has only the last."""


@dataclass(frozen=True)
class Growth:
    """One image through all steps.

    Attributes:
        image: The image and its truth after the last step.
        methods: The rows.
        masks: For each method, what it sees after each step.
    """

    image: TestImage
    methods: tuple[str, ...]
    masks: tuple[Masks, ...]


def growth_of(
    results: ScenarioResults, data: ScenarioData, images: Sequence[TestImage]
) -> list[Growth]:
    """Return what every method sees in images after each step."""
    if not images:
        return []
    names = tuple(row.name for row in results.rows)
    by_row = [_through_steps(row.runs[0], data, images) for row in results.rows]
    return [
        Growth(image, names, tuple(masks[at] for masks in by_row))
        for at, image in enumerate(images)
    ]


def colors_of(data: ScenarioData) -> tuple[Color, ...]:
    """Return the colours of all channels, the same after every step."""
    return data.scenario.classes.colors(data.num_steps - 1)


def _through_steps(run: RunResult, data: ScenarioData, images: Sequence[TestImage]) -> list[Masks]:
    """Return, for each image, a run's mask after each step of the task."""
    steps: list[list[Pixels] | None] = []
    last = len(run.groups) - 1
    for step in range(last + 1):
        if run.after(step) is None:
            steps.append(None)
            continue
        # All networks of a scenario have the same channels; joint training has them at once.
        path = RunFolder(run.path).model(0 if run.merged else step)
        names = data.scenario.classes.names(min(step, data.num_steps - 1))
        steps.append(look(open_network(path, names), images))
    return [
        tuple(None if masks is None else masks[at] for masks in steps) for at in range(len(images))
    ]
