"""nacre's own network: a backbone, a decoder and a classifier that grows.

logits = classifier(decoder(backbone((pixels / 255 - mean) / std)))
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import get_args

import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.losses.reference import at_least_float32
from nacre.models.backbone import Backbone, make_timm_backbone
from nacre.models.classifier import Classifier
from nacre.models.config import BACKBONES, TIMM, BackboneRow, DeepLabConfig, NormName
from nacre.models.decoders import DEFAULT_STRIDE, AsppDecoder, LightDecoder, StageGrid
from nacre.models.ledger import LedgerHead
from nacre.models.network import Capability, Network, Output, Shared
from nacre.models.norm import ABN, InPlaceABN, NormFactory
from nacre.models.weights import find_weights, load_backbone
from nacre.models.widen import Init
from nacre.utils.device import memory_layout

Decoder = AsppDecoder | LightDecoder | StageGrid


class DeepLab(Network):
    """Backbone, decoder and classifier.

    Args:
        backbone: computes features of normalized pixels.
        decoder: reads the backbone's features, or some of its stages.
        classifier: reads the decoder's output.
        ledger: reads all stages; its scores are added to the classifier's in eval mode.
    """

    ledger: LedgerHead | None
    takes_maps = True

    def __init__(
        self,
        backbone: Backbone,
        decoder: Decoder,
        classifier: Classifier,
        ledger: LedgerHead | None = None,
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.decoder = decoder
        self.classifier = classifier
        self.ledger = ledger
        self.expect_pixels(backbone.mean, backbone.std)
        self.stride = decoder.stride
        self.alignment = max(backbone.stride, self.stride)

    @property
    def num_classes(self) -> int:
        """The number of channels of the classifier."""
        return self.classifier.num_classes

    @property
    def provides(self) -> frozenset[Capability]:
        """All capabilities."""
        return frozenset(get_args(Capability))

    @property
    def backbone_or_none(self) -> Backbone:
        """The backbone."""
        return self.backbone

    def forward(
        self, images: Tensor, *, with_stages: bool = False, kept: tuple[Tensor, ...] = ()
    ) -> Output:
        """Return low-resolution logits and features of N,3,H,W RGB images in 0..255.

        Args:
            images: the images.
            with_stages: return the features of all stages, too.
            kept: the result of `read_maps` for these images, if it is known already.
        """
        if kept:
            return self.decode(kept[-1], maps=kept)
        x = self.normalize(images) if self.training else self._normalize_fast(images)
        adds = self.ledger is not None and not self.training
        if not (with_stages or self.decoder.reads or adds):
            return self.decode(self.backbone(x))
        features, stages = self.backbone.forward_stages(x)
        output = self.decode(features, stages)
        if self.ledger is not None and adds:
            output.combined = self.ledger.add_to(output.logits, self.ledger(stages))
        return output

    @torch.no_grad()
    def read(self, images: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the backbone's features and stages for images in 0..255."""
        return self.backbone.forward_stages(self._normalize_fast(images))

    def _normalize_fast(self, images: Tensor) -> Tensor:
        """Return normalized images in the layout that is fastest for inference."""
        layout = memory_layout(images.device, training=False)
        return self.normalize(images).contiguous(memory_format=layout)

    def read_maps(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the decoder's input for images in 0..255."""
        return self._decoder_input(*self.read(images))

    def read_stages(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the stages of the backbone for images in 0..255."""
        return self.read(images)[1]

    def _decoder_input(self, features: Tensor, stages: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(stages[i] for i in self.decoder.reads) or (features,)

    def shared_modules(self, shared: Shared) -> list[nn.Module]:
        """Return the modules that a teacher shares with its student."""
        count = get_args(Shared).index(shared)
        modules: list[nn.Module] = [self.backbone, self.decoder]
        return modules[:count]

    def decode_again(self, output: Output, shared: Shared = "backbone") -> Output | None:
        """Return this network's output from that of one that shares modules, if any."""
        features, stages = output.features.detach(), tuple(x.detach() for x in output.stages)
        if shared == "nothing":
            return None
        if shared == "decoder":
            return self.classify(output.decoder_features.detach(), features, stages)
        return self.decode(features, stages, tuple(x.detach() for x in output.maps))

    def decode(
        self,
        features: Tensor,
        stages: tuple[Tensor, ...] = (),
        maps: tuple[Tensor, ...] = (),
    ) -> Output:
        """Return the output for features of the backbone, or for the decoder's input `maps`."""
        maps = maps or self._decoder_input(features, stages)
        decoded = self.decoder(maps if self.decoder.reads else maps[0])
        output = self.classify(decoded, features, stages)
        output.maps = maps
        return output

    def classify(
        self, decoder_features: Tensor, features: Tensor, stages: tuple[Tensor, ...] = ()
    ) -> Output:
        """Return the output for features of the decoder."""
        # Half precision has too few digits for the log-sum-exp of the losses.
        logits = at_least_float32(self.classifier(decoder_features))
        extra = self.classifier.score_extra(decoder_features)
        unknown, auxiliary = extra.get("unknown"), extra.get("auxiliary")
        return Output(logits, features, decoder_features, stages, unknown, auxiliary)

    def match_state(self, state: dict[str, Tensor]) -> None:
        """Add the rows and branches of the classifier of a saved state."""
        prefix = "classifier."
        self.classifier.match_state(
            name.removeprefix(prefix) for name in state if name.startswith(prefix)
        )

    def grow(
        self, num_new: int, init: Init = "random", new_origins: Sequence[int] | None = None
    ) -> None:
        """Append channels for new classes to the classifier."""
        if init == "background":
            self.classifier.grow_from_origins(new_origins or [0] * num_new)
        else:
            self.classifier.grow(num_new)
        if self.ledger is not None:
            self.ledger.grow(num_new)

    def drop_ledger(self) -> None:
        """Remove the ledger beside the decoder, if there is one."""
        if self.ledger is not None:
            if not bool(self.ledger.learned[1:].any()):
                raise NacreError(
                    "the model's decoder has learned no class yet, only its ledger has: continue "
                    "it with method 'duo' or 'ledger'"
                )
            self.ledger = None
            self.config = self.config.model_copy(update={"grid_stride": None})


NORMS: dict[NormName, NormFactory] = {
    "bn": partial(ABN, activation="relu"),
    "abn": partial(ABN, activation="leaky_relu", slope=0.01),
    "iabn": partial(InPlaceABN, activation="leaky_relu", slope=0.01),
}


def build(
    config: DeepLabConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> DeepLab:
    """Make a network of ours."""
    weights, steps = config.weights if load else "none", list(classes_per_step)
    of_timm = config.backbone.startswith(TIMM)
    if of_timm:
        file = None if weights == "none" else find_weights(config.backbone, weights)
        backbone: Backbone = make_timm_backbone(config.backbone, config.output_stride, file)
    else:
        backbone = _make_backbone(BACKBONES[config.backbone], config)
        load_backbone(backbone, config.backbone, weights)
    decoder, ledger = _make_decoder(backbone, config, crop), None
    classifier = Classifier(decoder.channels, steps)
    if config.grid_stride and config.decoder != "stages":
        grid = StageGrid(backbone.stages, stride=config.grid_stride, crop=crop)
        ledger = LedgerHead(grid, steps, decoder.stride)
    network = DeepLab(backbone, decoder, classifier, ledger)
    network.config, network.uses_all_parameters = config, not of_timm
    return network


def _make_backbone(row: BackboneRow, config: DeepLabConfig) -> Backbone:
    module, _, name = row.place.partition(":")
    options = dict(row.options)
    if row.any_stride:
        options["stride"] = config.output_stride or 16
    if not row.own_norm:
        options["norm"] = NORMS[config.norm]
    backbone: Backbone = getattr(import_module(module), name)(**options)
    return backbone


def _make_decoder(backbone: Backbone, config: DeepLabConfig, crop: int | None) -> Decoder:
    if config.decoder == "stages":
        return StageGrid(backbone.stages, stride=config.grid_stride or DEFAULT_STRIDE, crop=crop)
    make = LightDecoder if config.decoder == "light" else AsppDecoder
    return make(backbone, width=config.decoder_channels, crop=crop, norm=NORMS[config.norm])
