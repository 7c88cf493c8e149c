"""The change of a model by a step: every test set before and after it, and agreement.

A test set judges the classes that it labels and no others: where it marks background, a class that
it does not label may stand, so a prediction of such a class counts as background there.

Before the step the start model's class maps of all these images are stored. Figures before and
after it are measured in one pass over the images, so that they are of the same ones. Where nobody
has test images of an old class, *agreement* says how much of what the start model saw in the new
images is still seen: the IoU of the two models' class maps.
"""

import io
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from nacre.data.dataset import EvalDataset
from nacre.data.learn_data import LabeledSet, LearnData, SeenPart
from nacre.errors import NacreError
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.metrics import ConfusionMatrix, Metric, iou, iou_by_class, mean_of
from nacre.evaluation.predictor import Predictor, model_predictor, whole_predictor
from nacre.labels.channels import Channels, ignore_value
from nacre.labels.mapping import LabelPolicy
from nacre.labels.space import BACKGROUND
from nacre.methods import Step
from nacre.models.io import ModelInfo
from nacre.training.config import Recipe
from nacre.training.events import ImagesTested
from nacre.training.step import batches_to_test
from nacre.utils.device import set_precision, sizes_vary
from nacre.utils.distributed import Distributed
from nacre.utils.io import save

Ious = dict[str, float | None]
OnImages = Callable[[int], None]
ClassMaps = dict[str, bytes]
"""Class maps in NumPy's format, by part and place of the image in it."""


