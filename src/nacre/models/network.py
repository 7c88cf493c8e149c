"""The interface of every network to the trainer, the methods and the tests.

    Output = network(images in 0..255)

`nacre.models.deeplab` is our own, `nacre.models.adapter` is around everyone else's.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from nacre.losses.reference import at_least_float32
from nacre.models.config import ModelConfig
from nacre.models.ledger import LedgerHead, RestHead
from nacre.models.widen import Init

Capability = Literal["features", "stages", "backbone", "classifier"]
"""What some networks give and some methods need: features, those of stages, a backbone that can be
frozen, or our `classifier`, in which the parameters of a step keep their names and shapes in later
ones."""

Shared = Literal["nothing", "backbone", "decoder"]
"""Up to which part a teacher and its student have the same modules."""


@dataclass
class Output:
    """The output of a network for a batch.

    Attributes:
        logits: N,C,h,w at the backbone's stride, in float32 at least.
        features: N,K,h,w, the backbone's output.
        decoder_features: N,K,h,w, the decoder's output, of which the logits are made.
        stages: the backbone's features at the end of each stage, before its last activation, if
            they were asked for.
        unknown: N,1,h,w, logit of what is no class yet, where the network has such a row.
        auxiliary: N,1,h,w, logit of the auxiliary row, where the network has one.
        has_background: whether channel 0 is a background that may hide the new classes.
        together: N,C,h,w, the logits and the scores of a ledger beside the decoder added, if any.
        maps: what the decoder read of the backbone, where `Network.read_maps` returns it.
    """

    logits: Tensor
    features: Tensor
    decoder_features: Tensor
    stages: tuple[Tensor, ...] = ()
    unknown: Tensor | None = None
    auxiliary: Tensor | None = None
    has_background: bool = True
    together: Tensor | None = None
    maps: tuple[Tensor, ...] = ()

    @property
    def scores(self) -> Tensor:
        """N,C,h,w, of which the greatest is the answer: the logits, unknown as background."""
        if self.together is not None:
            return self.together
        return self.logits if self.unknown is None else merge_unknown(self.logits, self.unknown)


class Network(nn.Module):
    """A network from images to the logits of all classes that it knows.

    Attributes:
        stride: input pixels per logit.
        alignment: what sides of images must be multiples of to be seen alike in torch and in an
            exported graph; a `Predictor` pads others.
        config: how to build it again, with the channels of its steps.
        uses_all_parameters: whether every parameter has a part in the logits.
        takes_channels_last: whether it is known to compute rightly, and faster, in that layout.
        has_background: whether a channel of its own stands for background; without, the first
            channel is never probable and a pixel that nobody labeled may be any old class.
        ledger: scores maps of the backbone; what it says is added to the logits in eval.
        takes_maps: whether `forward` takes what `read_maps` returned, as ``kept``.
    """

    stride: int
    alignment: int
    config: ModelConfig
    ledger: LedgerHead | RestHead | None
    pixel_scale: Tensor
    pixel_shift: Tensor
    uses_all_parameters = True
    takes_channels_last = True
    has_background = True
    takes_maps = False

    def expect_pixels(self, mean: Sequence[float] | None, std: Sequence[float]) -> None:
        """Set what `normalize` does with RGB; without a mean it leaves it in 0..255."""
        shift, scale = torch.zeros(3), torch.ones(3)
        if mean is not None:
            shift, scale = -torch.tensor(mean) / torch.tensor(std), 1 / (255 * torch.tensor(std))
        # Constants of the network and not of a checkpoint, hence not persistent
        self.register_buffer("pixel_scale", scale.view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_shift", shift.view(3, 1, 1), persistent=False)

    def normalize(self, images: Tensor) -> Tensor:
        """Return images in 0..255 as the network expects them."""
        return torch.addcmul(self.pixel_shift, images.to(self.pixel_scale.dtype), self.pixel_scale)

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """Channels of the logits, the background's included."""

    @property
    @abstractmethod
    def provides(self) -> frozenset[Capability]:
        """The parts that a method may ask for beside logits."""

    @property
    @abstractmethod
    def backbone_or_none(self) -> nn.Module | None:
        """The part that learns at the backbone's rate; None if it is not known."""

    @property
    def given(self) -> nn.Module | None:
        """The module that was given in Python and that no file can build; None if there is none."""
        return None

    @abstractmethod
    def forward(self, images: Tensor, *, with_stages: bool = False) -> Output:
        """Return low-resolution logits and features of N,3,H,W RGB images in 0..255."""

    def shared_modules(self, shared: Shared) -> list[nn.Module]:
        """Return the modules that a teacher has together with its student."""
        assert shared != "decoder", "of other networks nobody knows the decoder"
        part = None if shared == "nothing" else self.backbone_or_none
        return [] if part is None else [part]

    def decode_again(self, output: Output, shared: Shared) -> Output | None:
        """Return what follows from what a network with these parts read; None if not known."""
        return None

    def read_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return what the decoder reads of the backbone, of images in 0..255."""
        raise NotImplementedError("of networks with `takes_maps` alone")

    @abstractmethod
    def read_stages(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the maps that a ledger reads, of images in 0..255, without gradients."""

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width of what these maps show of an image: it may be continued."""
        return size

    def drop_ledger(self) -> None:
        """Go on without a ledger beside the decoder, if there is one."""

    @abstractmethod
    def match_state(self, state: dict[str, Tensor]) -> None:
        """Take the form of a network of as many classes whose state was saved."""

    @abstractmethod
    def grow(
        self, num_new: int, init: Init = "random", new_origins: Sequence[int] | None = None
    ) -> None:
        """Add channels for new classes after those that there are.

        Args:
            num_new: how many.
            init: how they start: as shares of the channels that they split from, or at random.
            new_origins: the channel that each splits from; the background if not given.
        """


def merge_unknown(logits: Tensor, unknown: Tensor) -> Tensor:
    """Return logits whose background has the probabilities of background and unknown together.

    Their sum is at most 1 - 1e-6.
    """
    logits, unknown = at_least_float32(logits), at_least_float32(unknown)
    together = logits[:, :1].sigmoid() + unknown.sigmoid()
    return torch.cat([together.clamp(max=1 - 1e-6).logit(), logits[:, 1:]], 1)
