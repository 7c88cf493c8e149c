"""Our network: one of our backbones under the paper's head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from nacre.models.backbone import Backbone
from nacre.models.backbones import BACKBONES, NormName
from nacre.models.classifier import Classifier
from nacre.models.config import DeepLabConfig, HeadConfig
from nacre.models.decoders import AsppDecoder, LightDecoder
from nacre.models.deeplab import Decoder, DeepLab
from nacre.models.kinds.base import Kind
from nacre.models.ledger import LedgerHead
from nacre.models.norm import ABN, InPlaceABN, NormFactory
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
    return on_backbone(backbone, config, classes_per_step, crop)


def on_backbone(
    backbone: Backbone, config: HeadConfig, classes_per_step: Sequence[int], crop: int | None
) -> DeepLab:
    """Put a decoder and a classifier on a backbone."""
    decoder, steps = _make_decoder(backbone, config, crop), list(classes_per_step)
    classifier, ledger = Classifier(decoder.channels, steps), None
    if isinstance(config, DeepLabConfig) and config.grid_stride and config.decoder != "stages":
        grid = StageGrid(backbone, stride=config.grid_stride, crop=crop)
        ledger = LedgerHead(grid, steps, decoder.stride)
    network = DeepLab(backbone, decoder, classifier, ledger)
    network.config = config
    return network


def _make_decoder(backbone: Backbone, config: HeadConfig, crop: int | None) -> Decoder:
    name = config.decoder if isinstance(config, DeepLabConfig) else "aspp"
    if isinstance(config, DeepLabConfig) and name == "stages":
        return StageGrid(backbone, stride=config.grid_stride or DEFAULT_STRIDE, crop=crop)
    make = LightDecoder if name == "light" else AsppDecoder
    return make(backbone, width=config.decoder_channels, crop=crop, norm=NORMS[config.norm])


KIND = Kind(DeepLabConfig, build, "ours: a backbone of nacre under the paper's head")
