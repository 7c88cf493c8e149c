"""The JSON files of a run, checked when they are read: of which type, how large, what fits to what.

A file that somebody changed or that a failing disk damaged is one sentence with its place, and no
figure that cannot be (an IoU of 700 %) ever reaches a table.
"""

from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nacre.errors import check
from nacre.utils.io import load_json

Count = Annotated[int, Field(strict=True, ge=0, le=2**62)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]
Change = Annotated[float, Field(strict=True, ge=-1, le=1)]
Name = Annotated[str, Field(max_length=4096)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Record(BaseModel):
    """A file; what this version does not know in it is left alone."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; say what does not fit in it."""
        return check(cls, load_json(path), f"{path} is not nacre's")

    def plain(self) -> dict[str, Any]:
        """Return the content as it was read."""
        return self.model_dump(mode="json")


class StepMetrics(Record):
    """The test figures of a network after a step."""

    step: Count
    classes: list[Name] = Field(min_length=1, max_length=65_536)
    iou: dict[Name, Share | None]
    mean_iou: dict[Name, Share | None]
    confusion: list[list[Count]]
    images: Count

    @model_validator(mode="after")
    def _fits(self) -> Self:
        count = len(self.classes)
        if list(self.iou) != self.classes:
            raise ValueError("the classes of `iou` are not those of `classes`")
        if [len(row) for row in self.confusion] != [count] * count:
            raise ValueError(f"`confusion` is not a square of {count} x {count} numbers")
        return self


class Summary(Record):
    """The summary of all steps of a run."""

    scenario: Name
    method: Name
    seed: Count
    groups: list[Annotated[list[Name], Field(min_length=1)]] = Field(min_length=1)
    conventions: dict[Name, Any]
    classes: list[Name] = Field(min_length=1)
    iou_by_step_and_class: list[list[Share | None]]
    forgetting: dict[Name, Change | None]
    mean_forgetting_without_background: Change | None
    mean_iou_by_step: list[dict[Name, Share | None]] = Field(min_length=1)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.mean_iou_by_step) not in (1, len(self.groups)):
            raise ValueError(
                f"`mean_iou_by_step` has {len(self.mean_iou_by_step)} steps and `groups` "
                f"{len(self.groups)}"
            )
        sizes = [len(row) for row in self.iou_by_step_and_class]
        if sizes != [len(self.classes)] * len(self.mean_iou_by_step):
            raise ValueError("`iou_by_step_and_class` has other steps or classes than the rest")
        return self


class Start(Record):
    """One start of a run: when, how, with what."""

    time: Name = ""


class Starts(Record):
    """Every start of a run."""

    starts: list[Start]


class Images(Record):
    """Images, by their number and the digest of their names."""

    images: Count
    sha256: Digest


class LearnedImages(Images):
    """The images of a step, and its classes by label."""

    classes: dict[Name, Name] = Field(min_length=1)


class Fingerprint(Record):
    """The data that a run is learned from and tested on."""

    background: int | None
    steps: list[LearnedImages] = Field(min_length=1)
    tests: list[Images]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.steps) != len(self.tests):
            raise ValueError("`steps` and `tests` are not of the same steps")
        return self


class TestSet(Record):
    """The test figures of a model on a folder of `nacre learn`: by class the IoU and its pixels."""

    name: Name
    images: Count
    training_images: Count = 0
    iou: dict[Name, Share | None]
    counts: dict[Name, tuple[Count, Count, Count]]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if set(self.iou) != set(self.counts):
            raise ValueError("the classes of `iou` are not those of `counts`")
        return self


class Measured(Record):
    """The figures that the metrics of a step have in common, of a run or of `nacre learn`."""

    step: Count
    classes: list[Name] = Field(min_length=1, max_length=65_536)
    images: Count
    iou: dict[Name, Share | None]
    mean_iou: dict[Name, Share | None]
    conventions: dict[Name, Any] = {}
    tests: list[TestSet] = []


class Agreement(Record):
    """The share of the start model's predictions that the new model still makes."""

    images: Count
    iou: dict[Name, Share]


class Verdict(Record):
    """A word for a class after a step, and the likely reason of a bad one."""

    word: Name
    reason: Name


class LearnMetrics(Measured):
    """The test figures of a model of `nacre learn` beside the one it started from."""

    new: list[Name]
    iou_before: dict[Name, Share | None]
    verdicts: dict[Name, Verdict] = {}
    agreement: Agreement | None
    tests: list[TestSet]
    tests_before: list[TestSet]
