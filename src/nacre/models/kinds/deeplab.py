"""Our network: one of our backbones under the paper's head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nacre.models.abn import ABN, NormFactory
from nacre.models.backbone import Backbone
from nacre.models.backbones import BACKBONES, NormName
from nacre.models.classifier import Classifier
from nacre.models.config import DeepLabConfig, HeadConfig
from nacre.models.deeplab import DeepLab, Head, head_stride
from nacre.models.head import DeepLabHead, default_atrous_rates
from nacre.models.inplace_abn import InPlaceABN
from nacre.models.kinds.base import Kind
from nacre.models.ledger import LedgerHead
from nacre.models.light import LightDecoder
from nacre.models.stage_grid import DEFAULT_STRIDE, StageGrid
from nacre.models.weights import load_backbone

NORMS: dict[NormName, NormFactory] = {
    "bn": partial(ABN, activation="relu"),
    "abn": partial(ABN, activation="leaky_relu", slope=0.01),
    "iabn": partial(InPlaceABN, activation="leaky_relu", slope=0.01),
}


def build(
    config: DeepLabConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> DeepLab:
    """Make our network."""
    backbone = BACKBONES[config.backbone].make(config.output_stride or 16, NORMS[config.norm])
    if load:
        load_backbone(backbone, config.backbone, config.weights)
    return under_head(backbone, config, classes_per_step, crop)


def under_head(
    backbone: Backbone, config: HeadConfig, classes_per_step: Sequence[int], crop: int | None
) -> DeepLab:
    """Put the head and a classifier on a backbone."""
    head, steps = _make_head(backbone, config, crop), list(classes_per_step)
    classifier, ledger = Classifier(head.channels, steps), None
    if isinstance(config, DeepLabConfig) and config.grid_stride and config.decoder != "stages":
        grid = StageGrid(backbone, stride=config.grid_stride, crop=crop)
        ledger = LedgerHead(grid, steps, head_stride(backbone, head))
    network = DeepLab(backbone, head, classifier, ledger)
    network.config = config
    return network


def _make_head(backbone: Backbone, config: HeadConfig, crop: int | None) -> Head:
    decoder = config.decoder if isinstance(config, DeepLabConfig) else "aspp"
    if decoder == "light":
        norm = NORMS[config.norm]
        return LightDecoder(backbone, width=config.decoder_channels, crop=crop, norm=norm)
    if isinstance(config, DeepLabConfig) and decoder == "stages":
        return StageGrid(backbone, stride=config.grid_stride or DEFAULT_STRIDE, crop=crop)
    return _deeplab_head(backbone, config, crop)


def _deeplab_head(backbone: Backbone, config: HeadConfig, crop: int | None) -> DeepLabHead:
    return DeepLabHead(
        backbone.channels,
        width=config.decoder_channels,
        atrous_rates=backbone.atrous_rates or default_atrous_rates(backbone.stride),
        window=None if crop is None else -(-crop // backbone.stride),
        norm=NORMS[config.norm],
    )


KIND = Kind(DeepLabConfig, build, "ours: a backbone of nacre under the paper's head")
