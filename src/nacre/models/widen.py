"""New classes for an existing network: its scoring layers get rows, in place.

The network keeps its class and its forward pass. With background b, n new classes, and w, beta the
rows and biases of a scoring layer:

    eq. 8   w[c] = w_old[b]                          for every new c
    eq. 9   beta[c] = beta_old[b] - log(n + 1)       for every new c and for b

With the new classes folded into the background, every probability stays the same. If several layers
add up to the scores, each gets the rows, and one of them subtracts the logarithm.

A network without a background (`background=None`: Cityscapes, ADE20K) has no class that hid the new
ones: an unlabeled pixel may be of any old class. There

    w[c] = mean of w_old,   beta[c] = mean of beta_old - log(n)

so the new classes together start as one class with an average score among K old ones. The mean of
logits is at most their log-sum-exp - log K. So the probability of all new classes together is at
most 1 / (K + 1) everywhere, the predicted class stays the same, and so does every probability given
that a pixel is of an old class.

Both are checked on a batch before the function returns. If the check fails, the network is
restored.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.parallel import DataParallel, DistributedDataParallel

from nacre.errors import NacreError
from nacre.models.probe import (
    ScoringLayer,
    ScoringLayers,
    Summands,
    auxiliary_scores,
    example_images,
    find_scoring_layers,
    num_rows,
    scores_of,
    scoring_layer,
    undisturbed,
)

Init = Literal["background", "random"]
"""The first weights of new channels: shares of the background (eq. 8, 9), or random."""

_WRAPPERS = (DataParallel, DistributedDataParallel, torch.jit.ScriptModule)
# attributes that store the number of classes in networks
_COUNTS = ("num_classes", "n_classes", "num_labels", "nclass", "n_class", "classes")


@dataclass(frozen=True)
class Widened:
    """The change made to a network.

    Attributes:
        layers: the scoring layers, with the number of classes before.
        num_new: number of rows that each of them got.
        background: the background's channel; None for a network without one.
        deviation: largest change of a log-probability that should have stayed the same.
    """

    layers: ScoringLayers
    num_new: int
    background: int | None
    deviation: float

    @property
    def num_classes(self) -> int:
        """The number of channels with the new classes."""
        return self.layers.num_classes + self.num_new


def widen(
    model: nn.Module,
    new: int | Sequence[str],
    *,
    background: int | None = 0,
    scoring_layers: str | Sequence[str] | None = None,
    images: Tensor | None = None,
    init: Init = "background",
) -> Widened:
    """Append channels for new classes to a network, in place.

    Make the optimizer afterwards: one that exists already does not know the new parameters.

    Args:
        model: any module from images to class scores (`nacre.models.probe`).
        new: the number of new classes, or their names (a transformers config stores them).
        background: the channel of the background; None if there is none.
        scoring_layers: names of all scoring layers, also auxiliary ones, if nacre cannot find them.
        images: a batch that the network accepts; None tries noise of several sizes.
        init: `background` as in the module's docstring, or `random` as in a new layer of torch.

    Raises:
        NacreError: the network cannot be widened; it did not change.
    """
    names = _names(new)
    check_type(model)
    if images is None:
        images = example_images(model)
    layers = find_scoring_layers(model, images, scoring_layers)
    _check_layers(model, layers, background)
    before = _run(model, images)
    with _restored_on_error(model, layers):
        for summands in (layers.main, *layers.auxiliary):
            widen_sum(model, summands, len(names), background, init)
        _update_counts(model, layers, names)
        after = _run_widened(model, images, layers)
        # If one head computes all outputs, its rows start as the main scores need them.
        num_checked = len(before) if layers.auxiliary else 1
        worst = _check(before[:num_checked], after, len(names), background, init)
    return Widened(layers, len(names), background, worst)


def deviation(before: Tensor, after: Tensor, background: int | None) -> float:
    """Return the largest change of a log-probability that widening must not change.

    New classes are folded into the background, or left out if there is none.
    """
    before, after = before.float(), after.float()
    num_old = before.shape[1]
    folded = after[:, :num_old].clone()
    if background is not None:
        merged = torch.cat([after[:, background, None], after[:, num_old:]], 1)
        folded[:, background] = merged.logsumexp(1)
    return float((folded.log_softmax(1) - before.log_softmax(1)).abs().max())


def excess(after: Tensor, num_old: int) -> float:
    """Return how much too probable the new classes are without a background, at least 0.

    This is the largest log of the ratio between the probability of all new classes and the mean
    probability of the old ones.
    """
    after = after.float()
    ratio = after[:, num_old:].logsumexp(1) - after[:, :num_old].logsumexp(1) + math.log(num_old)
    return max(0.0, float(ratio.max()))


def _check(
    before: list[Tensor], after: list[Tensor], num_new: int, background: int | None, init: Init
) -> float:
    """Return the largest violation of the invariant.

    Raises:
        NacreError: it is larger than rounding.
    """
    num_old = before[0].shape[1]
    if after[0].shape[1] != num_old + num_new:
        raise NacreError(
            f"the network outputs {after[0].shape[1]} classes instead of {num_old + num_new}; "
            "name the layers that score them: scoring_layers='...'"
        )
    worst = 0.0
    for old, new in zip(before, after, strict=False):
        if new.shape[1] == num_old + num_new:
            # Random rows only promise that the old scores stay.
            worst = max(worst, deviation(old, new, None if init == "random" else background))
            if background is None and init == "background":
                worst = max(worst, excess(new, num_old))
    exact = before[0].dtype in (torch.float32, torch.float64)
    if not worst < (1e-2 if exact else 0.3):
        raise NacreError(
            "with the new classes folded in, the old probabilities changed by a factor of up to "
            f"{math.exp(min(worst, 50)):.3g}; the network was restored: name the layers that score "
            "the classes, scoring_layers='...'"
        )
    return worst


def _run(model: nn.Module, images: Tensor) -> list[Tensor]:
    with undisturbed(model):
        output = model(images)
    return [scores_of(output), *auxiliary_scores(output)]


def _run_widened(model: nn.Module, images: Tensor, layers: ScoringLayers) -> list[Tensor]:
    try:
        return _run(model, images)
    except Exception as error:  # external networks raise any error
        reason = " ".join(str(error).split())[:200]
        raise NacreError(
            f"{type(model).__name__} does not run with more classes ({reason}); its layers "
            f"{', '.join(layers.names)} were widened and restored: name the layers that score the "
            "classes, scoring_layers='...'"
        ) from error


def _update_counts(model: nn.Module, layers: ScoringLayers, new: Sequence[str]) -> None:
    """Update the number of classes in a network's attributes, and the names in its config."""
    num_old = layers.num_classes
    for module, key in _counts(model, layers):
        setattr(module, key, num_old + len(new))
    config: Any = getattr(model, "config", None)
    names = getattr(config, "id2label", None)
    if isinstance(names, dict) and len(names) == num_old:
        named = {**names, **{num_old + i: name for i, name in enumerate(new)}}
        config.id2label = {
            i: name or f"LABEL_{i}"  # transformers' default name
            for i, name in named.items()
        }
        config.label2id = {name: i for i, name in config.id2label.items()}


