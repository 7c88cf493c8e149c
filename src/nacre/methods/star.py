"""STAR: statistics of old classes' features take the place of old images.

One sigmoid per class, without a background channel (its logit is the constant 0). After its own
step a class leaves a prototype, its noise, the mean and deviation of its features' lengths and a
number of pixels, about 2 D + 3 numbers (`nacre.losses.statistics`). Later steps draw as
many features of it as their own images lack, and count their background again where they lack
that (`nacre.losses.statistics`):

    loss = (labels + drawn features as negatives + background as negatives) / their weights
         + 5 * distance of old classes' features to the teacher's
         + 0.05 * 1 / distance of new classes' directions to old prototypes

Only the rows of new classes are learned from labels; old rows and batch norm are frozen after step
0. The backbone's rate is a tenth (in the presets `paper` and `small`) and that of new rows ten
times the decoder's, as released.

Mended here: noise is measured about a class's own prototype; a drawn vector has one length; drawn
features are not negative behind a ReLU; a batch without old pixels, or without a new class, adds 0
and not 0/0 or a constant; old rows do not shrink by weight decay; the teacher's regions are counted
once per step, so that time does not grow with the steps. Kept as released: the teacher says a class
where its logit is above 0.5 and not above 0, and prototypes stay where they are though the backbone
learns, at a tenth of the rate. The two distances are means over a micro-batch
(`train.micro_batch`), all else is over the batch.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import Growth
from nacre.losses.pseudo_labels import teacher_predictions
from nacre.losses.statistics import (
    FeatureMoments,
    FeatureStatistics,
    background_count,
    background_replay,
    direction_sums,
    draw_features,
    feature_moments,
    feature_statistics,
    grid_mask,
    grid_targets,
    masked_feature_distance,
    prototype_contrast,
    replay_counts,
    replay_divisor,
    sum_of_negatives,
)
from nacre.methods.base import (
    Batch,
    Freeze,
    MethodConfig,
    ParamGroup,
    Step,
    classifier_of,
    deeplab,
    require_teacher,
)
from nacre.methods.dkd import SLOW_BACKBONE, SigmoidConfig, SigmoidMethod, split_groups
from nacre.models.network import Network, Output

SURE = 0.5
"""The teacher says a class where its logit is above this."""
CONTRAST = 0.05
"""Weight of the distance to old prototypes."""
NEW_ROWS_LR = 10.0
"""Learning rate of new rows over the decoder's."""
_SURE_SIGMOID = float(torch.tensor(SURE).sigmoid())
_NUMBERS = ("statistics.count", "statistics.background", "seen.counts")


class StarConfig(SigmoidConfig):
    """The weights of the terms, and how background is counted."""

    name: Literal["star"] = Field("star", description="replay of class statistics")
    weight: float = Field(5.0, ge=0, description="weight of old classes' features")
    positive_weight: float = Field(4.0, gt=0, description="weight of a class's own pixels")

    freeze: Freeze = ("batch_norm", "old_rows")


@dataclass(frozen=True)
class Replay:
    """The features replayed in each update of a step, see `nacre.losses.statistics`.

    Attributes:
        statistics: Of the old classes.
        counts: Features to draw of each.
        num_drawn: Features to draw in all.
        background_weight: How many times over background counts again, r.
        cells_per_batch: Pixels of a batch, on the grid of the features.
        divisor: What labels, drawn features and background are divided by.
    """

    statistics: FeatureStatistics
    counts: Tensor
    num_drawn: int
    background_weight: float
    cells_per_batch: float
    divisor: float


