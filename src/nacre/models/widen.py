"""New classes for a network that is already there: its scoring layers get rows, in place.

The network stays the user's own class and its forward pass stays its own. With b the background,
n new classes and w, beta the rows and biases of a scoring layer:

    eq. 8   w[c] = w_old[b]                          for every new c
    eq. 9   beta[c] = beta_old[b] - log(n + 1)       for every new c and for b

With the new classes folded into the background, every probability is what it was. Where several
layers add up to the scores, each gets the rows and one of them the logarithm.

A network without a background (`background=None`: Cityscapes, ADE20K) has no class that hid the new
ones: a pixel that nobody labeled may be any old class. There

    w[c] = mean of w_old,   beta[c] = mean of beta_old - log(n)

and the new classes together begin as one class of average score among K old ones. The mean of
logits is at most their log-sum-exp - log K, so the new classes together are nowhere more probable
than 1 / (K + 1), the predicted class is what it was, and so is every probability given that a pixel
is of an old class.

Both are checked on a batch before the network is handed back; if they do not hold, the network is
left as it was.
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
"""How the channels of new classes start: as shares of the background (eq. 8, 9), or random."""

_WRAPPERS = (DataParallel, DistributedDataParallel, torch.jit.ScriptModule)
# attributes in which networks keep the number of their classes
_COUNTS = ("num_classes", "n_classes", "num_labels", "nclass", "n_class", "classes")


@dataclass(frozen=True)
class Widened:
    """The change made to a network.

    Attributes:
        layers: the scoring layers, with the number of classes before.
        num_new: rows that each of them got.
        background: the background's channel; None for a network without one.
        deviation: largest difference of a log-probability that should have stayed what it was.
    """

    layers: ScoringLayers
    num_new: int
    background: int | None
    deviation: float

    @property
    def num_classes(self) -> int:
        """Channels of the scores now."""
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
    """Give a network channels for new classes, in place, after those that it has.

    An optimizer made before does not know the new parameters: make it afterwards.

    Args:
        model: any module from images to class scores, as `nacre.models.probe` finds them.
        new: how many classes are new, or their names (a transformers config keeps them).
        background: the channel of the background; None if there is none.
        scoring_layers: their names, auxiliary ones too, where they cannot be found.
        images: a batch that the network takes; None tries noise of several sizes.
        init: `background`: as above; `random`: as torch draws them.

    Raises:
        NacreError: the network cannot be widened; it is as it was before.
    """
    names = _names(new)
    check_type(model)
    if images is None:
        images = example_images(model)
    layers = find_scoring_layers(model, images, scoring_layers)
    _check_layers(model, layers, background)
    before = _run(model, images)
    with _undone_on_error(model, layers):
        for summands in (layers.main, *layers.auxiliary):
            widen_sum(model, summands, len(names), background, init)
        _tell(model, layers, names)
        after = _run_widened(model, images, layers)
        # Where one head serves all outputs, its rows begin as the main scores need them
        num_checked = len(before) if layers.auxiliary else 1
        worst = _check(before[:num_checked], after, len(names), background, init)
    return Widened(layers, len(names), background, worst)


def deviation(before: Tensor, after: Tensor, background: int | None) -> float:
    """Return the largest change of a log-probability that widening must leave as it is.

    New classes are folded into the background; without one they are left out.
    """
    before, after = before.float(), after.float()
    num_old = before.shape[1]
    folded = after[:, :num_old].clone()
    if background is not None:
        together = torch.cat([after[:, background, None], after[:, num_old:]], 1)
        folded[:, background] = together.logsumexp(1)
    return float((folded.log_softmax(1) - before.log_softmax(1)).abs().max())


def excess(after: Tensor, num_old: int) -> float:
    """Return by how much the new classes are too probable without a background; 0 if nowhere.

    It is the largest logarithm of their probability together over the mean of the old ones'.
    """
    after = after.float()
    ratio = after[:, num_old:].logsumexp(1) - after[:, :num_old].logsumexp(1) + math.log(num_old)
    return max(0.0, float(ratio.max()))


def _check(
    before: list[Tensor], after: list[Tensor], num_new: int, background: int | None, init: Init
) -> float:
    """Return how far the invariant is missed.

    Raises:
        NacreError: by more than rounding.
    """
    num_old = before[0].shape[1]
    if after[0].shape[1] != num_old + num_new:
        raise NacreError(
            f"the network puts out {after[0].shape[1]} classes instead of {num_old + num_new}; "
            "name the layers that score them: scoring_layers='...'"
        )
    worst = 0.0
    for old, new in zip(before, after, strict=False):
        if new.shape[1] == num_old + num_new:
            # random rows leave the old scores alone and promise nothing else
            worst = max(worst, deviation(old, new, None if init == "random" else background))
            if background is None and init == "background":
                worst = max(worst, excess(new, num_old))
    exact = before[0].dtype in (torch.float32, torch.float64)
    if not worst < (1e-2 if exact else 0.3):
        raise NacreError(
            "with the new classes folded in, the old probabilities changed by a factor of up to "
            f"{math.exp(min(worst, 50)):.3g}; the network is as it was: name the layers that score "
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
    except Exception as error:  # whatever goes wrong inside an external network
        reason = " ".join(str(error).split())[:200]
        raise NacreError(
            f"{type(model).__name__} does not run with more classes ({reason}); its layers "
            f"{', '.join(layers.names)} were widened and set back: name the ones that score the "
            "classes, scoring_layers='...'"
        ) from error


def _tell(model: nn.Module, layers: ScoringLayers, new: Sequence[str]) -> None:
    """Update what the network says of itself: the number of classes, and names in its config."""
    num_old = layers.num_classes
    for module, key in _counts(model, layers):
        setattr(module, key, num_old + len(new))
    config: Any = getattr(model, "config", None)
    names = getattr(config, "id2label", None)
    if isinstance(names, dict) and len(names) == num_old:
        named = {**names, **{num_old + i: name for i, name in enumerate(new)}}
        config.id2label = {
            i: name or f"LABEL_{i}"  # transformers' own words for a class without a name
            for i, name in named.items()
        }
        config.label2id = {name: i for i, name in config.id2label.items()}


def _counts(model: nn.Module, layers: ScoringLayers) -> list[tuple[nn.Module, str]]:
    """Return the attributes around the scoring layers that hold the number of classes."""
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
def _undone_on_error(model: nn.Module, layers: ScoringLayers) -> Iterator[None]:
    modules = [scoring_layer(model, name) for name in layers.names]
    kept = [(one.weight, one.bias) for one in modules]
    counts = _counts(model, layers)
    config: Any = getattr(model, "config", None)
    names = {key: getattr(config, key) for key in ("id2label", "label2id") if hasattr(config, key)}
    try:
        yield
    except BaseException:
        for layer, (weight, bias) in zip(modules, kept, strict=True):
            layer.weight, layer.bias = weight, bias
            count_rows(layer)
        for module, name in counts:
            setattr(module, name, layers.num_classes)
        for key, value in names.items():
            setattr(config, key, value)
        raise


def _names(new: int | Sequence[str]) -> list[str]:
    """Return the new classes' names, empty ones if only their number is known."""
    names = [""] * new if isinstance(new, int) else list(new)
    if isinstance(new, str) or not names:
        raise NacreError(f"new={new!r}: give the number of new classes, 1 or more, or their names")
    return names


