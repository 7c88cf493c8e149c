"""Making a network from its config."""

from __future__ import annotations

from functools import partial

from nacre.models.abn import ABN, NormFactory
from nacre.models.backbones import BACKBONES, NormName
from nacre.models.classifier import Classifier
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.head import DeepLabHead, default_atrous_rates
from nacre.models.inplace_abn import InPlaceABN
from nacre.models.weights import load_backbone

NORMS: dict[NormName, NormFactory] = {
    "bn": partial(ABN, activation="relu"),
    "abn": partial(ABN, activation="leaky_relu", slope=0.01),
    "iabn": partial(InPlaceABN, activation="leaky_relu", slope=0.01),
}


def build_network(
    config: DeepLabConfig, classes: int | list[int], crop: int | None = None, *, load: bool = True
) -> DeepLab:
    """Make a network.

    Args:
        config: which network.
        classes: channels of step 0 with the background, or of each step that has been learnt.
        crop: side of the training crops in pixels, the window of the head's pooling at test
            time; None pools over the whole image.
        load: whether to start from `config.weights`; without, the network is random.
    """
    norm = NORMS[config.norm]
    backbone = BACKBONES[config.backbone].make(config.output_stride or 16, norm)
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
    return DeepLab(backbone, head, Classifier(head.channels, steps))
