"""A network of any library as the student or teacher of nacre's trainer.

    Output = adapter(images in 0..255)

Around the network, which stays what it is, the adapter normalizes pixels, finds the scores, puts
the background's channel first and collects feature maps. A network without a background gets a
constant first channel that is never probable: background then means "no class of the network",
which no pixel is ever predicted to be, and a pixel that nobody labeled is any of the old classes.

A ledger beside it (`nacre.models.ledger`) reads maps that hooks take; the network then stays what
it is, and the ledger alone knows the new classes.

Many networks take only some sizes. Which ones is tried out: sides that are multiples of something
(images are continued by their last pixels and the scores cut), or one size alone (images are
scaled to it, and the scores back).
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
    FoundMap,
    as_map,
    captured,
    check_names,
    find_maps,
    watch,
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
"""What sides are padded to multiples of where the network takes these: the largest usual stride."""

IMAGENET = PixelsConfig(mean=IMAGENET_MEAN, std=IMAGENET_STD)


class Adapter(Network):
    """An external network between nacre's images and nacre's outputs.

    Args:
        model: any module from images to class scores, as `nacre.models.probe` finds them.
        background: the channel of the background; None if there is none.
        scoring_layers: their names, auxiliary ones too, where they cannot be found.
        pixels: what it expects of its pixels.
        stages: names of modules whose output methods may compare, from the first to the last.

    Attributes:
        layers: the scoring layers.
        divisor: sides of images must be multiples of it.
        fixed_size: the one height and width that the network takes; None if it takes others.
        upsamples: whether the network upsamples its scores bilinearly; they are then taken before.
        stride: input pixels per score.
    """

    # Auxiliary heads score for losses that nobody computes here
    uses_all_parameters = False
    # Networks that turn maps into tokens by `view` do not run in this layout
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
        found = find_divisor(model, images)
        self.divisor = found or 1
        self.fixed_size = None if found else _size(images)
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
        self.upsamples, side = self._watch(images)
        self.stride = round(images.shape[-1] / side)

    @property
    def num_classes(self) -> int:
        """Channels of the output, the background's included, even if the network has none."""
        beside = 0 if self.ledger is None else self.ledger.classifier.num_classes - 1
        return self._own_channels + beside

    @property
    def _own_channels(self) -> int:
        return self.layers.num_classes + (self.background is None)

    @property
    def provides(self) -> frozenset[Capability]:
        """Features where modules were named, a backbone where one can be told apart."""
        named: list[Capability] = ["features", "stages"] if self.stages else []
        apart: list[Capability] = ["backbone"] if self.backbone_or_none is not None else []
        return frozenset(named + apart)

    @property
    def given(self) -> nn.Module | None:
        """The network itself, if it was given in Python."""
        return self.model if getattr(self.config, "library", None) == "python" else None

    @property
    def backbone_or_none(self) -> nn.Module | None:
        """The base model, backbone or encoder in the library's words, without scoring layers."""
        name = self._backbone_name
        return self.model.get_submodule(name) if name else None

    @property
    def _backbone_name(self) -> str:
        """The name of the backbone; empty if it cannot be told apart."""
        for name in ("base_model", "backbone", "encoder"):
            found = getattr(self.model, name, None)
            if isinstance(found, nn.Module) and not self._scores_in(found):
                return next(own for own, module in self.model.named_modules() if module is found)
        return ""

    def _scores_in(self, module: nn.Module) -> bool:
        """Return whether a module holds one of the scoring layers."""
        inner = set(module.modules())
        return any(self.model.get_submodule(name) in inner for name in self.layers.names)

    def forward(self, images: Tensor, *, with_stages: bool = False) -> Output:
        """Return scores and features of N,3,H,W RGB images in 0..255."""
        x = self._fit_size(self.normalize(images))
        size, shown = _size(x), _size(images)
        logits, found = self._score(x)
        logits, together = self._background_first(logits.float()), None
        if self.ledger is not None and not self.training:
            scores = self.ledger(self._ledger_maps(found, size))
            together = self._cut(self.ledger.add_to(logits, scores), size, shown)
        decoded = as_map(self._read(found), size)
        stages = [as_map(found[name], size) if name in found else None for name in self.stages]
        return Output(
            logits=self._cut(logits, size, shown),
            features=stages[-1] if stages else decoded,  # type: ignore[arg-type]
            decoder_features=decoded,  # type: ignore[arg-type]
            stages=tuple(stages) if with_stages else (),  # type: ignore[arg-type]
            has_background=self.has_background,
            together=together,
        )

    def _cut(self, scores: Tensor, seen: tuple[int, int], size: tuple[int, int]) -> Tensor:
        """Return scores without those of pixels by which an image was continued."""
        if self.fixed_size is not None or seen == size:
            return scores
        return upsample(scores, seen)[..., : size[0], : size[1]]

    def start_ledger(self, stride: int | None, crop: int, num_new: int) -> None:
        """Begin a ledger beside the network, which learns new classes without changing it.

        Args:
            stride: input pixels per point of its grid; the nearest that a map has is taken.
            crop: side of the training crops.
            num_new: classes of its first step.
        """
        names = self.stages or tuple(
            find_maps(self.model, self._backbone_name, self.layers.names, self._example())
        )
        strides = {one.stride for one in self._found(names)}
        wanted = stride or DEFAULT_STRIDE
        finer = [one for one in strides if one <= wanted]
        own = self._own_channels
        config = BesideConfig(
            maps=names, stride=max(finer, default=min(strides)), crop=crop, own=own
        )
        self.add_ledger(config, [num_new])
        self.config = self.config.model_copy(update={"ledger": config})

    def add_ledger(self, config: BesideConfig, classes_per_step: Sequence[int]) -> None:
        """Put a ledger beside the network, for classes of steps that it learned alone."""
        check_names(self.model, config.maps)
        maps = [(one.channels, one.stride) for one in self._found(config.maps)]
        grid = StageGrid(maps, stride=config.stride, crop=config.crop)
        self.ledger = RestHead(
            grid, config.own, classes_per_step, self.stride, self.has_background
        ).to(self.pixel_scale.device)
        self._maps = config.maps

    def _found(self, names: Sequence[str]) -> list[FoundMap]:
        """Return what the modules of these names put out."""
        seen = {one.name: one for one in watch(self.model, self.layers.names, self._example())}
        lost = [name for name in names if name not in seen]
        if lost:
            raise NacreError(f"module {lost[0]!r} puts out no map before the network's scores")
        return [seen[name] for name in names]

    def _example(self) -> Tensor:
        return noise(self._shape, self.model)

    @torch.no_grad()
    def read_stages(self, images: Tensor) -> tuple[Tensor, ...]:
        """Return the maps that the ledger reads, of images in 0..255 continued to `covered`."""
        x = self._fit_size(_continue(self.normalize(images), self.covered(_size(images))))
        _, found = self._score(x)
        return self._ledger_maps(found, _size(x))

    def covered(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the height and width that an image is continued to, as for a prediction."""
        return size if self.fixed_size is not None else _round_up(size, self.alignment)

    def _ledger_maps(self, found: dict[str, Tensor], size: tuple[int, int]) -> tuple[Tensor, ...]:
        """Return the ledger's maps as N,C,h,w."""
        maps = [as_map(found[name], size) for name in self._maps]
        assert None not in maps, "`add_ledger` takes maps alone"
        return tuple(one.float() for one in maps if one is not None)

    def _fit_size(self, x: Tensor) -> Tensor:
        """Return pixels of a size that the network takes."""
        if self.fixed_size is not None:
            return F.interpolate(x, self.fixed_size, mode="bilinear", align_corners=False)
        return _continue(x, _round_up(_size(x), self.divisor))

    def grow(
        self, num_new: int, init: Init = "random", new_origins: Sequence[int] | None = None
    ) -> None:
        """Give the network channels for new classes, which all split from the background."""
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
        """Refuse to: the network itself has not learned the ledger's classes."""
        if self.ledger is not None:
            raise NacreError(
                "the network's ledger alone knows the classes of the last steps; continue it with "
                "method 'ledger', or start again from the model before these steps"
            )

    def match_state(self, state: dict[str, Tensor]) -> None:
        """Take the shapes of a state of this adapter that was saved after growing."""
        inner = {
            name.removeprefix("model."): value
            for name, value in state.items()
            if name.startswith("model.")
        }
        fit_layers(self.model, self.layers.names, inner)
        count = num_rows(scoring_layer(self.model, self._first))
        self.layers = replace(self.layers, num_classes=count)

    @property
    def _first(self) -> str:
        return next(iter(self.layers.main))

    def _score(self, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the scores of normalized pixels, and what hooks found."""
        names = [*self.stages, *self._maps, self._first]
        with captured(self.model, dict.fromkeys(names), [self._first]) as found:
            scores = scores_of(self.model(x))
        return found[self._first] if self.upsamples else scores, found

    def _watch(self, x: Tensor) -> tuple[bool, int]:
        """Return whether bilinear upsampling is all that follows the scoring layer.

        The losses then upsample strip by strip, and full-size scores are never kept. Also return
        the width of the scores that are used.
        """
        with undisturbed(self.model):
            scores, found = self._score(x)
        inner = found[self._first]
        if inner.ndim != 4 or len(self.layers.main) > 1 or inner.shape[-1] >= scores.shape[-1]:
            return False, scores.shape[-1]
        error = (scores - upsample(inner, _size(scores))).abs().max()
        # Compared with how scores vary over the image: equal ones are equal after any upsampling
        spread = (scores - scores.mean((2, 3), keepdim=True)).abs().max()
        same = bool(error < 1e-3 * spread)
        return same, inner.shape[-1] if same else scores.shape[-1]

    def _read(self, found: dict[str, Tensor]) -> Tensor:
        """Return what the scoring layer read."""
        read = found[f"{self._first} input"]
        if read.ndim == 4 and isinstance(scoring_layer(self.model, self._first), nn.Linear):
            return read.movedim(-1, 1)  # a linear layer has the channels last
        return read

    def _background_first(self, logits: Tensor) -> Tensor:
        if self.background is None:
            never = logits.new_full((), NEVER).expand_as(logits[:, :1])
            return torch.cat([never, logits], 1)
        b = self.background
        parts = logits[:, b : b + 1], logits[:, :b], logits[:, b + 1 :]
        return torch.cat(parts, 1) if b else logits


def _size(x: Tensor) -> tuple[int, int]:
    return x.shape[-2], x.shape[-1]


def _round_up(size: tuple[int, int], divisor: int) -> tuple[int, int]:
    height, width = (-(-side // divisor) * divisor for side in size)
    return height, width


def _continue(x: Tensor, size: tuple[int, int]) -> Tensor:
    """Return pixels continued to a size by the last ones of their rows and columns."""
    bottom, right = size[0] - x.shape[-2], size[1] - x.shape[-1]
    return F.pad(x, (0, right, 0, bottom), mode="replicate") if bottom or right else x
