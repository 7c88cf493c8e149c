"""How the same image is seen as classes are added: a row per method, a column per step."""

from collections.abc import Sequence
from dataclasses import dataclass

from nacre.data.step_data import ScenarioData
from nacre.report.pictures.predict import Pixels, TestImage, open_network, predict_masks
from nacre.report.pictures.sheet import PredictedImage
from nacre.report.results.aggregate import ScenarioResults
from nacre.report.results.runs import RunResult
from nacre.runs.folder import RunFolder

Masks = tuple[Pixels | None, ...]
"""A mask for each step of the task; joint training has only the last."""


@dataclass(frozen=True)
class PredictionsByStep:
    """One image through all steps.

    Attributes:
        image: The image and its truth after the last step.
        methods: The rows.
        masks: For each method, what it sees after each step.
    """

    image: TestImage
    methods: tuple[str, ...]
    masks: tuple[Masks, ...]


def predict_by_step(
    results: ScenarioResults, data: ScenarioData, pictures: Sequence[PredictedImage]
) -> list[PredictionsByStep]:
    """Return what every method sees in pictures of a sheet after each step.

    What it sees after the last one is on the sheet, so that no network is loaded twice.
    """
    if not pictures:
        return []
    images = [seen.image for seen in pictures]
    names = tuple(row.name for row in results.rows)
    earlier = [_before_the_last(row.runs[0], data, images) for row in results.rows]
    return [
        PredictionsByStep(
            seen.image,
            names,
            tuple((*masks[i], last) for masks, last in zip(earlier, seen.masks, strict=True)),
        )
        for i, seen in enumerate(pictures)
    ]


def _before_the_last(
    run: RunResult, data: ScenarioData, images: Sequence[TestImage]
) -> list[Masks]:
    """Return, for each image, a run's mask after each step of the task but the last."""
    steps: list[list[Pixels] | None] = []
    for step in range(len(run.groups) - 1):
        if run.after(step) is None:
            steps.append(None)
            continue
        network = open_network(RunFolder(run.path).model(step), data.scenario.classes.names(step))
        steps.append(predict_masks(network, images, data.config.test_window))
    return [
        tuple(None if masks is None else masks[i] for masks in steps) for i in range(len(images))
    ]