def check_type(model: nn.Module) -> None:
    """Refuse what is wrapped around a network, whose layers then cannot be changed.

    Raises:
        NacreError: it is compiled, scripted or parallel.
    """
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
    """Refuse a layer to whose parameters rows cannot be added; `owners` has the names of each."""
    if getattr(layer, "groups", 1) != 1:
        raise NacreError(f"{name} is a grouped convolution: its rows do not read the same input")
    for key in ("weight", "bias"):
        value = getattr(layer, key)
        if value is not None and key not in layer._parameters:
            raise NacreError(
                f"{name}.{key} is computed (a parametrisation, an adapter) and has no rows to "
                "add to: merge it into the layer first"
            )
        others = [one for one in owners.get(id(value), ()) if one != f"{name}.{key}"]
        if others:
            raise NacreError(f"{name}.{key} is shared with {others[0]}: it cannot be widened")


# Rows of scoring layers: one per class, whatever the layer's type


def widen_sum(
    model: nn.Module, summands: Summands, num_new: int, background: int | None, init: Init
) -> None:
    """Add rows to the layers that add up to one tensor of scores."""
    layers = {name: scoring_layer(model, name) for name in summands}
    # eq. 9 needs a bias: where no layer has one, the first gets it
    taker = next((name for name, one in layers.items() if one.bias is not None), next(iter(layers)))
    if layers[taker].bias is None:
        zeros = layers[taker].weight.new_zeros(num_rows(layers[taker]))
        layers[taker].bias = nn.Parameter(zeros)
    log = math.log(num_new if background is None else num_new + 1)
    for name, layer in layers.items():
        weight, bias = rows_of(layer)
        if init == "random":
            weight, bias = random_rows(weight, bias, num_new)
        else:
            share = log / summands[name] if name == taker else 0.0
            weight, bias = start_rows(weight, bias, num_new, background=background, share=share)
        set_rows(layer, weight, bias)


