"""Finding the layers of a network that score the classes, by their effect instead of their names.

A scoring layer has one row of weights per class, and what is added to its output for class c
appears in the scores of class c and nowhere else. So one batch runs through the network while the
output of a layer with as many rows as there are classes is shifted by d[c]:

    scores change by  g * d[c]  (plus a constant over classes)   main layer, or one of a sum
    auxiliary scores change likewise                             layer of an auxiliary head
    no output of the network changes                             auxiliary head of its own loss
    anything else                                                inner layer

A constant over classes does not change a softmax: scores may be log-probabilities. g is 1 in nearly
all networks, 2 if a layer is used twice, and 1 / T if scores are divided by T.

A segmentation network of any library outputs N,C,h,w scores, one channel per class. They may be the
output itself, or a part of it:

    tensor                       smp, most networks in plain torch
    output.logits                transformers
    output["out"]                torchvision
    output["logits"]             others
    output[any other key]        a dictionary with one such tensor of two channels or more
    output[0]                    a tuple or list, the scores first

Further N,C,h,w tensors with the same number of channels are auxiliary scores.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from nacre.errors import NacreError, did_you_mean

Summands = dict[str, float]
"""Names of the layers whose outputs add up to scores, each with its factor g."""

ScoringLayer = nn.Conv2d | nn.ConvTranspose2d | nn.Linear
_SIZES = (64, 128, 224, 256, 384, 512)


@dataclass(frozen=True)
class ScoringLayers:
    """The layers of a network that have a row of weights per class.

    Attributes:
        num_classes: channels of the scores.
        main: layers that add up to the scores.
        auxiliary: the layers of each auxiliary head.
    """

    num_classes: int
    main: Summands
    auxiliary: tuple[Summands, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all layers."""
        return tuple(name for summands in (self.main, *self.auxiliary) for name in summands)


def find_scoring_layers(
    model: nn.Module, images: Tensor, scoring_layers: str | Sequence[str] | None = None
) -> ScoringLayers:
    """Find the scoring layers of a network.

    Args:
        model: outputs N,C,h,w class scores in one of the forms of the module's docstring.
        images: a batch that it accepts.
        scoring_layers: names of all of them, also auxiliary ones, if the probe cannot find them.

    Raises:
        NacreError: there are none, or the scores do not belong to a softmax over classes.
    """
    with undisturbed(model):
        output = model(images)
        scores = scores_of(output)
        _check_scores(scores)
        num_classes = scores.shape[1]
        named = scoring_layers
        candidates = _layers_named(model, named) if named else _layers_with(model, num_classes)
        probe = _Probe(model, images, output, scores)
        effects = {name: probe(layer) for name, layer in candidates.items()}
    main, auxiliary = _group(effects, bool(named))
    if not main:
        raise NacreError(
            f"nacre found no layer of {type(model).__name__} that alone decides its {num_classes} "
            "scores; name it: scoring_layers='...'" + _list(candidates)
        )
    return ScoringLayers(num_classes, main, tuple(auxiliary))


def _group(effects: dict[str, _Effect | None], are_named: bool) -> tuple[Summands, list[Summands]]:
    """Return the main layers, and those of each auxiliary head; all named layers count."""
    groups: dict[int, Summands] = {0: {}}
    for i, (name, effect) in enumerate(effects.items()):
        if effect is not None:
            number, gain = effect
            # Each layer without an effect is a head of its own.
            groups.setdefault(-1 - i if number == _NO_OUTPUT else number, {})[name] = gain
        elif are_named:
            groups[0][name] = 1.0
    return groups.pop(0), list(groups.values())


def num_rows(layer: ScoringLayer) -> int:
    """Return the number of outputs of a layer."""
    return layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels


def scoring_layer(model: nn.Module, name: str) -> ScoringLayer:
    """Return the scoring layer with a name."""
    layer = model.get_submodule(name)
    assert isinstance(layer, ScoringLayer), (name, type(layer))
    return layer


# Running a network that is not known


@contextlib.contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Use a network in eval mode without gradients, and restore the mode of every module."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def until_left(hooks: Iterable[RemovableHandle]) -> Iterator[None]:
    """Remove hooks at the end of the context."""
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def example_images(model: nn.Module) -> Tensor:
    """Return a batch of noise of a size that the network accepts.

    Raises:
        NacreError: it accepts none of the usual sizes.
    """
    own = getattr(getattr(model, "config", None), "image_size", None)
    sizes = [_SIZES[0], *([own] if isinstance(own, int) else []), *_SIZES[1:]]
    problem: Exception | None = None
    for size in sizes:
        images = noise((2, 3, size, size), model)
        try:
            with undisturbed(model):
                model(images)
            return images
        except Exception as error:  # external networks raise any error for a wrong size
            problem = error
    reason = " ".join(str(problem).split())[:200]
    raise NacreError(
        f"{type(model).__name__} accepted noise of none of the sizes {', '.join(map(str, sizes))} "
        f"({reason}): pass a batch that it accepts, images=..."
    ) from problem


