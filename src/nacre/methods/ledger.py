"""Ledger: a linear head in closed form on a frozen backbone, from sums that are kept per class.

One pass over a step's images, no gradient. The ends of all stages of the backbone lie on one grid
(`nacre.models.decoders`), beside them the image's mean of the last stage. For every class c that
the step labels, and for its background, three sums over *pixels* are kept
(`nacre.losses.pixel_sums`):

    n_c,    sum of x,    sum of x x^T        x(p): the features that upsampling gives pixel p

From the sums of all steps the head is solved (`nacre.losses.ridge`): ridge regression of each
channel's indicator, balanced by classes,

    W = argmin sum_c b_c / n_c sum_(p of c) |W x(p) - e_c|^2 + ridge,      b_c ~ sqrt(n_c)

The ridge is a share (`ridge`) of each feature's variance, the constant is not shrunk. Logits are
8 times the scores: with this factor a softmax is calibrated about right; it changes no decision.

Old classes cannot be overwritten: their sums stay. Steps in any order give the same head, a step
a folder or a class can be forgotten and models on one backbone merged (`nacre.runs.edit`). What
depends on the order is the mask: background that the model before the step takes for a known class
which may hide there is not counted (`labels.unlabeled=background` counts all).

Sums are kept in the model file as n and mean in float64 and the scatter around the mean in float32,
of which half is stored: 2.3 MiB per class, step and data folder with EfficientNet-Lite0. See
docs/ledger.md.

A pass is a map and a sum: shares of the images may be counted anywhere (`Step.map_images`).

A network of others has no sums of what it knew before. There the ledger stands beside it
(`nacre.models.ledger.RestHead`): all that the network knows is one more class, the rest, and the
network itself stays as it is.
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
from nacre.models.ledger import LEAST, LedgerHead, RestHead
from nacre.models.network import Network

SCALE = 8.0
"""Of the logits over the regression's scores."""


class SumsConfig(MethodConfig):
    """The ridge and the grid of a head from sums."""

    ridge: float = Field(
        0.01, gt=0, le=1000, description="what is added to each feature's variance, as a share"
    )
    grid_stride: Literal[8, 16] | None = Field(
        None, description="input pixels per point of the grid; or that of the start model"
    )


class LedgerConfig(SumsConfig):
    """The ledger alone; its grid has 16 pixels per point by default."""

    refused = dict.fromkeys(
        ("freeze", "freeze_step_0", "fusion", "pseudo_labels", "init"),
        "it learns without gradients",
    )

    name: Literal["ledger"] = Field("ledger", description="a head in closed form, from sums")

    freeze: Freeze = ("backbone", "batch_norm")
    freeze_step_0: bool = True


class Ledger(Method):
    """Sums per class, and the head that follows from them."""

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
        """Declare that step 0 depends on the method's own values."""
        assert isinstance(config, SumsConfig)
        stride = config.grid_stride or cls.default_stride
        return f"{cls.step_0}, ridge {config.ridge}, grid of stride {stride}"

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Declare that it leaves out background that the model takes for a known class."""
        return True

    def network_config(self, model: ModelConfig) -> ModelConfig:
        """Return the network with the stages as its decoder."""
        return self.with_grid(model, decoder="stages")

    def with_grid(self, model: ModelConfig, **changes: str) -> ModelConfig:
        """Return a network with a grid of its stages."""
        if not isinstance(model, DeepLabConfig):
            raise NacreError(
                f"method {self.name!r} begins on a network of ours, or beside a network of others "
                "that has learned its classes (start=…); this one has learned none"
            )
        stride = self.config.grid_stride or self.default_stride
        return model.model_copy(update={"grid_stride": stride, **changes})

    def grow(self, network: Network, num_new: int) -> None:
        """Add channels, whose rows `fit` solves for; to a decoder beside it they are background."""
        if isinstance(network, Adapter) and network.ledger is None:
            return  # `prepare` begins one: the classes that the network knows are the rest to it
        if self.sums is None or not has_grid(network):
            raise NacreError(
                f"the model keeps no sums of its classes: method {self.name!r} continues only what "
                "ledger or duo learned; learn all steps with it, or use another method"
            )
        stride = grid_of(network).stride
        if self.config.grid_stride not in (None, stride):
            raise NacreError(
                f"method.grid_stride: {self.config.grid_stride}, but the model's sums are on a "
                f"grid of stride {stride}; leave it out"
            )
        check_sums(network, self.sums)
        network.grow(num_new, "random" if network.ledger is None else "background")

    def prepare(self, step: Step) -> None:
        """Begin a ledger beside a network of others that has none."""
        super().prepare(step)
        if isinstance(step.network, Adapter) and step.network.ledger is None:
            crop = step.config.images.crop_size
            step.network.start_ledger(self.config.grid_stride, crop, step.num_new)

    @torch.no_grad()
    def fit(self, step: Step) -> None:
        """Add up the pixels of the step's images in one pass, and solve for the head.

        Where data sets of one step hide new classes of each other, a second pass counts again: the
        head of the first knows the new classes well enough to leave such background out.
        """
        before = self.sums
        for known in self.passes(step):
            found = total(step, step.map_images(partial(count_pixels, known=known)))
            self.sums = joined(before, step, found.products)
            put_origins(step, found)
            put_head(step.network, self.sums, self.config.ridge)

    def passes(self, step: Step) -> list[int]:
        """Return by how many first channels the background is masked, in each pass."""
        known = [self.num_old]
        if step.may_be is not None and bool(step.may_be[:, 0, self.growth.first_new :].any()):
            known.append(step.num_classes)
        return known

    def state(self) -> dict[str, Tensor]:
        """Return the sums."""
        return {} if self.sums is None else to_state(self.sums)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back the sums; in step 0 there are none before `fit`."""
        self.sums = from_state(state) if state else None


