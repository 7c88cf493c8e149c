"""A network of any library as the student or teacher of nacre's trainer.

    Output = adapter(images in 0..255)

The adapter normalizes pixels, finds the scores, moves the background's channel to the front and
collects feature maps; the network inside does not change. A network without a background gets a
constant first channel with the probability 0. Background then means "no class of the network": it
is never predicted, and an unlabeled pixel may be of any old class.

A ledger beside the network (`nacre.models.ledger`) reads maps that hooks record. The network then
does not change, and only the ledger knows the new classes.

Many networks accept only some image sizes, which the adapter finds by trying: either sides must be
multiples of a number (images are padded with their last pixels and the scores are cropped), or only
one size is accepted (images are scaled to it, and the scores back).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.losses.reference import upsample
from nacre.models.backbone import IMAGENET_MEAN, IMAGENET_STD
from nacre.models.config import BesideConfig, PixelsConfig
from nacre.models.decoders import DEFAULT_STRIDE, StageGrid
from nacre.models.feature_maps import (
    MapInfo,
    as_map,
    check_names,
    find_maps,
    list_maps,
    recorded,
)
from nacre.models.ledger import RestHead
from nacre.models.network import Capability, Network, Output
from nacre.models.probe import (
    example_images,
    find_divisor,
    find_scoring_layers,
    noise,
    num_rows,
    scores_of,
    scoring_layer,
    undisturbed,
)
from nacre.models.widen import Init, check_type, fit_layers, widen

NEVER = -1e4
"""The score of a background that a network does not have: its probability is 0 in float32."""

ALIGNMENT = 32
"""The divisor of padded sides if the network accepts it: the largest usual stride."""

IMAGENET = PixelsConfig(mean=IMAGENET_MEAN, std=IMAGENET_STD)


class Adapter(Network):
    """An external network with nacre's images and outputs.

    Args:
        model: any module from images to class scores (`nacre.models.probe`).
        background: the channel of the background; None if there is none.
        scoring_layers: names of all scoring layers, also auxiliary ones, if nacre cannot find them.
        pixels: the normalization of pixels that the network expects.
        stages: names of modules whose features methods compare, in the order of the network.

    Attributes:
        layers: the scoring layers.
        divisor: the number that divides all sides of images that the network accepts.
        fixed_size: the only height and width that the network accepts; None if it accepts others.
        upsamples: True if the network upsamples its scores bilinearly. The adapter then returns
            the scores before that.
        stride: input pixels per score.
    """

    # No loss of nacre reads the scores of auxiliary heads.
    uses_all_parameters = False
    # Networks that turn maps into tokens by `view` fail in this layout.
    takes_channels_last = False

    def __init__(
        self,
        model: nn.Module,
        *,
        background: int | None = 0,
        scoring_layers: str | Sequence[str] | None = None,
        pixels: PixelsConfig = IMAGENET,
        stages: Sequence[str] = (),
    ) -> None:
        super().__init__()
        check_type(model)
        self.model, self.background, self.stages = model, background, tuple(stages)
        self.ledger: RestHead | None = None
        self._maps: tuple[str, ...] = ()
        self.has_background = background is not None
        check_names(model, stages)
        images = example_images(model)
        self._shape = images.shape
        divisor = find_divisor(model, images)
        self.divisor = divisor or 1
        self.fixed_size = None if divisor else _size(images)
        self.alignment = self.divisor if ALIGNMENT % self.divisor else ALIGNMENT
        if self.fixed_size is not None:
            self.alignment = 1
        self.layers = find_scoring_layers(model, images, scoring_layers)
        if background is not None and not 0 <= background < self.layers.num_classes:
            raise NacreError(
                f"background={background}: the network has {self.layers.num_classes} channels"
            )
        self.expect_pixels(pixels.mean, pixels.std)
        self.upsamples = False
        self.upsamples, width = self._find_upsampling(images)
        self.stride = round(images.shape[-1] / width)

    @property
    def num_classes(self) -> int:
        """The number of channels, including a background that the network does not have."""
        beside = 0 if self.ledger is None else self.ledger.classifier.num_classes - 1
        return self._own_channels + beside

    @property
    def _own_channels(self) -> int:
        return self.layers.num_classes + (self.background is None)

    @property
    def provides(self) -> frozenset[Capability]:
        """Features if modules were named, a backbone if one is found."""
        features: list[Capability] = ["features", "stages"] if self.stages else []
        backbone: list[Capability] = ["backbone"] if self.backbone_or_none is not None else []
        return frozenset(features + backbone)

    @property
    def given(self) -> nn.Module | None:
        """The network itself, if a Python program passed it."""
        return self.model if getattr(self.config, "library", None) == "python" else None

    @property
    def backbone_or_none(self) -> nn.Module | None:
        """The library's base model, backbone or encoder, if it contains no scoring layer."""
        name = self._backbone_name
        return self.model.get_submodule(name) if name else None

    @property
    def _backbone_name(self) -> str:
        """The name of the backbone; empty if there is none."""
        for attribute in ("base_model", "backbone", "encoder"):
            backbone = getattr(self.model, attribute, None)
            if isinstance(backbone, nn.Module) and not self._contains_scores(backbone):
                return next(n for n, module in self.model.named_modules() if module is backbone)
        return ""

    def _contains_scores(self, module: nn.Module) -> bool:
        """Return True if a module contains one of the scoring layers."""
        inner = set(module.modules())
        return any(self.model.get_submodule(name) in inner for name in self.layers.names)

    def forward(self, images: Tensor, *, with_stages: bool = False) -> Output:
        """Return scores and features of N,3,H,W RGB images in 0..255."""
        x = self._fit_size(self.normalize(images))
        padded_size, size = _size(x), _size(images)
        logits, records = self._score(x)
        logits, combined = self._background_first(logits.float()), None
        if self.ledger is not None and not self.training:
            scores = self.ledger(self._ledger_maps(records, padded_size))
            combined = self._crop(self.ledger.add_to(logits, scores), padded_size, size)
        decoded = as_map(self._scoring_input(records), padded_size)
        stages = [
            as_map(records[name], padded_size) if name in records else None for name in self.stages
        ]
        return Output(
            logits=self._crop(logits, padded_size, size),
            features=stages[-1] if stages else decoded,  # type: ignore[arg-type]
            decoder_features=decoded,  # type: ignore[arg-type]
            stages=tuple(stages) if with_stages else (),  # type: ignore[arg-type]
            has_background=self.has_background,
            combined=combined,
        )

    def _crop(self, scores: Tensor, padded_size: tuple[int, int], size: tuple[int, int]) -> Tensor:
        """Return scores without those of the padding."""
        if self.fixed_size is not None or padded_size == size:
            return scores
        return upsample(scores, padded_size)[..., : size[0], : size[1]]

    def start_ledger(self, stride: int | None, crop: int, num_new: int) -> None:
        """Add a ledger beside the network, which learns new classes without changing it.

        Args:
            stride: the wanted input pixels per point of its grid; the nearest stride of a map that
                is not larger is used.
            crop: side of the training crops.
            num_new: classes of its first step.
        """
        names = self.stages or tuple(
            find_maps(self.model, self._backbone_name, self.layers.names, self._example())
        )
        strides = {info.stride for info in self._map_infos(names)}
        wanted = stride or DEFAULT_STRIDE
        config = BesideConfig(
            maps=names,
            stride=max((s for s in strides if s <= wanted), default=min(strides)),
            crop=crop,
            own=self._own_channels,
        )
        self.add_ledger(config, [num_new])
        self.config = self.config.model_copy(update={"ledger": config})

    def add_ledger(self, config: BesideConfig, classes_per_step: Sequence[int]) -> None:
        """Add a ledger beside the network, for the classes of the steps that it has learned."""
        check_names(self.model, config.maps)
        stages = [(info.channels, info.stride) for info in self._map_infos(config.maps)]
        grid = StageGrid(stages, stride=config.stride, crop=config.crop)
        self.ledger = RestHead(
            grid, config.own, classes_per_step, self.stride, self.has_background
        ).to(self.pixel_scale.device)
        self._maps = config.maps

    def _map_infos(self, names: Sequence[str]) -> list[MapInfo]:
        """Return the maps of modules with these names."""
        maps = list_maps(self.model, self.layers.names, self._example())
        by_name = {info.name: info for info in maps}
        lost = [name for name in names if name not in by_name]
        if lost:
            raise NacreError(f"module {lost[0]!r} outputs no map before the network's scores")
        return [by_name[name] for name in names]

    def _example(self) -> Tensor:
        return noise(self._shape, self.model)

    @torch.no_grad()
    def read_stages(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the maps that the ledger reads for images in 0..255, padded to `covered`."""
        x = self._fit_size(_pad(self.normalize(images), self.covered(_size(images))))
        _, records = self._score(x)
        return self._ledger_maps(records, _size(x))

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width to which an image is padded, as for a prediction."""
        return size if self.fixed_size is not None else _round_up(size, self.alignment)

    def _ledger_maps(self, records: dict[str, Tensor], size: tuple[int, int]) -> tuple[Tensor, ...]:
        """Return the ledger's maps as N,C,h,w."""
        maps = [as_map(records[name], size) for name in self._maps]
        assert None not in maps, "`add_ledger` accepts only maps"
        return tuple(x.float() for x in maps if x is not None)

    def _fit_size(self, x: Tensor) -> Tensor:
        """Return pixels of a size that the network accepts."""
        if self.fixed_size is not None:
            return F.interpolate(x, self.fixed_size, mode="bilinear", align_corners=False)
        return _pad(x, _round_up(_size(x), self.divisor))

    def grow(
        self, num_new: int, init: Init = "random", new_origins: Sequence[int] | None = None
    ) -> None:
        """Append channels for new classes, which all split from the background."""
        assert not any(new_origins or ()), "rows of an external network start as the background's"
        if self.ledger is not None:
            self.ledger.grow(num_new)
            return
        widened = widen(
            self.model,
            num_new,
            background=self.background,
            scoring_layers=self.layers.names,
            images=self._example(),
            init=init,
        )
        self.layers = replace(widened.layers, num_classes=widened.num_classes)

    def drop_ledger(self) -> None:
        """Refuse to remove the ledger: the network itself has not learned its classes."""
        if self.ledger is not None:
            raise NacreError(
                "only the ledger beside the network knows the classes of the last steps; continue "
                "it with method 'ledger', or start again from the model before these steps"
            )

    def match_state(self, state: dict[str, Tensor]) -> None:
        """Give scoring layers the shapes of a saved state of this adapter."""
        prefix = "model."
        inner = {
            name.removeprefix(prefix): value
            for name, value in state.items()
            if name.startswith(prefix)
        }
        fit_layers(self.model, self.layers.names, inner)
        count = num_rows(scoring_layer(self.model, self._main_layer))
        self.layers = replace(self.layers, num_classes=count)

    @property
    def _main_layer(self) -> str:
        """The name of the first scoring layer."""
        return next(iter(self.layers.main))

    def _score(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scores of normalized pixels, and the tensors that hooks recorded."""
        names = [*self.stages, *self._maps, self._main_layer]
        with recorded(self.model, dict.fromkeys(names), [self._main_layer]) as records:
            scores = scores_of(self.model(x))
        return records[self._main_layer] if self.upsamples else scores, records

    def _find_upsampling(self, x: Tensor) -> tuple[bool, int]:
        """Return True if only bilinear upsampling follows the scoring layer.

        The losses then upsample strip by strip, and full-size scores are never kept. The second
        result is the width of the scores that the adapter returns.
        """
        with undisturbed(self.model):
            scores, records = self._score(x)
        inner, width = records[self._main_layer], scores.shape[-1]
        if inner.ndim != 4 or len(self.layers.main) > 1 or inner.shape[-1] >= width:
            return False, width
        error = (scores - upsample(inner, _size(scores))).abs().max()
        # Relative to the variation over the image: constant scores survive any upsampling.
        spread = (scores - scores.mean((2, 3), keepdim=True)).abs().max()
        same = bool(error < 1e-3 * spread)
        return same, inner.shape[-1] if same else width

    def _scoring_input(self, records: dict[str, Tensor]) -> Tensor:
        """Return the input of the scoring layer."""
        x = records[f"{self._main_layer} input"]
        if x.ndim == 4 and isinstance(scoring_layer(self.model, self._main_layer), nn.Linear):
            return x.movedim(-1, 1)  # a linear layer has its channels last
        return x

    def _background_first(self, logits: Tensor) -> Tensor:
        if self.background is None:
            never = logits.new_full((), NEVER).expand_as(logits[:, :1])
            return torch.cat([never, logits], 1)
        b = self.background
        channels = logits[:, b : b + 1], logits[:, :b], logits[:, b + 1 :]
        return torch.cat(channels, 1) if b else logits


def _size(x: Tensor) -> tuple[int, int]:
    return x.shape[-2], x.shape[-1]


def _round_up(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    height, width = (-(-side // divisor) * divisor for side in size)
    return height, width


def _pad(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return pixels padded to a size with the last ones of their rows and columns."""
    bottom, right = size[0] - x.shape[-2], size[1] - x.shape[-1]
    return F.pad(x, (0, right, 0, bottom), mode="replicate") if bottom or right else x
