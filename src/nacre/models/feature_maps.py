"""Maps inside a network of others, taken by hooks: those of named modules, or of stages.

Hooks last for one forward pass, so that a copy of a network never reports to the original.

A ledger reads the maps with which the stages of the backbone end. To find them the network runs
once and its modules are watched. Of all maps of one size, a stage ends with the last that a module
nearest to the top puts out: blocks and what is inside them lie deeper. Only what runs before the
scores counts, and only the backbone where it can be told apart. Where all maps are of one size, as
in a plain vision transformer, those after one and two thirds of its blocks are read too.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from nacre.errors import NacreError, did_you_mean
from nacre.models.probe import tensors_in, undisturbed, until_left

FEWEST = 3
"""Maps below which those inside a stage are read too."""

MOST_EXTRA = 5
"""Tokens of the whole image, a class token and registers, that may come before those of a map."""


@contextlib.contextmanager
def captured(
    model: nn.Module, outputs: Iterable[str], inputs: Iterable[str] = ()
) -> Iterator[dict[str, Tensor]]:
    """Collect what named modules put out, and take in, while the network runs in this context.

    Of a module that runs several times it is the last; what it takes in is under its name with
    ` input`.
    """
    found: dict[str, Tensor] = {}

    def keep(key: str, value: Any) -> None:
        tensor = next(tensors_in(value), None)
        if tensor is not None:
            found[key] = tensor

    def keep_output(name: str) -> Any:
        return lambda module, args, output: keep(name, output)

    def keep_input(name: str) -> Any:
        return lambda module, args: keep(f"{name} input", args)

    get = model.get_submodule
    handles = [get(name).register_forward_hook(keep_output(name)) for name in outputs]
    handles += [get(name).register_forward_pre_hook(keep_input(name)) for name in inputs]
    with until_left(handles):
        yield found


def check_names(model: nn.Module, names: Sequence[str]) -> None:
    """Refuse names of modules that the network does not have.

    Raises:
        NacreError: with the nearest name that it has.
    """
    known = [name for name, _ in model.named_modules()]
    for name in names:
        if name not in known:
            raise NacreError(
                f"{type(model).__name__} has no module {name!r}{did_you_mean(name, known)}"
            )


def as_map(value: Tensor, size: tuple[int, int]) -> Tensor | None:
    """Return features as N,C,h,w; None if they are no map of the image.

    Args:
        value: N,C,h,w, or N,L,C as transformers have them, L being the pixels of a map of the
            image's proportions, perhaps after tokens for the whole image.
        size: of the image.
    """
    if value.ndim == 4:
        return value
    if value.ndim != 3:
        return None
    for extra in range(min(MOST_EXTRA + 1, value.shape[1])):
        length = value.shape[1] - extra
        height = round(math.sqrt(length * size[0] / size[1]))
        if height and length % height == 0 and height * size[1] == length // height * size[0]:
            tokens = value[:, extra:].transpose(1, 2)
            return tokens.reshape(*tokens.shape[:2], height, length // height)
    return None


@dataclass(frozen=True)
class FoundMap:
    """A map that a module puts out.

    Attributes:
        name: of the module.
        channels: how many it has.
        stride: input pixels per point.
    """

    name: str
    channels: int
    stride: int


def find_maps(model: nn.Module, inside: str, scoring: Sequence[str], images: Tensor) -> list[str]:
    """Return the names of the modules whose maps a ledger reads, in the order in which they run.

    They are looked for `inside` a module, anywhere if it is empty, before the `scoring` layers.

    Raises:
        NacreError: it has no maps.
    """
    seen = [one for one in watch(model, scoring, images) if _lies_in(one.name, inside)]
    ends = {}
    for stride in {one.stride for one in seen}:
        same = [one for one in seen if one.stride == stride]
        top = min(one.name.count(".") for one in same)
        ends[stride] = [one for one in same if one.name.count(".") == top][-1]
    found = [*ends.values(), *(_between(seen) if len(ends) < FEWEST else ())]
    if not found:
        raise NacreError(
            f"{type(model).__name__} puts out no maps before its scores that the ledger could "
            "read; name modules that do: model.stages"
        )
    order = [one.name for one in seen]
    return sorted({one.name for one in found}, key=order.index)


def watch(model: nn.Module, scoring: Sequence[str], images: Tensor) -> list[FoundMap]:
    """Return the maps that modules put out until the first of the scoring layers runs."""
    found: dict[str, FoundMap] = {}
    side, ended = images.shape[-1], False

    def keep(name: str, value: Any) -> None:
        tensor = None if ended else next(tensors_in(value), None)
        if tensor is None or not tensor.is_floating_point():
            return
        one = as_map(tensor, (side, side))
        if one is None or one.shape[2] != one.shape[3]:
            return
        if 2 <= one.shape[2] < side and side % one.shape[2] == 0:
            found.pop(name, None)  # the last run of a module counts
            found[name] = FoundMap(name, one.shape[1], side // one.shape[2])

    def end(*_: Any) -> None:
        nonlocal ended
        ended = True

    handles = [model.get_submodule(one).register_forward_pre_hook(end) for one in scoring]
    for name, module in model.named_modules():
        if name:
            handles.append(
                module.register_forward_hook(lambda _, args, value, name=name: keep(name, value))
            )
    with until_left(handles), undisturbed(model):
        model(images)
    return list(found.values())


def _between(seen: Sequence[FoundMap]) -> list[FoundMap]:
    """Return the maps after one and two thirds of the longest list of blocks."""
    lists = [(one.name.rpartition(".")[0], one.channels, one.stride) for one in seen]
    (longest, count) = Counter(lists).most_common(1)[0] if lists else ((), 0)
    blocks = [one for one, where in zip(seen, lists, strict=True) if where == longest]
    return [blocks[count // 3 - 1], blocks[2 * count // 3 - 1]] if count >= FEWEST else []


def _lies_in(name: str, inside: str) -> bool:
    return not inside or name.startswith(f"{inside}.")
