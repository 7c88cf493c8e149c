"""STAR: replay of feature statistics of old classes instead of their images.

There is one sigmoid per class and no background channel (its logit is the constant 0). After its
step a class leaves a prototype, its noise, the mean and standard deviation of its features' lengths
and a number of pixels: about 2 D + 3 numbers (`nacre.losses.statistics`). Pixels are counted on the
grid of the features. N_k is the number of pixels of class k in its own step and N_0 that of the
background; P_k and P_0 are the pixels of this step that are labeled background and that the teacher
assigns to k or to no class. An iteration draws, for each old class,

    n_k = floor(max(0, N_k - P_k) / iterations per epoch)     (without P_k if not overlapped)

features x: as many as the images of this step lack. Missing background is replaced by counting the
step's own background repeatedly,

    r = max(0, N_0 (1 - 0.01 |new classes|) / P_0 - 1/2)   overlapped,   N_0 / P_0   otherwise

times. B are the pixels of the batch that are background for both the label and the teacher. With
w_f = sum n_k / (N h w) and w_b = r |B| / (N h w),

    loss = sum over new c of (labels[c] + w_f drawn[c] + w_b background[c]) / (1 + w_f + w_b)
         + 5 * distance of the old classes' features from the teacher's
         + 0.05 / distance of the new classes' directions from old prototypes
    drawn[c] = mean over the drawn x of log(1 + e^x_c),  background[c] = the same over B

labels[c] is the binary cross-entropy; positive pixels weigh 4 on VOC and 30 on ADE20K. (In the
divisor |B| is its mean over the batches of the step, so that neither accumulation nor the number of
processes changes it.) After a step N_0 becomes N_0 (1 - 0.01 |new classes|) + P_0 / 2 if
overlapped; otherwise N_0 + P_0, and N_k becomes N_k + P_k.

Only the rows of new classes learn from labels; old rows and batch norm are frozen after step 0. As
in the released code, the learning rate of the backbone is a tenth (in the preset `paper`) and that
of new rows ten times the decoder's.

Differences from the released code: the noise of later classes is taken about their own prototypes
and not about those of older classes; a drawn vector has one length and not one per channel; behind
a ReLU drawn features are not negative; a batch without old pixels or without a new class adds 0 and
not 0/0 or a constant; old rows do not shrink by weight decay; the teacher's pixels are counted once
per step, so that the time does not grow with the steps. As in the released code the teacher
predicts a class where its logit is above 0.5 (not 0), and prototypes stay as they are although the
backbone goes on learning. The two distances are means over a micro-batch (`train.micro_batch`);
all other terms are over the batch.
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

TEACHER_LOGIT = 0.5
"""The teacher predicts a class where its logit is above this."""
CONTRAST = 0.05
"""Weight of the distance from old prototypes."""
NEW_ROWS_LR = 10.0
"""Learning rate of new rows as a factor of the decoder's."""
_TEACHER_SIGMOID = float(torch.tensor(TEACHER_LOGIT).sigmoid())


class StarConfig(SigmoidConfig):
    """The weights of the terms."""

    name: Literal["star"] = Field("star", description="replay of class statistics")
    weight: float = Field(5.0, ge=0, description="weight of the distance between features")
    positive_weight: float = Field(4.0, gt=0, description="weight of positive pixels")

    freeze: Freeze = ("batch_norm", "old_rows")