def _counts(model: nn.Module, layers: ScoringLayers) -> list[tuple[nn.Module, str]]:
    """Return the attributes around the scoring layers that store the number of classes."""
    parents = {""} | {
        name[:i] for name in layers.names for i, letter in enumerate(name) if letter == "."
    }
    return [
        (module, key)
        for module in map(model.get_submodule, sorted(parents))
        for key in _COUNTS
        if type(vars(module).get(key)) is int and vars(module)[key] == layers.num_classes
    ]


@contextlib.contextmanager
def _restored_on_error(model: nn.Module, layers: ScoringLayers) -> Iterator[None]:
    """Restore scoring layers, counts and names if the context raises."""
    modules = [scoring_layer(model, name) for name in layers.names]
    before = [(layer.weight, layer.bias) for layer in modules]
    counts = _counts(model, layers)
    config: Any = getattr(model, "config", None)
    names = {key: getattr(config, key) for key in ("id2label", "label2id") if hasattr(config, key)}
    try:
        yield
    except BaseException:
        for layer, (weight, bias) in zip(modules, before, strict=True):
            layer.weight, layer.bias = weight, bias
            count_rows(layer)
        for module, name in counts:
            setattr(module, name, layers.num_classes)
        for key, value in names.items():
            setattr(config, key, value)
        raise


def _names(new: int | Sequence[str]) -> list[str]:
    """Return the names of the new classes, empty if only their number is given."""
    names = [""] * new if isinstance(new, int) else list(new)
    if isinstance(new, str) or not names:
        raise NacreError(f"new={new!r}: give the number of new classes, 1 or more, or their names")
    return names


def check_type(model: nn.Module) -> None:
    """Refuse a compiled, scripted or parallel network, whose layers cannot be changed."""
    if isinstance(model, _WRAPPERS) or hasattr(model, "_orig_mod"):
        raise NacreError(
            f"{type(model).__name__} wraps a network and cannot be widened: widen the network "
            "itself, before it is wrapped, compiled or scripted"
        )


def _check_layers(model: nn.Module, layers: ScoringLayers, background: int | None) -> None:
    if background is not None and not 0 <= background < layers.num_classes:
        raise NacreError(
            f"background={background}: the network has the channels 0 to "
            f"{layers.num_classes - 1}; None means that none of them is the background"
        )
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    for name in layers.names:
        _check_layer(name, scoring_layer(model, name), owners)


def _check_layer(name: str, layer: ScoringLayer, owners: dict[int, list[str]]) -> None:
    """Refuse a layer that cannot get rows; `owners` has the names of each parameter by its id."""
    if getattr(layer, "groups", 1) != 1:
        raise NacreError(f"{name} is a grouped convolution: its rows read different inputs")
    for key in ("weight", "bias"):
        value = getattr(layer, key)
        if value is not None and key not in layer._parameters:
            raise NacreError(
                f"{name}.{key} is computed (a parametrization, an adapter), so rows cannot be "
                "added: merge it into the layer first"
            )
        others = [owner for owner in owners.get(id(value), ()) if owner != f"{name}.{key}"]
        if others:
            raise NacreError(f"{name}.{key} is shared with {others[0]}: it cannot be widened")


