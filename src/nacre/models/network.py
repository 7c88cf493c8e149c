"""The whole network: backbone, head and growing classifier, from pixels to logits.

logits = classifier(head(backbone((pixels / 255 - mean) / std)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from nacre.losses.reference import upsample
from nacre.losses.sigmoid import merge_unknown
from nacre.models.abn import ABN, NormFactory
from nacre.models.backbone import Backbone
from nacre.models.classifier import Classifier
from nacre.models.config import ModelConfig
from nacre.models.head import DeepLabHead, default_atrous_rates
from nacre.models.inplace_abn import InPlaceABN
from nacre.models.lite0 import Lite0
from nacre.models.resnet import ResNet
from nacre.models.tiny import Tiny
from nacre.models.weights import load_backbone


@dataclass
class Output:
    """What a network says of a batch.

    Attributes:
        logits: N,C,h,w at the backbone's stride, in float32.
        features: N,K,h,w, the backbone's output.
        decoder_features: N,K,h,w, the head's output, of which the logits are made.
        stages: the backbone's features at the end of each stage, before its last activation, if
            they were asked for.
        unknown: N,1,h,w, logit of what is no class yet, where the network has such a row.
        auxiliary: N,1,h,w, logit of the auxiliary row, where the network has one.
    """

    logits: Tensor
    features: Tensor
    decoder_features: Tensor
    stages: tuple[Tensor, ...] = ()
    unknown: Tensor | None = None
    auxiliary: Tensor | None = None

    @property
    def scores(self) -> Tensor:
        """N,C,h,w, of which the greatest is the answer: the logits, unknown as background."""
        return self.logits if self.unknown is None else merge_unknown(self.logits, self.unknown)


class Network(nn.Module):
    """Backbone, head and classifier.

    Args:
        backbone: makes features; says which normalisation of pixels it expects.
        head: takes the backbone's features.
        classifier: takes the head's output.
    """

    pixel_scale: Tensor
    pixel_shift: Tensor

    def __init__(self, backbone: Backbone, head: DeepLabHead, classifier: Classifier) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head
        self.classifier = classifier
        mean, std = torch.tensor(backbone.mean), torch.tensor(backbone.std)
        # Constants of the backbone and not of a checkpoint, hence not persistent
        self.register_buffer("pixel_scale", (1 / (255 * std)).view(3, 1, 1), persistent=False)
        self.register_buffer("pixel_shift", (-mean / std).view(3, 1, 1), persistent=False)

    @property
    def stride(self) -> int:
        """Input pixels per logit."""
        return self.backbone.stride

    def forward(self, images: Tensor, *, with_stages: bool = False) -> Output:
        """Return low-resolution logits and features of N,3,H,W RGB images in 0..255."""
        x = torch.addcmul(self.pixel_shift, images.to(self.pixel_scale.dtype), self.pixel_scale)
        if not with_stages:
            return self.decode(self.backbone(x))
        features, stages = self.backbone.forward_stages(x)
        return self.decode(features, stages)

    def decode(self, features: Tensor, stages: tuple[Tensor, ...] = ()) -> Output:
        """Return the output that follows from the backbone's features."""
        return self.classify(self.head(features), features, stages)

    def classify(
        self, decoder_features: Tensor, features: Tensor, stages: tuple[Tensor, ...] = ()
    ) -> Output:
        """Return the output that follows from the head's features."""
        # Half precision is too coarse for the log-sum-exp of the losses
        logits = self.classifier(decoder_features).float()
        extra = self.classifier.score_extra(decoder_features)
        rows = {name: value.float() for name, value in extra.items()}
        return Output(logits, features, decoder_features, stages, **rows)

    def predict(self, images: Tensor) -> Tensor:
        """Return scores at the size of the images."""
        return upsample(self(images).scores, (images.shape[-2], images.shape[-1]))


# From output stride and norm; `tiny` has one stride, and `lite0` has the norm and ReLU6 that its
# weights were trained with.
BACKBONES: dict[str, Callable[[int, NormFactory], Backbone]] = {
    "tiny": lambda stride, norm: Tiny(norm=norm),
    "resnet18": lambda stride, norm: ResNet(18, stride=stride, norm=norm),
    "resnet34": lambda stride, norm: ResNet(34, stride=stride, norm=norm),
    "resnet50": lambda stride, norm: ResNet(50, stride=stride, norm=norm),
    "resnet101": lambda stride, norm: ResNet(101, stride=stride, norm=norm),
    "lite0": lambda stride, norm: Lite0(stride=stride),
}

NORMS: dict[str, NormFactory] = {
    "bn": partial(ABN, activation="relu"),
    "abn": partial(ABN, activation="leaky_relu", slope=0.01),
    "iabn": partial(InPlaceABN, activation="leaky_relu", slope=0.01),
}


def build_network(
    config: ModelConfig, classes: int | list[int], crop: int | None = None, *, load: bool = True
) -> Network:
    """Make a network.

    Args:
        config: which network.
        classes: channels of step 0 with the background, or of each step that has been learnt.
        crop: side of the training crops in pixels, the window of the head's pooling at test
            time; None pools over the whole image.
        load: whether to start from `config.weights`; without, the network is random.
    """
    norm = NORMS[config.norm]
    backbone = BACKBONES[config.backbone](config.output_stride or 16, norm)
    backbone.grad_checkpointing = config.grad_checkpointing
    if load:
        load_backbone(backbone, config.backbone, config.weights)
    head = DeepLabHead(
        backbone.channels,
        width=config.decoder_channels,
        atrous_rates=config.atrous_rates or default_atrous_rates(backbone.stride),
        window=None if crop is None else -(-crop // backbone.stride),
        norm=norm,
    )
    steps = [classes] if isinstance(classes, int) else classes
    return Network(backbone, head, Classifier(head.channels, steps))