class Star(SigmoidMethod):
    """Replays statistics of old classes and of the background."""

    name = "star"
    Config = StarConfig
    presets = {
        "paper ade20k": {"positive_weight": 30},
    }
    train_presets = {
        **SLOW_BACKBONE,
        "paper voc": {"epochs": 60, "lr": 0.01, "incremental_lr": 0.001},
        "paper ade20k": {"epochs": 100, "lr": 0.025, "incremental_lr": 0.0025},
    }
    tunable = ("weight",)
    persistent_state = frozenset({"statistics"})
    config: StarConfig

    def __init__(self, config: Any, growth: Growth) -> None:
        super().__init__(config, growth)
        self.tables: dict[str, Tensor] = {}
        self._known: Replay | None = None

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned, with the weight of its positive pixels."""
        assert isinstance(config, StarConfig)
        return f"{super().step_0_of(config)}, positives x {config.positive_weight:g}"

    def begin_step(self, step: Step) -> None:
        """Refuse to begin without the statistics of the old classes."""
        super().begin_step(step)
        self._known = None
        if self.num_old and "statistics.background" not in self.tables:
            raise NacreError(
                "star needs the statistics of the steps before this one, and their model has none: "
                "learn step 0 with star too"
            )

    def param_groups(self, step: Step, groups: list[ParamGroup]) -> list[ParamGroup]:
        """Make new rows learn faster after step 0."""
        if not self.num_old:
            return groups
        rows = {id(value) for value in classifier_of(step.network).rows[-1].parameters()}
        new, rest = split_groups(groups, rows)
        return rest + [{**group, "lr_scale": NEW_ROWS_LR * group["lr_scale"]} for group in new]

    @torch.no_grad()
    def survey(self, step: Step) -> None:
        """Count the pixels of each old class and of none, on the grid, as far as there are any.

        Background is what the teacher takes it for; where old images are kept, some are labeled.
        """
        if not self.num_old:
            return
        assert step.teacher is not None
        # Cells of new classes are counted in the last place, which is all cells'.
        counts = torch.zeros(self.num_old + 1, dtype=torch.int64, device=step.dist.device)
        cells = 0
        for batch in step.images():
            logits = step.teacher(batch.images).logits
            targets = grid_targets(batch.targets, (logits.shape[-2], logits.shape[-1]))
            is_old = (targets >= 0) & (targets < self.num_old)
            said = torch.where(is_old, targets.long(), self.num_old)
            said = torch.where(targets == 0, teacher_regions(logits), said).flatten()
            counts.index_add_(0, said, torch.ones_like(said))
            cells += targets.numel()
        seen = counts.cpu().double()
        seen[-1] = cells
        self.tables["seen.counts"] = step.dist.sum(seen)

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy of new classes, with background again, and the two distances."""
        first_new, weight = self.growth.first_new, self.config.positive_weight
        labeled = self.logit_losses(batch, student, None, weight)["bce"]
        if not self.num_old:
            return {"bce": labeled}
        seen = require_teacher(teacher)
        size = (student.logits.shape[-2], student.logits.shape[-1])
        targets = grid_targets(batch.data_targets, size)
        sure = grid_targets(batch.sure_targets(self.growth.first_new), size)
        is_background = (sure == 0) & (teacher_regions(seen.logits) == 0)
        replay, again = self._replay, student.logits[:, first_new:]
        again = sum_of_negatives(again, is_background.unsqueeze(1))
        return {
            "bce": labeled / replay.divisor,
            "background": replay.background_weight * again / targets.numel() / replay.divisor,
            "features": self.config.weight * self._hold_features(batch, student, seen),
            "contrast": CONTRAST * self._contrast(student, targets),
        }

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return the cross-entropy of drawn features, once per batch: they are no pixels of it."""
        if not self.num_old or not self._replay.num_drawn:
            return {}
        replay = self._replay
        # Where features come from a ReLU none is negative.
        norm = getattr(deeplab(step.network).decoder, "norm", None)
        non_negative = norm is not None and norm.activation == "relu"
        drawn = draw_features(
            replay.statistics, replay.counts, total=replay.num_drawn, non_negative=non_negative
        )
        new = slice(self.num_old, None)
        classifier = classifier_of(step.network)
        weight = classifier.weight(new)
        logits = drawn.to(weight) @ weight.t() + classifier.bias(new)
        return {"replay": sum_of_negatives(logits) / replay.cells_per_batch / replay.divisor}

    @torch.no_grad()
    def end_step(self, step: Step) -> None:
        """Keep the statistics of the new classes: one pass over the step's images."""
        first_new = self.growth.first_new
        moments, background = collect_moments(step, first_new)
        new = feature_statistics(moments)
        for field in fields(FeatureStatistics):
            key, value = f"statistics.{field.name}", getattr(new, field.name)
            old = self.tables.get(key)
            self.tables[key] = value if old is None else torch.cat([old.to(value), value])
        if self.num_old:
            seen = self.tables.pop("seen.counts").cpu()
            stored = float(self.tables["statistics.background"])
            background = background_count(
                stored, float(seen[0]), step.num_new, overlapped=step.overlapped
            )
            if not step.overlapped:
                self.tables["statistics.count"][: self.num_old - 1] += seen[1:-1].to(new.count)
        self.tables["statistics.background"] = torch.tensor(background, dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        """Return the statistics, and in a step what was counted before it."""
        return dict(self.tables)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take them back."""
        self.tables = dict(state)
        self._known = None

    @property
    def _replay(self) -> "Replay":
        """Return what is replayed in each update of the step: found once, as it never changes."""
        if self._known is None:
            per_epoch = self.step.iterations_per_epoch
            numbers = {key: self.tables[key].cpu() for key in _NUMBERS}
            seen = numbers["seen.counts"]
            counts = replay_counts(
                numbers["statistics.count"], seen[1:-1], per_epoch, overlapped=self.step.overlapped
            )
            background, cells = float(seen[0]), float(seen[-1]) / per_epoch
            weight = background_replay(
                float(numbers["statistics.background"]),
                background,
                self.step.num_new,
                overlapped=self.step.overlapped,
            )
            again = weight * (background / per_epoch)
            self._known = Replay(
                statistics=self._statistics(),
                counts=counts.to(self.step.dist.device),
                num_drawn=int(counts.sum()),
                background_weight=weight,
                cells_per_batch=cells,
                divisor=replay_divisor(float(counts.sum()), again, cells),
            )
        return self._known

    def _statistics(self) -> FeatureStatistics:
        device = self.step.dist.device
        names = [field.name for field in fields(FeatureStatistics)]
        found = {name: self.tables[f"statistics.{name}"].to(device) for name in names}
        return FeatureStatistics(**found)

    def _hold_features(self, batch: Batch, student: Output, teacher: Output) -> Tensor:
        height, width = batch.targets.shape[-2:]
        view = teacher_predictions(teacher.logits[:, 1:], (height, width), "sigmoid")
        is_old = view.scores > _SURE_SIGMOID
        mask = is_old & (batch.data_targets == 0)
        features = student.decoder_features
        grid = grid_mask(mask, (features.shape[-2], features.shape[-1]))
        # The mean is over the pixels of all processes.
        dist = self.step.dist
        total = dist.sum(grid.sum()) / dist.world_size
        return masked_feature_distance(features, teacher.decoder_features, grid, total=total)

    def _contrast(self, student: Output, targets: Tensor) -> Tensor:
        num_new = student.logits.shape[1] - self.num_old
        own = direction_sums(student.decoder_features, targets, self.num_old, num_new)
        # Directions are those of all processes' pixels. Each has the gradient of its own, of which
        # the mean is taken over the processes.
        dist = self.step.dist
        others = dist.sum(own.detach().clone()) - own.detach()
        contrast = prototype_contrast(own + others, self._replay.statistics.prototype)
        return contrast * dist.world_size - contrast.detach() * (dist.world_size - 1)


def teacher_regions(logits: Tensor) -> Tensor:
    """Return the class that a teacher gives to each cell, N,h,w; 0 where it is sure of none."""
    greatest, channel = logits[:, 1:].max(1)
    return torch.where(greatest > SURE, channel + 1, 0)


@torch.no_grad()
def collect_moments(step: Step, first_new: int) -> tuple[FeatureMoments, float]:
    """Sum up the features of the new classes over a step's images, and count its background."""
    network: Network = step.network.eval()
    background = torch.zeros((), dtype=torch.int64, device=step.dist.device)
    # A process may have no batch: a blank image without a class gives sums of the right shapes.
    side = network.alignment
    blank = network(torch.zeros(1, 3, side, side, device=step.dist.device)).decoder_features
    nothing = torch.full((1, *blank.shape[-2:]), -1, device=step.dist.device)
    total = feature_moments(blank, nothing, first_new, step.num_classes - first_new)
    for batch in step.images():
        features = network(batch.images).decoder_features
        targets = grid_targets(batch.targets, (features.shape[-2], features.shape[-1]))
        total = total + feature_moments(features, targets, first_new, len(total.count))
        background += (targets == 0).sum()
    names = [field.name for field in fields(FeatureMoments)]
    summed = FeatureMoments(**{name: step.dist.sum(getattr(total, name)) for name in names})
    return summed, float(step.dist.sum(background.cpu()))
