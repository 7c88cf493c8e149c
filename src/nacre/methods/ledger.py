"""Ledger: a linear head in closed form on a frozen backbone, from sums per class.

A step is learned in one pass over its images, without gradients. The features of all stages of the
backbone are put on one grid (`nacre.models.decoders`), together with the image's mean of the last
stage. For each class c that the step labels, and for its background, three sums over *pixels* are
stored (`nacre.losses.pixel_sums`):

    n_c,    sum of x,    sum of x x^T        x(p): the upsampled features of pixel p

From the sums of all steps the head is solved (`nacre.losses.ridge`): a ridge regression of each
channel's indicator, balanced over the classes,

    W = argmin sum_c b_c / n_c sum_(p of c) |W x(p) - e_c|^2 + ridge,      b_c ~ sqrt(n_c)

The ridge is a share (`ridge`) of each feature's variance; the constant is not shrunk. Logits are 8
times the scores, which makes the softmax about calibrated and changes no prediction.

Nothing overwrites the old classes, as their sums remain. The same steps in any order give the same
head, a step, a folder or a class can be forgotten, and models with the same backbone can be merged
(`nacre.runs.edit`). Only the mask depends on the order: background pixels are not counted if the
model before the step predicts a hidden class there (`labels.unlabeled=background` counts all).

The model file stores n and the mean in float64 and half of the symmetric scatter around the mean in
float32: 2.3 MiB per class, step and data folder with EfficientNet-Lite0. See docs/ledger.md.

Images can be counted in shares, on several machines, whose sums are added (`Step.map_images`).

An external network has no sums of the classes that it knew before. There a ledger is added beside
the network, which does not change (`nacre.models.ledger.RestHead`): all old classes together are
one more class of the ledger, the rest.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import Growth, ignore_value
from nacre.losses.pixel_sums import PixelSums
from nacre.losses.reference import upsample
from nacre.losses.ridge import Sums, from_products, join, solve
from nacre.methods.base import Batch, Freeze, Method, MethodConfig, Step
from nacre.models.adapter import Adapter
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.models.decoders import DEFAULT_STRIDE, StageGrid
from nacre.models.deeplab import DeepLab
from nacre.models.ledger import MIN_ORIGIN, LedgerHead, RestHead
from nacre.models.network import Network

SCALE = 8.0
"""Logits are the scores of the regression times this."""


class SumsConfig(MethodConfig):
    """The ridge and the grid of the head."""

    ridge: float = Field(
        0.01, gt=0, le=1000, description="ridge as a share of each feature's variance"
    )
    grid_stride: Literal[8, 16] | None = Field(
        None, description="pixels per point of the grid; by default as in the start model"
    )


class LedgerConfig(SumsConfig):
    """The config of the ledger, whose grid has 16 pixels per point by default."""

    refused = dict.fromkeys(
        ("freeze", "freeze_step_0", "fusion", "pseudo_labels", "init"),
        "it learns without gradients",
    )

    name: Literal["ledger"] = Field("ledger", description="head in closed form, from sums")

    freeze: Freeze = ("backbone", "batch_norm")
    freeze_step_0: bool = True


class Ledger(Method):
    """The sums of each class, and the head that follows from them."""

    name = "ledger"
    Config: ClassVar[type[MethodConfig]] = LedgerConfig
    learns_by_gradient = False
    step_0 = "ledger"
    persistent_state = frozenset({"sums"})
    default_stride = DEFAULT_STRIDE
    config: SumsConfig

    def __init__(self, config: Any, growth: Growth) -> None:
        super().__init__(config, growth)
        self.sums: Sums | None = None

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned, including the ridge and the grid."""
        assert isinstance(config, SumsConfig)
        stride = config.grid_stride or cls.default_stride
        return f"{cls.step_0}, ridge {config.ridge}, grid of stride {stride}"

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Return True: background predicted as a hidden class is not counted."""
        return True

    def network_config(self, model: ModelConfig) -> ModelConfig:
        """Return the config with the grid of stages as the decoder."""
        return self.with_grid(model, decoder="stages")

    def with_grid(self, model: ModelConfig, **changes: str) -> ModelConfig:
        """Return the config with a grid of stages."""
        if not isinstance(model, DeepLabConfig):
            raise NacreError(
                f"method {self.name!r} cannot learn step 0 with an external network; use a network "
                "of nacre, or start from an external one that has learned classes (start=…)"
            )
        stride = self.config.grid_stride or self.default_stride
        return model.model_copy(update={"grid_stride": stride, **changes})

    def grow(self, network: Network, num_new: int) -> None:
        """Add channels, whose rows `fit` computes; a decoder beside starts from the background."""
        if isinstance(network, Adapter) and network.ledger is None:
            return  # `prepare` adds a ledger
        if self.sums is None or not has_grid(network):
            raise NacreError(
                f"the model has no sums of its classes, so method {self.name!r} cannot continue "
                "it; learn all steps with ledger or duo, or use another method"
            )
        stride = grid_of(network).stride
        if self.config.grid_stride not in (None, stride):
            raise NacreError(
                f"method.grid_stride: {self.config.grid_stride}, but the model's sums have the "
                f"stride {stride}; leave it out"
            )
        check_sums(network, self.sums)
        network.grow(num_new, "random" if network.ledger is None else "background")

    def prepare(self, step: Step) -> None:
        """Add a ledger beside an external network that has none."""
        super().prepare(step)
        if isinstance(step.network, Adapter) and step.network.ledger is None:
            crop = step.config.images.crop_size
            step.network.start_ledger(self.config.grid_stride, crop, step.num_new)

    @torch.no_grad()
    def fit(self, step: Step) -> None:
        """Sum over the pixels of the step's images in one pass, and solve for the head.

        If the folders of the step hide new classes of each other, a second pass follows, in which
        the head of the first masks this background.
        """
        before = self.sums
        for known in self.passes(step):
            counted = total(step, step.map_images(partial(count_pixels, known=known)))
            self.sums = append_sums(before, step, counted.products)
            set_origins(step, counted)
            set_head(step.network, self.sums, self.config.ridge)

    def passes(self, step: Step) -> list[int]:
        """Return, for each pass, how many channels mask the background."""
        known = [self.num_old]
        if step.may_be is not None and bool(step.may_be[:, 0, self.growth.first_new :].any()):
            known.append(step.num_classes)
        return known

    def state(self) -> dict[str, Tensor]:
        """Return the sums."""
        return {} if self.sums is None else to_state(self.sums)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the sums; in step 0 there are none before `fit`."""
        self.sums = from_state(state) if state else None