def start_rows(
    weight: Tensor, bias: Tensor | None, num_new: int, *, background: int | None, share: float
) -> tuple[Tensor, Tensor | None]:
    """Return weights and biases with new rows, eq. 8 and 9 or their counterpart without background.

    `share` is what is taken from the biases of the new rows and of the background.
    """
    like = weight.mean(0) if background is None else weight[background]
    weight = torch.cat([weight, like.expand(num_new, *like.shape)])
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
    """Return weights and biases with new rows as torch draws those of a new layer."""
    bound = 1 / math.sqrt(weight[0].numel())

    def drawn(like: Tensor) -> Tensor:
        return nn.init.uniform_(like.new_empty(num_new, *like.shape[1:]), -bound, bound)

    wider = torch.cat([weight, drawn(weight)])
    return wider, None if bias is None else torch.cat([bias, drawn(bias)])


def rows_of(layer: ScoringLayer) -> tuple[Tensor, Tensor | None]:
    """Return a layer's weights with the classes first, and its biases."""
    weight = layer.weight.detach()
    if isinstance(layer, nn.ConvTranspose2d):
        weight = weight.transpose(0, 1)
    return weight, None if layer.bias is None else layer.bias.detach()


def set_rows(layer: ScoringLayer, weight: Tensor, bias: Tensor | None) -> None:
    """Replace a layer's weights, given with the classes first, and its biases."""
    if isinstance(layer, nn.ConvTranspose2d):
        weight = weight.transpose(0, 1)
    layer.weight = nn.Parameter(weight.contiguous(), layer.weight.requires_grad)
    if bias is not None:
        wants = layer.weight if layer.bias is None else layer.bias
        layer.bias = nn.Parameter(bias, wants.requires_grad)
    count_rows(layer)


def count_rows(layer: ScoringLayer) -> None:
    """Set a layer's own count of its rows."""
    count = len(rows_of(layer)[0])
    if isinstance(layer, nn.Linear):
        layer.out_features = count
    else:
        layer.out_channels = count


def fit_layers(model: nn.Module, names: Sequence[str], state: dict[str, Tensor]) -> None:
    """Give scoring layers the shapes that they have in a state, so that it can be loaded."""
    for name in names:
        layer = scoring_layer(model, name)
        for key in ("weight", "bias"):
            if f"{name}.{key}" in state:
                shape = state[f"{name}.{key}"].shape
                setattr(layer, key, nn.Parameter(layer.weight.new_empty(shape)))
        count_rows(layer)


# The network as it was before it learns on


class Teacher:
    """A frozen copy of a network, for a training loop of one's own.

    It is no `nn.Module`: as an attribute of one, its parameters are neither trained nor saved.

        teacher = Teacher(model)
        widen(model, 2)
        ...
        loss = unbiased_distillation(model(images), teacher(images))

    Args:
        model: copied as it is now; later changes of it do not change the teacher.

    Raises:
        NacreError: the network cannot be copied.
    """

    def __init__(self, model: nn.Module) -> None:
        try:
            self.model = copy.deepcopy(model).eval().requires_grad_(False)
        except (RuntimeError, TypeError) as error:
            raise NacreError(
                f"{type(model).__name__} cannot be copied ({error}): make the teacher before the "
                "network is wrapped or compiled and outside of a forward pass"
            ) from error

    @torch.no_grad()
    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the scores, N,C,h,w, for what the network would be called with.

        The copy follows the first tensor that it is given to its device.
        """
        tensors = [one for one in (*args, *kwargs.values()) if isinstance(one, Tensor)]
        own = next(self.model.parameters(), None)
        if tensors and own is not None and own.device != tensors[0].device:
            self.model.to(tensors[0].device)
        return scores_of(self.model(*args, **kwargs))