def leave_out_known(batch: Batch, scores: Tensor) -> Tensor:
    """Return the targets without background that is taken for a known class: it is ignored.

    Args:
        batch: the images; where it says which classes may hide in them, only these are left out.
        scores: N,K,h,w, of the channels that are known.
    """
    targets, known = batch.targets.clone(), scores.shape[1]
    for i, one in enumerate(targets):
        # One by one: scores of all channels at all pixels of a batch may not fit.
        full = upsample(scores[i : i + 1], (one.shape[0], one.shape[1]))
        may_hide = torch.ones(known, dtype=torch.bool, device=scores.device)
        if batch.hidden is not None:
            may_hide &= batch.hidden[i, :known]
        may_hide[0] = False
        if not bool(may_hide.any()):
            continue
        # The greatest of many channels is found much faster than its place among them.
        hiding, others = (full[0, which].amax(0) for which in (may_hide, ~may_hide))
        one[(one == 0) & (hiding > others)] = ignore_value(one)
    return targets


def continued(batch: Batch, size: tuple[int, int]) -> Batch:
    """Return a batch of which the targets are continued to a size, by ignored pixels."""
    height, width = batch.targets.shape[-2:]
    bottom, right = size[0] - height, size[1] - width
    if not (bottom or right):
        return batch
    value = ignore_value(batch.targets)
    return replace(batch, targets=F.pad(batch.targets, (0, right, 0, bottom), value=value))


def has_grid(network: Network) -> bool:
    """Return whether a network has a grid of stages, as its decoder or beside it."""
    return network.ledger is not None or (
        isinstance(network, DeepLab) and isinstance(network.decoder, StageGrid)
    )


def grid_of(network: Network) -> StageGrid:
    """Return the grid of a network that has one: `grow` sees to it."""
    grid = network.decoder if network.ledger is None else network.ledger.grid
    assert isinstance(grid, StageGrid), type(grid)
    return grid


def known_scores(network: Network, on_grid: Tensor) -> Tensor:
    """Return the scores of all channels by the ledger alone, of features on its grid."""
    features = grid_of(network).standardize(on_grid)
    if network.ledger is not None:
        return network.ledger.score(features)
    assert isinstance(network, DeepLab)
    return network.classifier(features)


def check_sums(network: Network, sums: Sums) -> None:
    """Refuse sums that are not of a network's features and channels, as in a damaged file."""
    features, last = grid_of(network).channels, max(sums.channel.tolist(), default=0)
    if sums.features != features or last >= network.num_classes or not len(sums):
        raise NacreError(
            f"the sums are {len(sums)} rows of {sums.features} features and channels up to {last}; "
            f"the network has {features} features and {network.num_classes} channels"
        )


def put_head(network: Network, sums: Sums, ridge: float) -> None:
    """Give a network the head that follows from sums."""
    grid = grid_of(network)
    found = solve(sums, network.num_classes, ridge)
    grid.mean.copy_(found.mean)
    grid.std.copy_(found.std)
    weight, bias = SCALE * found.weight, SCALE * found.bias
    if network.ledger is not None:
        network.ledger.put_rows(weight, bias)
    else:
        assert isinstance(network, DeepLab)
        network.classifier.set_rows(weight, bias)


def to_state(sums: Sums) -> dict[str, Tensor]:
    """Return sums as tensors of a model file."""
    return {f"sums.{name}": value for name, value in sums.tensors().items()}


def from_state(state: dict[str, Tensor]) -> Sums:
    """Return the sums in a model file; they stay in the CPU's memory.

    Raises:
        NacreError: there are none, or they do not fit together.
    """
    names = Sums.__dataclass_fields__
    missing = [name for name in names if f"sums.{name}" not in state]
    if missing:
        raise NacreError(f"the model file keeps no sums: {missing[0]} is missing")
    return Sums(**{name: state[f"sums.{name}"].cpu() for name in names})