def mask_known(batch: Batch, scores: Tensor) -> Tensor:
    """Return the targets with background ignored where a known class is predicted.

    Args:
        batch: The images; if it declares hidden classes, only these mask background.
        scores: N,K,h,w, of the known channels.
    """
    targets, known = batch.targets.clone(), scores.shape[1]
    for i, target in enumerate(targets):
        # One image at a time, as the scores of all pixels of a batch may not fit the memory.
        full = upsample(scores[i : i + 1], (target.shape[0], target.shape[1]))
        may_hide = torch.ones(known, dtype=torch.bool, device=scores.device)
        if batch.hidden is not None:
            may_hide &= batch.hidden[i, :known]
        may_hide[0] = False
        if not bool(may_hide.any()):
            continue
        # For many channels `amax` is much faster than `argmax`.
        hidden, others = (full[0, channels].amax(0) for channels in (may_hide, ~may_hide))
        target[(target == 0) & (hidden > others)] = ignore_value(target)
    return targets


def pad_targets(batch: Batch, size: tuple[int, int]) -> Batch:
    """Return a batch whose targets are padded to a size with ignored pixels."""
    height, width = batch.targets.shape[-2:]
    bottom, right = size[0] - height, size[1] - width
    if not (bottom or right):
        return batch
    value = ignore_value(batch.targets)
    return replace(batch, targets=F.pad(batch.targets, (0, right, 0, bottom), value=value))


def has_grid(network: Network) -> bool:
    """Return whether a network has a grid of stages, as its decoder or in its ledger."""
    return network.ledger is not None or (
        isinstance(network, DeepLab) and isinstance(network.decoder, StageGrid)
    )


def grid_of(network: Network) -> StageGrid:
    """Return the grid of a network; `grow` ensures that it has one."""
    grid = network.decoder if network.ledger is None else network.ledger.grid
    assert isinstance(grid, StageGrid), type(grid)
    return grid


def known_scores(network: Network, on_grid: Tensor) -> Tensor:
    """Return the head's scores of all channels for features on the grid."""
    features = grid_of(network).standardize(on_grid)
    if network.ledger is not None:
        return network.ledger.score(features)
    assert isinstance(network, DeepLab)
    return network.classifier(features)


def check_sums(network: Network, sums: Sums) -> None:
    """Raise NacreError if sums do not match a network, as in a damaged file."""
    features, last = grid_of(network).channels, max(sums.channel.tolist(), default=0)
    if sums.features != features or last >= network.num_classes or not len(sums):
        raise NacreError(
            f"the sums are {len(sums)} rows of {sums.features} features and channels up to {last}; "
            f"the network has {features} features and {network.num_classes} channels"
        )


def set_head(network: Network, sums: Sums, ridge: float) -> None:
    """Solve for the head and put it into a network."""
    grid = grid_of(network)
    head = solve(sums, network.num_classes, ridge)
    grid.mean.copy_(head.mean)
    grid.std.copy_(head.std)
    weight, bias = SCALE * head.weight, SCALE * head.bias
    if network.ledger is not None:
        network.ledger.put_rows(weight, bias)
    else:
        assert isinstance(network, DeepLab)
        network.classifier.set_rows(weight, bias)


def to_state(sums: Sums) -> dict[str, Tensor]:
    """Return sums as the tensors of a model file."""
    return {f"sums.{name}": value for name, value in sums.tensors().items()}