class _KeptMaps:
    """The class maps of a pass, as a metric keeps figures."""

    def __init__(self, keys: Iterator[str]) -> None:
        self.keys, self.maps = keys, ClassMaps()

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Keep the maps of a batch."""
        for one in predicted.cpu().numpy():
            file = io.BytesIO()
            np.save(file, one)
            self.maps[next(self.keys)] = file.getvalue()

    def merge(self, dist: Distributed) -> None:
        """Add what other processes have."""
        self.maps = {key: one for maps in dist.all(self.maps) for key, one in maps.items()}

    def compute(self) -> ClassMaps:
        """Return all maps."""
        return self.maps


class _BesideBefore:
    """The start model's class maps: their figures, and their agreement with another's.

    Args:
        stored: Its maps, in the order of the images.
        num_known: How many channels it has.
        num_channels: How many the other has, new ones last.
        device: Where batches are.
    """

    def __init__(
        self, stored: Iterator[Tensor], num_known: int, num_channels: int, device: torch.device
    ) -> None:
        self.stored, self.num_known = stored, num_known
        self.before = ConfusionMatrix(num_known, device)
        self.agreement = ConfusionMatrix(num_channels, device)

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Count a batch; what the start model does not know is background to it."""
        was = torch.stack([next(self.stored) for _ in targets]).to(targets.device)
        is_new = (targets >= self.num_known) & (targets != ignore_value(targets))
        self.before.update(torch.where(is_new, 0, targets).to(targets.dtype), was)
        self.agreement.update(was, predicted)

    def merge(self, dist: Distributed) -> None:
        """Add what other processes counted."""
        self.before.merge(dist)
        self.agreement.merge(dist)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Return both matrices."""
        return self.before.counts(), self.agreement.counts()


@dataclass(frozen=True)
class Compared:
    """The figures of a model, and of the one it started from.

    Attributes:
        after: On every test set that judges one of its classes.
        before: The same of the start model, on the same images.
        agreement: How much of what the start model saw is still seen; None without one.
    """

    after: list[dict[str, Any]]
    before: list[dict[str, Any]]
    agreement: dict[str, Any] | None


@dataclass
class LearnTests:
    """The tests of a step of `nacre learn`: before it and after it, on the same images.

    Attributes:
        data: The step's.
        config: Its config.
        dist: Who computes.
        start: What the file of the model that is continued says, if there is one.
        path: Where the start model's class maps are.
        on_images: Called with the number of images of each batch.
        should_stop: Whether the user wants to stop.
    """

    data: LearnData
    config: Recipe
    dist: Distributed
    start: ModelInfo | None = None
    path: Path = Path()
    on_images: OnImages = lambda count: None
    should_stop: Callable[[], bool] = lambda: False

    def prepare(self, step: Step) -> None:
        """Store what the start model says of the test images, unless that was done before."""
        if self.start is None or self.dist.from_main(self.path.exists()):
            return
        info, images = self.start, self.config.images
        mirror = info.mirror if images.mirror == "auto" else images.mirror
        edges = info.edges if images.edges == "auto" else images.edges
        predictor = replace(model_predictor(step.network, info), mirror=mirror, edges=edges)
        self._watch(step, self.data.seen_parts())
        maps = self.class_maps(predictor)
        self.dist.on_main(lambda: save_maps(self.path, maps))

    def measure(self, step: Step) -> dict[str, Any]:
        """Test the network after a step beside what the start model said."""
        before = open_maps(self.path) if self.start else None
        predictor = whole_predictor(step.network, step.config.images)
        parts = self.data.seen_parts()
        self._watch(step, (one for one in parts if one.is_test or self.start))
        found = self.compare(predictor, step.channels, before)
        iou, iou_before = class_ious(found.after), class_ious(found.before)
        agreement = found.agreement["iou"] if found.agreement else None
        return {
            "step": step.index,
            "classes": list(step.channels.names),
            "new": list(self.data.new),
            "images": sum(test["images"] for test in found.after),
            "iou": iou,
            "iou_before": iou_before,
            "verdicts": judge(self.data, step.network.stride, iou, iou_before, agreement),
            "mean_iou": mean_ious(iou, self.data.known, self.data.new),
            "agreement": found.agreement,
            "tests": found.after,
            "tests_before": found.before,
            "conventions": step.config.measured_under(),
        }

    def _watch(self, step: Step, parts: Iterable[SeenPart]) -> None:
        """Report images that are tested to a step's observers, and stop when it does."""
        total = sum(len(part.set.index(part.split)) for part in parts)

        def on_images(count: int) -> None:
            step.observe(ImagesTested(step.index, count, total))

        self.on_images, self.should_stop = on_images, step.should_stop

    def class_maps(self, predictor: Predictor) -> ClassMaps:
        """Return a network's class maps of all images on which networks are compared."""
        before = self.data.before
        assert before is not None, "only a step that continues a model compares"
        found = ClassMaps()
        for number, part in enumerate(self.data.seen_parts()):
            dataset = self.data.eval_dataset(part, before)
            kept = _KeptMaps(self._keys(number, dataset))
            self._see(predictor, dataset, [kept])
            found |= kept.compute()
        return found

    def compare(
        self, predictor: Predictor, channels: Channels, before: Mapping[str, Any] | None
    ) -> Compared:
        """Test a network, beside the class maps that its start model was stored with."""
        device, known = self.dist.device, self.data.known
        sums: dict[tuple[str, str], Tensor] = {}
        shown: dict[str, tuple[LabeledSet, int, int]] = {}
        agreement = torch.zeros(len(channels), len(channels), dtype=torch.int64)
        num_new = 0
        for number, part in enumerate(self.data.seen_parts()):
            dataset = self.data.eval_dataset(part, channels)
            own = ConfusionMatrix(len(channels), device)
            metrics: list[Metric] = [own]
            if before is not None:
                maps = (_read_map(before, key) for key in self._keys(number, dataset))
                beside = _BesideBefore(maps, len(known), len(channels), device)
                metrics.append(beside)
            elif not part.is_test:
                continue
            self._see(predictor, dataset, metrics)
            name = part.set.name
            if part.is_test:
                images, training = shown.get(name, (part.set, 0, 0))[1:]
                training += len(dataset) if part.split == "train" else 0
                shown[name] = (part.set, images + len(dataset), training)
                sums["after", name] = sums.get(("after", name), 0) + own.counts()
            if before is None:
                continue
            was, both = beside.compute()
            if part.is_test:
                sums["before", name] = sums.get(("before", name), 0) + was
            if part.is_new:
                agreement, num_new = agreement + both, num_new + len(dataset)

        def figures(when: str, channels: Channels) -> list[dict[str, Any]]:
            rows = ((*shown[name], one) for (w, name), one in sums.items() if w == when)
            found = [_figures(*row, channels, self.data.policy) for row in rows]
            return [one for one in found if one["iou"]]

        agreed = _agreement(agreement, num_new, known) if before is not None else None
        start = self.data.before or channels
        return Compared(figures("after", channels), figures("before", start), agreed)

    def _see(self, predictor: Predictor, dataset: EvalDataset, metrics: Sequence[Metric]) -> None:
        """Show all images to a network and add what it says over all processes."""
        train, device = self.config.train, self.dist.device
        batches = batches_to_test(dataset, train, self.dist, self.should_stop)
        precision = set_precision(train.precision, device)
        with sizes_vary(True):
            evaluate(predictor, batches, metrics, device, self.on_images, precision)
        for metric in metrics:
            metric.merge(self.dist)

    def _keys(self, number: int, dataset: EvalDataset) -> Iterator[str]:
        """Yield the keys of this process's images, in the order in which they are loaded."""
        for place in range(self.dist.rank, len(dataset), self.dist.world_size):
            yield f"{number}/{place}"