# Rows of scoring layers: one per class, for all types of layers


def widen_sum(
    model: nn.Module, summands: Summands, num_new: int, background: int | None, init: Init
) -> None:
    """Add rows to the layers that add up to one tensor of scores."""
    layers = {name: scoring_layer(model, name) for name in summands}
    # Eq. 9 needs a bias: if no layer has one, the first gets it.
    biased = next((name for name in layers if layers[name].bias is not None), next(iter(layers)))
    if layers[biased].bias is None:
        zeros = layers[biased].weight.new_zeros(num_rows(layers[biased]))
        layers[biased].bias = nn.Parameter(zeros)
    log = math.log(num_new if background is None else num_new + 1)
    for name, layer in layers.items():
        weight, bias = rows_of(layer)
        if init == "random":
            weight, bias = random_rows(weight, bias, num_new)
        else:
            share = log / summands[name] if name == biased else 0.0
            weight, bias = start_rows(weight, bias, num_new, background=background, share=share)
        set_rows(layer, weight, bias)


def start_rows(
    weight: Tensor, bias: Tensor | None, num_new: int, *, background: int | None, share: float
) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases with new rows, by eq. 8 and 9 or as without a background.

    `share` is subtracted from the biases of the new rows and of the background.
    """
    row = weight.mean(0) if background is None else weight[background]
    weight = torch.cat([weight, row.expand(num_new, *row.shape)])
    if bias is None:
        return weight, None
    bias = bias.clone()
    if background is None:
        start = bias.mean() - share
    else:
        bias[background] -= share
        start = bias[background]
    return weight, torch.cat([bias, start.expand(num_new)])


def random_rows(weight: Tensor, bias: Tensor | None, num_new: int) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases with random new rows, as in a new layer of torch."""
    bound = 1 / math.sqrt(weight[0].numel())

    def drawn(like: Tensor) -> Tensor:
        return nn.init.uniform_(like.new_empty(num_new, *like.shape[1:]), -bound, bound)

    wider = torch.cat([weight, drawn(weight)])
    return wider, None if bias is None else torch.cat([bias, drawn(bias)])


def rows_of(layer: ScoringLayer) -> tuple[Tensor, Tensor | None]:
    """Return a layer's weights, with the classes first, and its biases."""
    weight = layer.weight.detach()
    if isinstance(layer, nn.ConvTranspose2d):
        weight = weight.transpose(0, 1)
    return weight, None if layer.bias is None else layer.bias.detach()


def set_rows(layer: ScoringLayer, weight: Tensor, bias: Tensor | None) -> None:
    """Set a layer's weights, with the classes first, and its biases."""
    if isinstance(layer, nn.ConvTranspose2d):
        weight = weight.transpose(0, 1)
    layer.weight = nn.Parameter(weight.contiguous(), layer.weight.requires_grad)
    if bias is not None:
        like = layer.weight if layer.bias is None else layer.bias
        layer.bias = nn.Parameter(bias, like.requires_grad)
    count_rows(layer)


def count_rows(layer: ScoringLayer) -> None:
    """Update the attribute in which a layer stores the number of its rows."""
    count = len(rows_of(layer)[0])
    if isinstance(layer, nn.Linear):
        layer.out_features = count
    else:
        layer.out_channels = count


def fit_layers(model: nn.Module, names: Sequence[str], state: dict[str, Tensor]) -> None:
    """Give scoring layers the shapes of a state, so that it can be loaded."""
    for name in names:
        layer = scoring_layer(model, name)
        for key in ("weight", "bias"):
            if f"{name}.{key}" in state:
                shape = state[f"{name}.{key}"].shape
                setattr(layer, key, nn.Parameter(layer.weight.new_empty(shape)))
        count_rows(layer)


# The network before it learns


class Teacher:
    """A frozen copy of a network, for a training loop of your own.

    It is not an `nn.Module`: as an attribute of one, its parameters are neither trained nor saved.

        teacher = Teacher(model)
        widen(model, 2)
        ...
        loss = unbiased_distillation(model(images), teacher(images))

    Args:
        model: the network; later changes do not change the teacher.

    Raises:
        NacreError: the network cannot be copied.
    """

    def __init__(self, model: nn.Module) -> None:
        try:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)
        except (RuntimeError, TypeError) as error:
            raise NacreError(
                f"{type(model).__name__} cannot be copied ({error}): make the teacher outside of a "
                "forward pass, before the network is wrapped or compiled"
            ) from error

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the scores N,C,h,w for the arguments of the network.

        The copy moves to the device of the first tensor among them.
        """
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
        parameter = next(self.model.parameters(), None)
        if tensors and parameter is not None and parameter.device != tensors[0].device:
            self.model.to(tensors[0].device)
        return scores_of(self.model(*args, **kwargs))
