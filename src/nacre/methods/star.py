"""STAR: statistics of old classes' features take the place of old images.

One sigmoid per class, without a background channel (its logit is the constant 0). After its own
step a class leaves a prototype, its noise, the mean and deviation of its features' lengths and a
number of pixels, about 2 D + 3 numbers (`nacre.losses.statistics`). With N_k the pixels of class k
in its own step and N_0 those of background, P_k and P_0 the pixels of this step that are labeled
background and that the teacher gives to k or to no class (all on the grid of the features, over one
epoch), an iteration draws

    n_k = floor(max(0, N_k - P_k) / iterations per epoch)     (without P_k if not overlapped)

features x of each old class: those that the step's own images lack. Background that the step lacks
is made up for by counting its own again,

    r = max(0, N_0 (1 - 0.01 |new classes|) / P_0 - 1/2)   overlapped,   N_0 / P_0   else

B being the pixels of the batch that are labeled background and of which the teacher says so too.
With w_f = sum n_k / (N h w) and w_b = r |B| / (N h w),

    loss = sum over the new c of (labels[c] + w_f drawn[c] + w_b background[c]) / (1 + w_f + w_b)
         + 5 * distance of old classes' features to the teacher's
         + 0.05 * 1 / distance of new classes' directions to old prototypes
    drawn[c] = mean over the drawn x of log(1 + e^x_c),  background[c] = the same over B

labels[c] is the binary cross-entropy; positive pixels weigh 4 on VOC and 30 on ADE20K. (The divisor
takes |B| as its mean over the step's batches, so that neither accumulation nor several processes
change it.) After a step N_0 becomes N_0 (1 - 0.01 |new classes|) + P_0 / 2 (overlapped), or
N_0 + P_0 and N_k becomes N_k + P_k.

Only the rows of new classes are learned from labels; old rows and batch norm are frozen after step
0. The backbone's rate is a tenth (in the preset `paper`) and that of new rows ten
times the decoder's, as released.

Mended here: the released noise of later classes is taken about the prototypes of other, older
classes, here about their own; a drawn vector has one length and not one for each of its channels;
drawn features are not negative behind a ReLU; a batch without old pixels, or without a new class,
adds 0 and not 0/0 or a constant; old rows, which no loss trains, do not shrink by weight decay; the
teacher's regions are counted once per step, so that time does not grow with the steps. Kept as
released: the teacher says a class where its logit is above 0.5 and not above 0, and prototypes stay
where they are though the backbone learns, at a tenth of the rate. The two distances are means over
a micro-batch (`train.micro_batch`), all else is over the batch.
"""