def save_maps(path: Path, maps: ClassMaps) -> None:
    """Write class maps into one compressed file."""

    def write(temporary: Path) -> None:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            for key, content in sorted(maps.items()):
                file.writestr(f"{key}.npy", content)

    save(path, write)


def open_maps(path: Path) -> Mapping[str, Any]:
    """Open a file of class maps; each is read when it is asked for."""
    try:
        found: Mapping[str, Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise NacreError(f"{path} is damaged: {error}; remove it and call again") from error
    return found


def _read_map(maps: Mapping[str, Any], key: str) -> Tensor:
    try:
        return torch.from_numpy(maps[key])
    except (KeyError, ValueError, zipfile.BadZipFile) as error:
        raise NacreError(
            f"the stored class maps of the start model are damaged at {key}; remove before.npz "
            "and call again"
        ) from error


def _figures(
    one: LabeledSet,
    images: int,
    training: int,
    confusion: Tensor,
    channels: Channels,
    policy: LabelPolicy,
) -> dict[str, Any]:
    judged = [name for name in channels.names if name in one.labeled]
    folded = one.testing_mapping(channels, policy).fold(confusion)
    ious = dict(zip(channels.names, iou_by_class(folded), strict=True))
    return {
        "name": one.name,
        "images": images,
        "training_images": training,
        "iou": {name: ious[name] for name in judged},
        "counts": _counts(folded, channels, judged),
    }


def _agreement(confusion: Tensor, images: int, known: Sequence[str]) -> dict[str, Any]:
    ious = dict(zip(known, iou_by_class(confusion), strict=False))
    ious = {name: one for name, one in ious.items() if name != BACKGROUND and one is not None}
    return {"images": images, "iou": ious}


def _counts(confusion: Tensor, channels: Channels, judged: Sequence[str]) -> dict[str, list[int]]:
    """Return, by class, the pixels hit, of the truth and of the prediction."""
    found = {}
    for name in judged:
        channel = channels.of[name]
        found[name] = [
            int(confusion[channel, channel]),
            int(confusion[channel].sum()),
            int(confusion[:, channel].sum()),
        ]
    return found


def class_ious(tests: Sequence[dict[str, Any]]) -> Ious:
    """Return the IoU of each class over all test sets that label it."""
    sums: dict[str, list[int]] = {}
    for test in tests:
        for name, counts in test["counts"].items():
            before = sums.get(name, [0, 0, 0])
            sums[name] = [a + b for a, b in zip(before, counts, strict=True)]
    return {name: iou(*counts) for name, counts in sums.items()}


def mean_ious(ious: Ious, known: Sequence[str], new: Sequence[str]) -> Ious:
    """Return the means over old, new and all classes that were tested."""
    old = [name for name in known if name != BACKGROUND]
    groups = {"old": old, "new": list(new), "all": [*old, *new]}
    return {
        f"{group}_without_background": mean_of([ious.get(name) for name in names])
        for group, names in groups.items()
        if names
    }


# A word for every class after a step. The limits are conventions and no more: a figure of one step
# is a hint.

Word = Literal["learned", "weak", "not learned", "kept", "lost", "not tested"]

NO_EFFECT, LITTLE = 0.05, 0.3
"""IoU below which a new class is not learned, and below which it is weak."""

LOST = 0.2
"""Share of its IoU that an old class may lose and still be kept."""

AGREES = 0.5
"""Agreement from which on an old class without test images is kept."""

FEW_IMAGES = 5
RARE = 0.01
"""Share of the pixels of the training images below which a class is rare."""


def judge(
    data: LearnData, stride: int, iou: dict[str, Any], before: dict[str, Any], agreement: Any
) -> dict[str, dict[str, str]]:
    """Return a word for every class of a model, and the likely reason of a bad one.

    Args:
        data: Of the step.
        stride: Pixels of an image for a score of the network.
        iou: Of every class that was tested.
        before: The same of the start model.
        agreement: By class the share of what the start model saw that is still seen, or None.
    """
    found = {}
    for name in data.class_names[1:]:
        now = iou.get(name)
        if name in data.new:
            word, reason = _of_new(now), ""
            if word in ("weak", "not learned"):
                reason = _reason(data, name, stride)
            elif word == "not tested":
                reason = "no test image has a pixel of it: name some in val.txt"
        else:
            word, reason = _of_old(now, before.get(name), (agreement or {}).get(name))
        found[name] = {"word": word, "reason": reason}
    return found


def _of_new(now: float | None) -> Word:
    if now is None:
        return "not tested"
    return "not learned" if now < NO_EFFECT else "weak" if now < LITTLE else "learned"


def _of_old(now: float | None, was: float | None, agreement: float | None) -> tuple[Word, str]:
    if now is not None and was is not None:
        is_kept = was - now <= max(NO_EFFECT, LOST * was)
        return ("kept", "") if is_kept else ("lost", "a larger weight of the method keeps more")
    if agreement is not None:
        if agreement >= AGREES:
            return "kept", "by agreement alone: no test image has it"
        return "lost", "by agreement alone: test images that have it (--test) would say more"
    return "not tested", "no image here has it: name a folder that does by --test"


def _reason(data: LearnData, name: str, stride: int) -> str:
    """Return the likely reason why a class was not learned, and what to try next."""
    pixels = list(_pixels(data, name))
    if len(pixels) < FEW_IMAGES:
        return f"{len(pixels)} training images have it: label more"
    width = median(_width(data, *one) for one in pixels)
    if width < 1.5 * stride:
        crop = data.config.crop_size
        return (
            f"it is about {width:.0f} pixels wide where the network has one score for {stride}: "
            f"try --set images.crop_size={2 * crop}, which takes longer"
        )
    share = sum(held for held, _ in pixels) / sum(total for _, total in pixels)
    if share < RARE:
        more = "label more, or try more updates (--set train.iterations=…)"
        return f"it is {share:.1%} of the pixels: {more}"
    return "label more images, or try more updates (--set train.iterations=…)"


def _pixels(data: LearnData, name: str) -> Sequence[tuple[int, int]]:
    """Return the pixels of a class and all pixels of every training image that has it."""
    found = []
    for one in data.sets:
        labels = [label for label, own in one.names.items() if own == name]
        for counts in one.train_index.pixel_counts:
            held = sum(counts.get(label, 0) for label in labels)
            if held:
                found.append((held, sum(counts.values())))
    return found


def _width(data: LearnData, held: int, total: int) -> float:
    """Return the side of a square as large as a class, at the scale that the network sees."""
    if data.config.predict_mode != "crop":
        return math.sqrt(held)
    return data.config.crop_size * math.sqrt(held / total)
