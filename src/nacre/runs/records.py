"""The JSON files of a run: their types and limits, checked when a file is read.

A changed or damaged file ends in one sentence that names the place, and an impossible figure (an
IoU of 700 %) never reaches a table.
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
    """A JSON file; keys that this version does not know are kept."""

    model_config = ConfigDict(frozen=True, extra="allow", allow_inf_nan=False)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read and check a file."""
        return check(cls, load_json(path), f"{path} is not nacre's")

    def plain(self) -> dict[str, Any]:
        """Return the content as plain data."""
        return self.model_dump(mode="json")


class Measured(Record):
    """The test figures after a step, of a run or of `nacre learn`."""

    step: Count
    classes: list[Name] = Field(min_length=1, max_length=65_536)
    images: Count
    iou: dict[Name, Share | None]
    mean_iou: dict[Name, Share | None]
    conventions: dict[Name, Any] = {}


class StepMetrics(Measured):
    """The test figures after a step of a run."""

    confusion: list[list[Count]]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        count = len(self.classes)
        if list(self.iou) != self.classes:
            raise ValueError("the classes of `iou` are not those of `classes`")
        if [len(row) for row in self.confusion] != [count] * count:
            raise ValueError(f"`confusion` is not a square of {count} x {count} numbers")
        return self


class Summary(Record):
    """The test figures of a run over all of its steps."""

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
    """A start of a run: its time, command, versions and machine."""

    time: Name = ""


class Starts(Record):
    """All starts of a run."""

    starts: list[Start]


class Images(Record):
    """A list of images: their number and the digest of their names."""

    images: Count
    sha256: Digest


class LearnedImages(Images):
    """The training images of a step, and its classes by label."""

    classes: dict[Name, Name] = Field(min_length=1)


class Fingerprint(Record):
    """The data that a run trains and tests on."""

    background: int | None
    steps: list[LearnedImages] = Field(min_length=1)
    tests: list[Images]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if len(self.steps) != len(self.tests):
            raise ValueError("`steps` and `tests` have different lengths")
        return self


class TestSet(Record):
    """The test figures of a model on a folder of `nacre learn`: IoU and pixel counts by class."""

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


class Agreement(Record):
    """The agreement of the start model with the new one, by class."""

    images: Count
    iou: dict[Name, Share]


class Verdict(Record):
    """A word for a class after a step, and the likely reason if it is bad."""

    word: Name
    reason: Name


class LearnMetrics(Measured):
    """The test figures of a step of `nacre learn`, beside those of its start model."""

    new: list[Name]
    iou_before: dict[Name, Share | None]
    verdicts: dict[Name, Verdict] = {}
    agreement: Agreement | None
    tests: list[TestSet]
    tests_before: list[TestSet]