def from_state(state: dict[str, Tensor]) -> Sums:
    """Return the sums of a model file, on the CPU.

    Raises:
        NacreError: There are none, or their shapes do not match.
    """
    names = Sums.__dataclass_fields__
    missing = [name for name in names if f"sums.{name}" not in state]
    if missing:
        raise NacreError(f"the model file has no sums: {missing[0]} is missing")
    return Sums(**{name: state[f"sums.{name}"].cpu() for name in names})


Products = dict[tuple[int, int], Tensor]
"""Float64 matrices D+1,D+1 by folder and channel (`PixelSums.products`)."""


@dataclass
class Counted:
    """The counts of a pass over images.

    Attributes:
        products: The sums over pixels.
        confusion: C,C in float64: the sums of the decoder's probabilities (columns) over the pixels
            of each class (rows), if there is a decoder beside the ledger.
    """

    products: Products
    confusion: Tensor


@torch.no_grad()
def count_pixels(network: Network, batches: Iterable[Batch], known: int) -> Counted:
    """Return the sums over the pixels of images, on the CPU.

    The first `known` channels of the network's head mask the background; 0 masks none.
    """
    grid, sums = grid_of(network), defaultdict[int, PixelSums](PixelSums)
    # Beside an external network all of its own classes are the rest, channel 0.
    rest = network.ledger.own if isinstance(network.ledger, RestHead) else 0
    confusion = torch.zeros(network.num_classes, network.num_classes, dtype=torch.float64)
    for batch in batches:
        if known and isinstance(network, DeepLab) and network.ledger is not None:
            features, stages = network.read(batch.images)
            logits = network.decode(features, stages).logits
            head = network.ledger
            probabilities = head.decoder_probabilities(logits, head.learned)
            confusion += soft_confusion(probabilities, batch.targets)
        else:
            stages = network.read_stages(batch.images)
        batch = pad_targets(
            batch, network.covered((batch.images.shape[-2], batch.images.shape[-1]))
        )
        targets = batch.targets
        if known:
            targets = mask_known(batch, known_scores(network, grid.join(stages))[:, :known])
        if rest:
            targets = targets.masked_fill(targets < rest, 0)
        if targets.device.type == "mps":  # Metal has no float64
            targets, stages = targets.cpu(), tuple(stage.cpu() for stage in stages)
        maps, rows, coarse = grid.parts(stages)
        sums[batch.folder].add(maps, rows, targets, coarse)
    products = {
        (folder, channel): product.cpu()
        for folder, folder_sums in sums.items()
        for channel, product in folder_sums.products().items()
    }
    return Counted(products, confusion)


def soft_confusion(probabilities: Tensor, targets: Tensor) -> Tensor:
    """Return the sums C,C of probabilities N,C,h,w over the pixels of each class in N,H,W."""
    count, size = probabilities.shape[1], (probabilities.shape[-2], probabilities.shape[-1])
    confusion = torch.zeros(count, count, dtype=torch.float64)
    for channel in range(count):
        is_class = targets == channel
        if bool(is_class.any()):
            share = F.adaptive_avg_pool2d(is_class.to(probabilities)[:, None], size)
            confusion[channel] = (probabilities * share).sum((0, 2, 3)).cpu().double()
    return confusion


def set_origins(step: Step, counted: Counted) -> None:
    """Set the origins of the new classes: the decoder's predictions on their pixels."""
    ledger, new = step.network.ledger, slice(step.growth.first_new, None)
    if isinstance(ledger, LedgerHead) and step.growth.num_old:
        predicted = counted.confusion[new].to(ledger.origins)
        pixels = predicted.sum(1, keepdim=True)
        shares = predicted / pixels.clamp(min=MIN_ORIGIN) + MIN_ORIGIN
        ledger.origins[new] = torch.where(pixels > 0, shares, ledger.origins[new])


def total(step: Step, shares: Iterable[Counted]) -> Counted:
    """Return the sums of all shares of all processes, on the CPU."""
    products: Products = {}
    confusion = torch.zeros(step.num_classes, step.num_classes, dtype=torch.float64)
    for share in shares:
        confusion += share.confusion
        for key, product in share.products.items():
            products[key] = products[key].add_(product) if key in products else product
    totals: Products = {}
    side = grid_of(step.network).channels + 1
    # A process may lack classes that others have.
    for key in sorted({key for keys in step.dist.all(list(products)) for key in keys}):
        own = products.pop(key, None)
        own = torch.zeros(side, side, dtype=torch.float64) if own is None else own
        totals[key] = step.dist.sum(own).cpu()
    return Counted(totals, step.dist.sum(confusion).cpu())


def append_sums(before: Sums | None, step: Step, products: Products) -> Sums:
    """Return the sums before a step with those of the step's images."""
    sums = [] if before is None else [before]
    for folder in sorted({folder for folder, _ in products} or {0}):
        own = {channel: value for (where, channel), value in products.items() if where == folder}
        sums.append(from_products(step.number, own, folder))
    return join(sums)
