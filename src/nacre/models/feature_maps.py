"""Feature maps inside an external network, recorded by hooks.

Hooks last for one forward pass, so that a copy of a network never writes into the original's
records.

A ledger reads the last map of each stage of the backbone. To find them, the network runs once and
the outputs of all its modules are listed. Among the maps of one size, a stage ends with the last
output of the modules that are nested least: blocks and their inner modules are nested deeper. Only
modules that run before the scores count, and only those of the backbone if it is known. If all maps
have one size, as in a plain vision transformer, those after one third and two thirds of its blocks
are read, too.
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

MIN_MAPS = 3
"""With fewer maps, those inside a stage are read, too."""

MAX_EXTRA_TOKENS = 5
"""Tokens of the whole image (a class token and registers) that may precede those of a map."""


@contextlib.contextmanager
def recorded(
    model: nn.Module, outputs: Iterable[str], inputs: Iterable[str] = ()
) -> Iterator[dict[str, Tensor]]:
    """Record the outputs and inputs of named modules while the network runs in this context.

    Of a module that runs several times, the last run counts. An input's key is the module's name
    with ` input`.
    """
    records: dict[str, Tensor] = {}

    def keep(key: str, value: Any) -> None:
        tensor = next(tensors_in(value), None)
        if tensor is not None:
            records[key] = tensor

    def keep_output(name: str) -> Any:
        return lambda module, args, output: keep(name, output)

    def keep_input(name: str) -> Any:
        return lambda module, args: keep(f"{name} input", args)

    get = model.get_submodule
    hooks = [get(name).register_forward_hook(keep_output(name)) for name in outputs]
    hooks += [get(name).register_forward_pre_hook(keep_input(name)) for name in inputs]
    with until_left(hooks):
        yield records


def check_names(model: nn.Module, names: Sequence[str]) -> None:
    """Refuse names of modules that the network does not have."""
    known = [name for name, _ in model.named_modules()]
    for name in names:
        if name not in known:
            raise NacreError(
                f"{type(model).__name__} has no module {name!r}{did_you_mean(name, known)}"
            )


def as_map(value: Tensor, size: tuple[int, int]) -> Tensor | None:
    """Return features as N,C,h,w; None if they are not a map of the image.

    Args:
        value: N,C,h,w, or the N,L,C of transformers, where L are the pixels of a map with the
            proportions of the image, perhaps after tokens of the whole image.
        size: of the image.
    """
    if value.ndim == 4:
        return value
    if value.ndim != 3:
        return None
    for extra in range(min(MAX_EXTRA_TOKENS + 1, value.shape[1])):
        length = value.shape[1] - extra
        height = round(math.sqrt(length * size[0] / size[1]))
        if height and length % height == 0 and height * size[1] == length // height * size[0]:
            tokens = value[:, extra:].transpose(1, 2)
            return tokens.reshape(*tokens.shape[:2], height, length // height)
    return None


@dataclass(frozen=True)
class MapInfo:
    """The map that a module outputs.

    Attributes:
        name: name of the module.
        channels: channels of the map.
        stride: input pixels per point.
    """

    name: str
    channels: int
    stride: int


def find_maps(model: nn.Module, inside: str, scoring: Sequence[str], images: Tensor) -> list[str]:
    """Return the names of the modules whose maps a ledger reads, in the order in which they run.

    Args:
        model: the network.
        inside: name of the backbone; empty for the whole network.
        scoring: names of the scoring layers.
        images: a batch that the network accepts.

    Raises:
        NacreError: the network has no maps.
    """
    maps = [info for info in list_maps(model, scoring, images) if _is_inside(info.name, inside)]
    ends = []
    for stride in {info.stride for info in maps}:
        same = [info for info in maps if info.stride == stride]
        depth = min(info.name.count(".") for info in same)
        ends.append([info for info in same if info.name.count(".") == depth][-1])
    if len(ends) < MIN_MAPS:
        ends += _after_thirds(maps)
    if not ends:
        raise NacreError(
            f"{type(model).__name__} outputs no maps before its scores that the ledger could "
            "read; name modules that do: model.stages"
        )
    order = [info.name for info in maps]
    return sorted({info.name for info in ends}, key=order.index)


def list_maps(model: nn.Module, scoring: Sequence[str], images: Tensor) -> list[MapInfo]:
    """Return the maps that modules output before the first of the scoring layers runs."""
    maps: dict[str, MapInfo] = {}
    side, ended = images.shape[-1], False

    def keep(name: str, value: Any) -> None:
        tensor = None if ended else next(tensors_in(value), None)
        if tensor is None or not tensor.is_floating_point():
            return
        x = as_map(tensor, (side, side))
        if x is None or x.shape[2] != x.shape[3]:
            return
        if 2 <= x.shape[2] < side and side % x.shape[2] == 0:
            maps.pop(name, None)  # the last run of a module counts
            maps[name] = MapInfo(name, x.shape[1], side // x.shape[2])

    def end(*_: Any) -> None:
        nonlocal ended
        ended = True

    hooks = [model.get_submodule(name).register_forward_pre_hook(end) for name in scoring]
    for name, module in model.named_modules():
        if name:
            hooks.append(
                module.register_forward_hook(lambda _, args, value, name=name: keep(name, value))
            )
    with until_left(hooks), undisturbed(model):
        model(images)
    return list(maps.values())


def _after_thirds(maps: Sequence[MapInfo]) -> list[MapInfo]:
    """Return the maps after one third and two thirds of the longest list of blocks."""
    lists = [(info.name.rpartition(".")[0], info.channels, info.stride) for info in maps]
    longest, count = Counter(lists).most_common(1)[0] if lists else ((), 0)
    blocks = [info for info, place in zip(maps, lists, strict=True) if place == longest]
    return [blocks[count // 3 - 1], blocks[2 * count // 3 - 1]] if count >= MIN_MAPS else []


def _is_inside(name: str, outer: str) -> bool:
    return not outer or name.startswith(f"{outer}.")