def find_divisor(model: nn.Module, images: Tensor) -> int | None:
    """Return the number that must divide the sides of images, by trying sizes.

    None if the network accepts only the size of `images`.
    """
    height, width = images.shape[-2], images.shape[-1]
    common = math.gcd(height, width)
    for step in (n for n in range(1, min(height, width) + 1) if common % n == 0):
        # Also a much larger size: patches may silently leave out a few pixels.
        many = max(2, height // (2 * step))
        try:
            with undisturbed(model):
                for count in (1, many):
                    size = (height + count * step, width + (count + 1) * step)
                    scores_of(model(noise((1, 3, *size), model)))
            return step
        except Exception:  # external networks raise any error for a wrong size
            continue
    return None


def noise(shape: Sequence[int], model: nn.Module) -> Tensor:
    """Return the same noise each time, with the device and type of the network's parameters."""
    first = next(model.parameters(), torch.empty(0))
    dtype = first.dtype if first.is_floating_point() else torch.float32
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(first.device, dtype)


# The probe

_Effect = tuple[int, float]
"""The number of the scores that a shift of a layer's output changes, and the factor g.

0 is the main scores, 1 and more are auxiliary ones."""
_NO_OUTPUT = -1
"""Scores that the network uses only in its own loss."""


class _Probe:
    """Shifts the output of a layer and compares the outputs of the network."""

    def __init__(self, model: nn.Module, images: Tensor, output: Any, scores: Tensor) -> None:
        self.model, self.images = model, images
        self.before = [scores, *auxiliary_scores(output)]
        self.tensors = list(tensors_in(output))
        generator = torch.Generator().manual_seed(1)
        scale = max(1.0, float(scores.float().std()))
        # Two shifts, since an inner layer may pass for a scoring layer by chance with one.
        self.shifts = [
            scale * torch.randn(scores.shape[1], generator=generator).to(scores) for _ in range(2)
        ]

    def __call__(self, layer: nn.Module) -> _Effect | None:
        first, second = (self._gains(layer, shift) for shift in self.shifts)
        for number, pair in enumerate(zip(first, second, strict=True)):
            gain = _agreed_gain(*pair)
            if gain is not None:
                return number, gain
        return (_NO_OUTPUT, 1.0) if self._has_no_effect(layer) else None

    def _gains(self, layer: nn.Module, shift: Tensor) -> list[float | None]:
        def shifted(value: Tensor) -> Tensor:
            return value + (shift if isinstance(layer, nn.Linear) else shift[:, None, None])

        output, _ = self._run(layer, shifted)
        after = [scores_of(output), *auxiliary_scores(output)]
        pairs = zip(self.before, after, strict=True)
        return [gain_of(new - old, shift) for old, new in pairs]

    def _has_no_effect(self, layer: nn.Module) -> bool:
        """Return True if the layer runs and changes no output, so that it scores for a loss."""
        output, calls = self._run(layer, lambda value: value + torch.randn_like(value))
        pairs = zip(self.tensors, tensors_in(output), strict=True)
        return calls > 0 and all(torch.equal(old, new) for old, new in pairs)

    def _run(self, layer: nn.Module, change: Callable[[Tensor], Tensor]) -> tuple[Any, int]:
        """Return the network's output if a layer's output is changed, and the layer's calls."""
        calls = 0

        def hook(module: nn.Module, args: Any, value: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return change(value)

        with until_left([layer.register_forward_hook(hook)]), torch.random.fork_rng(devices=[]):
            return self.model(self.images), calls


def gain_of(change: Tensor, shift: Tensor) -> float | None:
    """Return g > 0 if scores N,C,h,w changed by g * shift[c], up to a constant over classes."""
    change, shift = change.float(), shift.float()
    change = change - change.mean(1, keepdim=True)
    shift = (shift - shift.mean())[:, None, None]
    gain = float((change * shift).sum(1).mean() / shift.square().sum())
    error = (change - gain * shift).abs().max()
    return gain if gain > 1e-3 and error < 0.05 * gain * shift.abs().max() else None


def _agreed_gain(first: float | None, second: float | None) -> float | None:
    if first is None or second is None or abs(first - second) > 0.05 * first:
        return None
    # Scores are sums of few layers, so a factor close to a round number is this number.
    return round(first, 2) if abs(first - round(first, 2)) < 1e-4 else first


def _check_scores(scores: Tensor) -> None:
    if scores.shape[1] < 2:
        raise NacreError(
            "the network has one channel of scores, a sigmoid: a class can only be added to scores "
            "of a softmax, with a channel for the background or with two classes or more"
        )
    if not bool(scores.isfinite().all()):
        raise NacreError("the network's scores are not finite numbers")
    sums = scores.float().sum(1)
    if bool((scores >= 0).all()) and bool(((sums - 1).abs() < 1e-2).all()):
        raise NacreError(
            "the network outputs probabilities (they add up to 1): change it to output the scores "
            "before the softmax"
        )


def _layers_with(model: nn.Module, count: int) -> dict[str, ScoringLayer]:
    """Return the layers with a number of rows, by name."""
    layers = {n: module for n, module in model.named_modules() if isinstance(module, ScoringLayer)}
    return {name: layer for name, layer in layers.items() if num_rows(layer) == count}


def _layers_named(model: nn.Module, names: str | Sequence[str]) -> dict[str, ScoringLayer]:
    """Return the layers with these names."""
    modules = dict(model.named_modules())
    layers: dict[str, ScoringLayer] = {}
    for name in [names] if isinstance(names, str) else names:
        layer = modules.get(name)
        if not isinstance(layer, ScoringLayer):
            known = [key for key, module in modules.items() if isinstance(module, ScoringLayer)]
            problem = f"is {type(layer).__name__}" if name in modules else "does not exist"
            raise NacreError(
                f"scoring_layers={name!r} {problem}{did_you_mean(name, known)}: a scoring layer is "
                "a Conv2d, ConvTranspose2d or Linear of the network"
            )
        layers[name] = layer
    return layers


def _list(candidates: Mapping[str, nn.Module]) -> str:
    if not candidates:
        return " (no Conv2d, ConvTranspose2d or Linear has as many outputs)"
    return f" (layers with as many outputs: {', '.join(list(candidates)[-5:])})"


# Class scores in the output of a network of any library

_KEYS = ("out", "logits")
_QUERY_KEYS = ("class_queries_logits", "pred_masks")


def scores_of(output: Any) -> Tensor:
    """Return the class scores in the output of a network.

    Raises:
        NacreError: there are none, or they are not one map per class.
    """
    if any(_has(output, key) for key in _QUERY_KEYS):
        raise NacreError(
            "this network scores queries (a class and a mask each, with 'no object'), not pixels: "
            "a background that may hide classes is not defined for it, so it cannot be widened"
        )
    scores = _find(output)
    if scores is None:
        raise NacreError(
            f"the network's output is {_describe(output)}: nacre finds scores in a tensor, in "
            '.logits, in ["out"], in ["logits"], first in a tuple, or as the only map in a '
            "dictionary"
        )
    if scores.ndim != 4 or not scores.is_floating_point():
        raise NacreError(
            f"the network's scores are {_describe(scores)}: they must have the shape images x "
            "classes x height x width"
        )
    return scores


def auxiliary_scores(output: Any) -> list[Tensor]:
    """Return the scores beside the main ones: N,C,h,w with as many channels."""
    scores = scores_of(output)
    shape = scores.shape[:2]
    return [
        tensor
        for tensor in tensors_in(output)
        if tensor is not scores and tensor.ndim == 4 and tensor.shape[:2] == shape
    ]


def _find(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output
    scores = getattr(output, "logits", None)
    if scores is None and isinstance(output, Mapping):
        scores = next((output[key] for key in _KEYS if key in output), _only_map(output))
    if scores is None and isinstance(output, tuple | list) and output:
        scores = output[0]
    return scores if isinstance(scores, Tensor) else None


def _only_map(output: Mapping[Any, Any]) -> Tensor | None:
    maps = [
        value
        for value in output.values()
        if isinstance(value, Tensor) and value.ndim == 4 and value.shape[1] > 1
    ]
    return maps[0] if len(maps) == 1 else None


def _has(output: Any, key: str) -> bool:
    if isinstance(output, Mapping):
        return key in output
    return getattr(output, key, None) is not None


def tensors_in(output: Any) -> Iterator[Tensor]:
    """Yield every tensor in the output of a network."""
    if isinstance(output, Tensor):
        yield output
    elif isinstance(output, Mapping):
        for value in output.values():
            yield from tensors_in(value)
    elif isinstance(output, tuple | list):
        for value in output:
            yield from tensors_in(value)
    elif dataclasses.is_dataclass(output) and not isinstance(output, type):
        yield from tensors_in(vars(output))


def _describe(output: Any) -> str:
    if isinstance(output, Tensor):
        return f"a tensor of {' x '.join(map(str, output.shape))}, {output.dtype}"
    if isinstance(output, Mapping):
        return f"{type(output).__name__} of {', '.join(map(str, output)) or 'nothing'}"
    return type(output).__name__