from dataclasses import dataclass, fields
from typing import Any, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import Growth
from nacre.losses.pseudo_labels import teacher_predictions
from nacre.losses.reference import at_least_float32
from nacre.losses.statistics import (
    FeatureStatistics,
    direction_sums,
    draw_features,
    feature_moments,
    feature_statistics,
    grid_targets,
    masked_feature_distance,
    prototype_contrast,
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
from nacre.methods.dkd import SLOW_BACKBONE, SigmoidConfig, SigmoidMethod, split_new_rows
from nacre.models.network import Output

SURE = 0.5
"""The teacher says a class where its logit is above this."""
CONTRAST = 0.05
"""Weight of the distance to old prototypes."""
NEW_ROWS_LR = 10.0
"""Learning rate of new rows over the decoder's."""
_SURE_SIGMOID = float(torch.tensor(SURE).sigmoid())


class StarConfig(SigmoidConfig):
    """The weights of the terms, and how background is counted."""

    name: Literal["star"] = Field("star", description="replay of class statistics")
    weight: float = Field(5.0, ge=0, description="weight of old classes' features")
    positive_weight: float = Field(4.0, gt=0, description="weight of a class's own pixels")

    freeze: Freeze = ("batch_norm", "old_rows")


@dataclass(frozen=True)
class Replay:
    """The features replayed in each update of a step.

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
        "small": {"weight": 10},
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
        self.values: dict[str, Tensor] = {}
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
        if self.num_old and "statistics.background" not in self.values:
            raise NacreError(
                "star needs the statistics of the steps before this one, and their model has none: "
                "learn step 0 with star too"
            )

    def param_groups(self, step: Step, groups: list[ParamGroup]) -> list[ParamGroup]:
        """Make new rows learn faster after step 0."""
        if not self.num_old:
            return groups
        new, rest = split_new_rows(step, groups)
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
        self.values["seen.counts"] = step.dist.sum(seen)

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
        replay = self._replay
        # To select background first would mean to ask a GPU how much there is.
        again = (F.softplus(student.logits[:, first_new:]) * is_background.unsqueeze(1)).sum()
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
        logits = at_least_float32(drawn.to(weight) @ weight.t() + classifier.bias(new))
        return {"replay": F.softplus(logits).sum() / replay.cells_per_batch / replay.divisor}

    @torch.no_grad()
    def end_step(self, step: Step) -> None:
        """Keep the statistics of the new classes: one pass over the step's images."""
        first_new = self.growth.first_new
        moments, background = collect_moments(step, first_new)
        new = feature_statistics(moments)
        for field in fields(FeatureStatistics):
            key, value = f"statistics.{field.name}", getattr(new, field.name)
            old = self.values.get(key)
            self.values[key] = value if old is None else torch.cat([old.to(value), value])
        if self.num_old:
            seen = self.values.pop("seen.counts").cpu()
            stored, background = float(self.values["statistics.background"]), float(seen[0])
            if step.overlapped:  # every other background pixel is a new one
                background = stored * (1 - 0.01 * step.num_new) + 0.5 * background
            else:
                background = stored + background
                self.values["statistics.count"][: self.num_old - 1] += seen[1:-1].to(new.count)
        self.values["statistics.background"] = torch.tensor(background, dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        """Return the statistics, and in a step what was counted before it."""
        return dict(self.values)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take them back."""
        self.values = dict(state)
        self._known = None

    @property
    def _replay(self) -> Replay:
        """Return what is replayed in each update of the step: found once, as it never changes."""
        if self._known is None:
            step, per_epoch = self.step, self.step.iterations_per_epoch
            seen = self.values["seen.counts"].cpu()
            stored = self.values["statistics.count"].cpu()
            lacking = (stored - seen[1:-1]).clamp(min=0) if step.overlapped else stored
            counts = (lacking / per_epoch).long()
            num_drawn, background = int(counts.sum()), float(seen[0])
            cells = float(seen[-1]) / per_epoch
            weight = self._background_weight(background)
            again = weight * (background / per_epoch)
            self._known = Replay(
                statistics=self._statistics(),
                counts=counts.to(step.dist.device),
                num_drawn=num_drawn,
                background_weight=weight,
                cells_per_batch=cells,
                divisor=1 + (num_drawn + again) / cells,
            )
        return self._known

    def _background_weight(self, seen: float) -> float:
        """Return how many times over a step's background counts again, r."""
        stored = float(self.values["statistics.background"])
        if seen <= 0:
            return 0.0
        if self.step.overlapped:
            return max(0.0, stored * (1 - 0.01 * self.step.num_new) / seen - 0.5)
        return stored / seen

    def _statistics(self) -> FeatureStatistics:
        device = self.step.dist.device
        names = [field.name for field in fields(FeatureStatistics)]
        found = {name: self.values[f"statistics.{name}"].to(device) for name in names}
        return FeatureStatistics(**found)

    def _hold_features(self, batch: Batch, student: Output, teacher: Output) -> Tensor:
        height, width = batch.targets.shape[-2:]
        view = teacher_predictions(teacher.logits[:, 1:], (height, width), "sigmoid")
        is_old = view.scores > _SURE_SIGMOID
        mask = (is_old & (batch.data_targets == 0)).float().unsqueeze(1)
        features = student.decoder_features
        grid = F.interpolate(mask, features.shape[-2:], mode="bilinear", align_corners=False)
        grid = grid.squeeze(1)
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
def collect_moments(step: Step, first_new: int) -> tuple[Tensor, float]:
    """Sum up the features of the new classes over a step's images, and count its background."""
    network, device = step.network.eval(), step.dist.device
    background = torch.zeros((), dtype=torch.int64, device=device)
    num_new, width = step.num_classes - first_new, classifier_of(network).in_channels
    dtype = torch.float32 if device.type == "mps" else torch.float64
    total = torch.zeros(num_new, 3 + 2 * width, dtype=dtype, device=device)
    for batch in step.images():
        features = network(batch.images).decoder_features
        targets = grid_targets(batch.targets, (features.shape[-2], features.shape[-1]))
        total += feature_moments(features, targets, first_new, num_new)
        background += (targets == 0).sum()
    return step.dist.sum(total), float(step.dist.sum(background.cpu()))
