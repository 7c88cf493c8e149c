"""What a method is shown: a batch, and the step that is being learnt."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from nacre.labels.channels import Growth, ignore_value
from nacre.losses.softmax import Variant
from nacre.models.network import Network
from nacre.utils.distributed import Distributed

T = TypeVar("T")

Mapper = Callable[[Callable[[Network, Iterator["Batch"]], Any]], Iterator[Any]]


@dataclass(frozen=True)
class Batch:
    """What one call of `losses` sees.

    Attributes:
        images: N,3,H,W, uint8 RGB.
        targets: N,H,W, channel numbers; 255 is ignored.
        num_valid_pixels: How many pixels a loss on the targets is averaged over. It is the share
            of the whole batch, so that gradient accumulation and several processes change nothing.
            Pseudo-labels do not change it: it is counted with the labels of the data.
        may_be: N,C,C, bool: whether a pixel of an image whose target is y may in truth be c. None
            where that is what the method's loss assumes by itself (`labels.rows_for_loss`).
        replaced_targets: N,H,W, the data's own, where pseudo-labels took their place.
        weights: N, of the images in the cross-entropy, where pseudo-labels say so.
        salient: N,H,W, bool: which background is salient, where there are maps of it.
        folder: the number of the data set that all images are from, in passes without augmentation.
    """

    images: Tensor
    targets: Tensor
    num_valid_pixels: float | None = None
    may_be: Tensor | None = None
    replaced_targets: Tensor | None = None
    weights: Tensor | None = None
    salient: Tensor | None = None
    folder: int = 0

    @property
    def hidden(self) -> Tensor | None:
        """N,C: what background may in truth be, by image; None as for `may_be`."""
        return None if self.may_be is None else self.may_be[:, 0]

    def ce(self, usual: Variant) -> Variant:
        """Return which cross-entropy is right: the usual one unless the data say what hides."""
        return usual if self.may_be is None else "unbiased"

    def sure_targets(self, first_new: int) -> Tensor:
        """The data's targets without background in which a new class may hide: it is ignored."""
        targets = self.data_targets
        if self.hidden is None:
            return targets
        unsure = self.hidden[:, first_new:].any(1)[:, None, None] & (targets == 0)
        return targets.masked_fill(unsure, ignore_value(targets))

    @property
    def data_targets(self) -> Tensor:
        """The targets as the data have them, without pseudo-labels."""
        return self.targets if self.replaced_targets is None else self.replaced_targets


@dataclass(frozen=True)
class Step:
    """The step that is being learnt, as the hooks of a method see it.

    Attributes:
        index: Its number; 0 is the base.
        growth: What it adds to the channels of the model.
        network: The student, already grown.
        teacher: The frozen network of the step before, where the method uses one.
        dist: Who computes, and where.
        iterations: Updates of the whole step.
        may_be: D,C,C: as in `Batch`, for each data set that it learns from.
        iterations_per_epoch: Updates of one pass over the step's images.
        overlapped: Whether pictures of this step may come again in others, with other labels.
        num_images: How many pictures it has; None if nobody counted.
        open_batches: Opens this process's share of one such pass, see `batches`.
        open_images: Opens this process's share of a pass without augmentation, see `images`.
        open_held_out: The same for images that no update is made from, see `held_out`.
        map_elsewhere: Has others carry out such a pass in shares, see `map_images`.
    """

    index: int
    growth: Growth
    network: Network
    teacher: Network | None
    dist: Distributed
    iterations: int
    may_be: Tensor | None = None
    iterations_per_epoch: int = 1
    open_batches: Callable[[], Iterator[Batch]] | None = None
    overlapped: bool = True
    num_images: int | None = None
    open_images: Callable[[], Iterator[Batch]] | None = None
    open_held_out: Callable[[], Iterator[Batch]] | None = None
    map_elsewhere: Mapper | None = None

    @property
    def num_new(self) -> int:
        """Channels that the step adds; in step 0 all of them."""
        return self.growth.num_new

    @property
    def num_classes(self) -> int:
        """All channels, background included."""
        return len(self.growth.origins)

    def batches(self) -> Iterator[Batch]:
        """Yield this process's share of the step's images once, as the first epoch shows them."""
        assert self.open_batches is not None, "this step was made without its images"
        return self.open_batches()

    def images(self) -> Iterator[Batch]:
        """Yield this process's share of the step's images, each once and as it would be tested.

        Over all processes the batches are the same, however many processes there are.
        """
        assert self.open_images is not None, "this step was made without its images"
        return self.open_images()

    def held_out(self) -> Iterator[Batch]:
        """Yield this process's share of the images that are held out, as `images` does."""
        return iter(()) if self.open_held_out is None else self.open_held_out()

    def map_images(self, function: Callable[[Network, Iterator[Batch]], T]) -> Iterator[T]:
        """Yield what a function of the network and images returns for shares of such a pass.

        This process has one share, which it carries out itself, unless `map_elsewhere` has many
        carried out by the machines of a cluster: to them the function is sent with all it holds.
        """
        if self.map_elsewhere is None:
            yield function(self.network, self.images())
        else:
            yield from self.map_elsewhere(function)
