"""The interface between a network and the trainer, the methods and the tests.

    Output = network(images in 0..255)

`nacre.models.deeplab` is nacre's own network, `nacre.models.adapter` wraps external ones.
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
"""Capabilities of networks that methods may require: features, those of stages, a backbone that
can be frozen, or our `classifier`, whose parameters keep their names and shapes in later steps."""

Shared = Literal["nothing", "backbone", "decoder"]
"""The last part of a network that a teacher shares with its student."""


@dataclass
class Output:
    """The output of a network for a batch.

    Attributes:
        logits: N,C,h,w at the network's stride, in float32 or more.
        features: N,K,h,w, the backbone's output.
        decoder_features: N,K,h,w, the decoder's output, which the classifier reads.
        stages: the features of each stage before its last activation, if they were requested.
        unknown: N,1,h,w, logit of the unknown row, if the network has one.
        auxiliary: N,1,h,w, logit of the auxiliary row, if the network has one.
        has_background: True if channel 0 is a background that may hide the new classes.
        combined: N,C,h,w, the logits plus the scores of a ledger beside the decoder, if any.
        maps: the decoder's input, as `Network.read_maps` returns it.
    """

    logits: Tensor
    features: Tensor
    decoder_features: Tensor
    stages: tuple[Tensor, ...] = ()
    unknown: Tensor | None = None
    auxiliary: Tensor | None = None
    has_background: bool = True
    combined: Tensor | None = None
    maps: tuple[Tensor, ...] = ()

    @property
    def scores(self) -> Tensor:
        """Scores N,C,h,w, the largest of which is the predicted class; unknown is background."""
        if self.combined is not None:
            return self.combined
        return self.logits if self.unknown is None else merge_unknown(self.logits, self.unknown)


class Network(nn.Module):
    """A network from images to the logits of all classes that it knows.

    Attributes:
        stride: input pixels per logit.
        alignment: the divisor of image sides for which torch and an exported graph agree; a
            `Predictor` pads other images.
        config: how to build the network again, given the channels of its steps.
        uses_all_parameters: True if the logits depend on every parameter.
        takes_channels_last: True if the network is known to compute correctly in that layout.
        has_background: True if a channel stands for background. Otherwise the first channel has
            the probability 0, and an unlabeled pixel may be of any old class.
        ledger: a linear layer on maps of the backbone, whose scores are added to the logits in
            eval mode.
        takes_maps: True if `forward` accepts the result of `read_maps` as ``kept``.
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
        """Set the normalization of RGB; without a mean, pixels stay in 0..255."""
        shift, scale = torch.zeros(3), torch.ones(3)
        if mean is not None:
            shift, scale = -torch.tensor(mean) / torch.tensor(std), 1 / (255 * torch.tensor(std))
        # Not persistent: these are constants of the network and not of a checkpoint.
        self.register_buffer("pixel_scale", scale.view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_shift", shift.view(3, 1, 1), persistent=False)

    def normalize(self, images: Tensor) -> Tensor:
        """Return images in 0..255 as the network expects them."""
        return torch.addcmul(self.pixel_shift, images.to(self.pixel_scale.dtype), self.pixel_scale)

    @property
    @abstractmethod
    def num_classes(self) -> int:
        """The number of channels, including the background."""

    @property
    @abstractmethod
    def provides(self) -> frozenset[Capability]:
        """The capabilities that a method may use beside logits."""

    @property
    @abstractmethod
    def backbone_or_none(self) -> nn.Module | None:
        """The module that learns at the backbone's rate; None if it is not known."""

    @property
    def given(self) -> nn.Module | None:
        """The module that a Python program passed, which no file can build; None otherwise."""
        return None

    @abstractmethod
    def forward(self, images: Tensor, *, with_stages: bool = False) -> Output:
        """Return low-resolution logits and features of N,3,H,W RGB images in 0..255."""

    def shared_modules(self, shared: Shared) -> list[nn.Module]:
        """Return the modules that a teacher shares with its student."""
        assert shared != "decoder", "the decoder of an external network is not known"
        backbone = None if shared == "nothing" else self.backbone_or_none
        return [] if backbone is None else [backbone]

    def decode_again(self, output: Output, shared: Shared) -> Output | None:
        """Return this network's output from that of one that shares modules; None if unknown."""
        return None

    def read_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the decoder's input for images in 0..255."""
        raise NotImplementedError("only networks with `takes_maps` have it")

    @abstractmethod
    def read_stages(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the maps that a ledger reads for images in 0..255, without gradients."""

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width that these maps cover, with the padding of an image."""
        return size

    def drop_ledger(self) -> None:
        """Remove the ledger beside the decoder, if there is one."""

    @abstractmethod
    def match_state(self, state: dict[str, Tensor]) -> None:
        """Change layers so that a saved state with the same number of classes can be loaded."""

    @abstractmethod
    def grow(
        self, num_new: int, init: Init = "random", new_origins: Sequence[int] | None = None
    ) -> None:
        """Append channels for new classes.

        Args:
            num_new: the number of channels.
            init: their first weights: a share of the channels that they split from, or random.
            new_origins: the channel that each splits from; by default the background.
        """


def merge_unknown(logits: Tensor, unknown: Tensor) -> Tensor:
    """Return logits in which the background has the probability of background plus unknown.

    The sum is clipped to 1 - 1e-6.
    """
    logits, unknown = at_least_float32(logits), at_least_float32(unknown)
    background = logits[:, :1].sigmoid() + unknown.sigmoid()
    return torch.cat([background.clamp(max=1 - 1e-6).logit(), logits[:, 1:]], 1)