Products = dict[tuple[int, int], Tensor]
"""D+1,D+1 in float64 by folder and channel, see `PixelSums.products`."""


@dataclass
class Counted:
    """The counts of a pass over images.

    Attributes:
        products: The sums over pixels.
        said: C,C in float64, how often a decoder beside the ledger says what on pixels of each
            class.
    """

    products: Products
    said: Tensor


@torch.no_grad()
def count_pixels(network: Network, batches: Iterable[Batch], known: int) -> Counted:
    """Return the sums over the pixels of images, in the CPU's memory.

    Args:
        network: makes the features; background that the first channels of its head take for a class
            is not counted.
        batches: the images.
        known: how many channels of the head do so; 0 counts all background.
    """
    grid, sums = grid_of(network), defaultdict[int, PixelSums](PixelSums)
    # Beside a network of others all that it knows itself is the rest.
    rest = network.ledger.own if isinstance(network.ledger, RestHead) else 0
    said = torch.zeros(network.num_classes, network.num_classes, dtype=torch.float64)
    for batch in batches:
        if known and isinstance(network, DeepLab) and network.ledger is not None:
            features, stages = network.read(batch.images)
            logits = network.decode(features, stages).logits
            said += count_said(network.ledger.says(logits, network.ledger.learned), batch.targets)
        else:
            stages = network.read_stages(batch.images)
        batch = continued(batch, network.covered((batch.images.shape[-2], batch.images.shape[-1])))
        targets = batch.targets
        if known:
            targets = leave_out_known(batch, known_scores(network, grid.join(stages))[:, :known])
        if rest:
            targets = targets.masked_fill(targets < rest, 0)
        if targets.device.type == "mps":  # Metal has no float64
            targets, stages = targets.cpu(), tuple(one.cpu() for one in stages)
        maps, rows, coarse = grid.parts(stages)
        sums[batch.folder].add(maps, rows, targets, coarse)
    products = {
        (folder, channel): product.cpu()
        for folder, one in sums.items()
        for channel, product in one.products().items()
    }
    return Counted(products, said)


def count_said(said: Tensor, targets: Tensor) -> Tensor:
    """Return what a decoder says on the pixels of each class, C,C in float64.

    Args:
        said: N,C,h,w, its probabilities.
        targets: N,H,W.
    """
    count, size = said.shape[1], (said.shape[-2], said.shape[-1])
    found = torch.zeros(count, count, dtype=torch.float64)
    for channel in range(count):
        mine = targets == channel
        if bool(mine.any()):
            share = F.adaptive_avg_pool2d(mine.to(said)[:, None], size)
            found[channel] = (said * share).sum((0, 2, 3)).cpu().double()
    return found


def put_origins(step: Step, counted: Counted) -> None:
    """Give the step's new classes, as a decoder beside the ledger sees them, their origins."""
    ledger, new = step.network.ledger, slice(step.growth.first_new, None)
    if isinstance(ledger, LedgerHead) and step.growth.num_old:
        said = counted.said[new].to(ledger.origins)
        pixels = said.sum(1, keepdim=True)
        measured = said / pixels.clamp(min=LEAST) + LEAST
        ledger.origins[new] = torch.where(pixels > 0, measured, ledger.origins[new])


def total(step: Step, shares: Iterable[Counted]) -> Counted:
    """Return the sums of all shares of all processes, in the CPU's memory."""
    products: Products = {}
    said = torch.zeros(step.num_classes, step.num_classes, dtype=torch.float64)
    for share in shares:
        said += share.said
        for place, product in share.products.items():
            products[place] = products[place].add_(product) if place in products else product
    found: Products = {}
    side = grid_of(step.network).channels + 1
    for place in sorted({one for places in step.dist.all(list(products)) for one in places}):
        mine = products.pop(place, None)
        if mine is None:
            mine = torch.zeros(side, side, dtype=torch.float64)
        if step.dist.device.type == "cuda" and step.dist.world_size > 1:
            mine = mine.to(step.dist.device)  # nccl is faster than gloo
        found[place] = step.dist.sum(mine).cpu()
    said = said.to(step.dist.device) if step.dist.device.type == "cuda" else said
    return Counted(found, step.dist.sum(said).cpu())


def joined(before: Sums | None, step: Step, products: Products) -> Sums:
    """Return the sums before a step with those that the step's images have."""
    rows = [] if before is None else [before]
    for folder in sorted({folder for folder, _ in products} or {0}):
        mine = {channel: one for (where, channel), one in products.items() if where == folder}
        rows.append(from_products(step.number, mine, folder))
    return join(rows)