@dataclass(frozen=True)
class Replay:
    """The features that are replayed in each update of a step.

    Attributes:
        statistics: The statistics of the old classes.
        counts: How many features to draw of each.
        num_drawn: How many features that are in all.
        background_weight: How often background is counted again, r.
        cells_per_batch: Pixels of a batch on the grid of the features.
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
        self._replay: Replay | None = None

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned, including the weight of positive pixels."""
        assert isinstance(config, StarConfig)
        return f"{super().step_0_of(config)}, positives x {config.positive_weight:g}"

    @torch.no_grad()
    def begin_step(self, step: Step) -> None:
        """Count the teacher's pixels in one pass over the images, on the grid of the features."""
        super().begin_step(step)
        self._replay = None
        if not self.num_old:
            return
        if "statistics.background" not in self.values:
            raise NacreError(
                "the model has no statistics of its old classes, which star needs; learn step 0 "
                "with star, too"
            )
        assert step.teacher is not None
        # The last place counts the pixels of new classes and is replaced by the number of pixels.
        counts = torch.zeros(self.num_old + 1, dtype=torch.int64, device=step.dist.device)
        cells = 0
        for batch in step.images():
            logits = step.teacher(batch.images).logits
            targets = grid_targets(batch.targets, (logits.shape[-2], logits.shape[-1]))
            # Exemplars may be labeled with old classes.
            is_old = (targets >= 0) & (targets < self.num_old)
            channels = torch.where(is_old, targets.long(), self.num_old)
            channels = torch.where(targets == 0, teacher_regions(logits), channels).flatten()
            counts.index_add_(0, channels, torch.ones_like(channels))
            cells += targets.numel()
        pixels = counts.cpu().double()
        pixels[-1] = cells
        self.values["step.counts"] = step.dist.sum(pixels)

    def param_groups(self, step: Step, groups: list[ParamGroup]) -> list[ParamGroup]:
        """Raise the learning rate of new rows after step 0."""
        if not self.num_old:
            return groups
        new, rest = split_new_rows(step, groups)
        return rest + [{**group, "lr_scale": NEW_ROWS_LR * group["lr_scale"]} for group in new]

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy of new classes, the replayed background and both distances."""
        first_new, weight = self.growth.first_new, self.config.positive_weight
        labeled = self.logit_losses(batch, student, None, weight)["bce"]
        if not self.num_old:
            return {"bce": labeled}
        teacher = require_teacher(teacher)
        size = (student.logits.shape[-2], student.logits.shape[-1])
        targets = grid_targets(batch.data_targets, size)
        certain = grid_targets(batch.sure_targets(first_new), size)
        is_background = (certain == 0) & (teacher_regions(teacher.logits) == 0)
        replay = self.replay
        # A product instead of a selection, whose size a GPU would have to be waited for.
        again = (F.softplus(student.logits[:, first_new:]) * is_background.unsqueeze(1)).sum()
        return {
            "bce": labeled / replay.divisor,
            "background": replay.background_weight * again / targets.numel() / replay.divisor,
            "features": self.config.weight * self._feature_distance(batch, student, teacher),
            "contrast": CONTRAST * self._contrast(student, targets),
        }

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return the cross-entropy of drawn features; they are drawn once per batch."""
        if not self.num_old or not self.replay.num_drawn:
            return {}
        replay = self.replay
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
        """Collect the statistics of the new classes in one pass over the step's images."""
        first_new = self.growth.first_new
        moments, background = collect_moments(step, first_new)
        new = feature_statistics(moments)
        for field in fields(FeatureStatistics):
            key, value = f"statistics.{field.name}", getattr(new, field.name)
            old = self.values.get(key)
            self.values[key] = value if old is None else torch.cat([old.to(value), value])
        if self.num_old:
            pixels = self.values.pop("step.counts").cpu()
            stored, background = float(self.values["statistics.background"]), float(pixels[0])
            if step.overlapped:  # half of the background pixels were in earlier steps, too
                background = stored * (1 - 0.01 * step.num_new) + 0.5 * background
            else:
                background = stored + background
                self.values["statistics.count"][: self.num_old - 1] += pixels[1:-1].to(new.count)
        self.values["statistics.background"] = torch.tensor(background, dtype=torch.float64)

    def state(self) -> dict[str, Tensor]:
        """Return the statistics and, within a step, the counts of its first pass."""
        return dict(self.values)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore statistics and counts."""
        self.values = dict(state)
        self._replay = None

    @property
    def replay(self) -> Replay:
        """The features that each update of the step replays, computed at the first call."""
        if self._replay is None:
            step, per_epoch = self.step, self.step.iterations_per_epoch
            pixels = self.values["step.counts"].cpu()
            stored = self.values["statistics.count"].cpu()
            lacking = (stored - pixels[1:-1]).clamp(min=0) if step.overlapped else stored
            counts = (lacking / per_epoch).long()
            num_drawn, background = int(counts.sum()), float(pixels[0])
            cells = float(pixels[-1]) / per_epoch
            weight = self._background_weight(background)
            again = weight * (background / per_epoch)
            self._replay = Replay(
                statistics=self._statistics(),
                counts=counts.to(step.dist.device),
                num_drawn=num_drawn,
                background_weight=weight,
                cells_per_batch=cells,
                divisor=1 + (num_drawn + again) / cells,
            )
        return self._replay

    def _background_weight(self, pixels: float) -> float:
        """Return how often a step's background is counted again, r."""
        stored = float(self.values["statistics.background"])
        if pixels <= 0:
            return 0.0
        if self.step.overlapped:
            return max(0.0, stored * (1 - 0.01 * self.step.num_new) / pixels - 0.5)
        return stored / pixels

    def _statistics(self) -> FeatureStatistics:
        device = self.step.dist.device
        names = [field.name for field in fields(FeatureStatistics)]
        return FeatureStatistics(
            **{name: self.values[f"statistics.{name}"].to(device) for name in names}
        )

    def _feature_distance(self, batch: Batch, student: Output, teacher: Output) -> Tensor:
        height, width = batch.targets.shape[-2:]
        prediction = teacher_predictions(teacher.logits[:, 1:], (height, width), "sigmoid")
        is_old = prediction.scores > _TEACHER_SIGMOID
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
        # The directions are sums over all processes. Each process has the gradient of its own
        # pixels, and DDP takes the mean of the gradients.
        dist = self.step.dist
        others = dist.sum(own.detach().clone()) - own.detach()
        contrast = prototype_contrast(own + others, self.replay.statistics.prototype)
        return contrast * dist.world_size - contrast.detach() * (dist.world_size - 1)


def teacher_regions(logits: Tensor) -> Tensor:
    """Return the class that the teacher predicts in each cell, N,h,w; 0 if it predicts none."""
    greatest, channel = logits[:, 1:].max(1)
    return torch.where(greatest > TEACHER_LOGIT, channel + 1, 0)


@torch.no_grad()
def collect_moments(step: Step, first_new: int) -> tuple[Tensor, float]:
    """Return the feature moments of the new classes and the number of background pixels."""
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
