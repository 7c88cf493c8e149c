"""Feature maps from inside a network of any kind, taken by hooks while it runs, or put there.

Hooks are set for one forward pass and removed after it: a copy of a network then never reports to
the original. What a backbone gave the rest of its network (`Given`) can be given again, with other
maps, and without the backbone's running (`standing_in`).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections import UserDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nacre.errors import NacreError, did_you_mean
from nacre.models.foreign.scores import tensors_in


@contextlib.contextmanager
def captured(
    model: nn.Module, outputs: Sequence[str], inputs: Sequence[str] = ()
) -> Iterator[dict[str, Tensor]]:
    """Collect what modules put out and take in while the network runs in this context.

    Args:
        model: the network.
        outputs: names of the modules whose output is wanted; the last, if they run several times.
        inputs: names of the modules whose first input is wanted, under their name with ` input`.
    """
    found: dict[str, Tensor] = {}
    handles = []

    def keep(key: str, value: Any) -> None:
        tensor = next(tensors_in(value), None)
        if tensor is not None:
            found[key] = tensor

    for name in outputs:
        handles.append(
            model.get_submodule(name).register_forward_hook(
                lambda module, args, output, name=name: keep(name, output)
            )
        )
    for name in inputs:
        handles.append(
            model.get_submodule(name).register_forward_pre_hook(
                lambda module, args, name=name: keep(f"{name} input", args)
            )
        )
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


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
            image's proportions, perhaps after a token of its own for the whole image.
        size: of the image.
    """
    if value.ndim == 4:
        return value
    if value.ndim != 3:
        return None
    for extra in (0, 1):
        length = value.shape[1] - extra
        height = round(math.sqrt(length * size[0] / size[1]))
        if height and length % height == 0 and height * size[1] == length // height * size[0]:
            tokens = value[:, extra:].transpose(1, 2)
            return tokens.reshape(*tokens.shape[:2], height, length // height)
    return None


@dataclass(frozen=True)
class Given:
    """What a backbone gave the rest of its network.

    Attributes:
        value: a tensor or anything with tensors in it.
        size: of the pictures that the network was given.
    """

    value: Any
    size: tuple[int, int]

    def detached(self) -> Given:
        """Return it without gradient."""
        new = {id(one): one.detach() for one in tensors_in(self.value)}
        return Given(_exchange(self.value, new), self.size)

    def maps(self) -> list[Tensor]:
        """Return every map in it once, N,C,h,w."""
        return [one for one in map(self._map, self._tensors()) if one is not None]

    def exchanged(self, maps: Sequence[Tensor]) -> Given:
        """Return it with others for all of its maps."""
        old = [one for one in self._tensors() if self._map(one) is not None]
        new = {id(was): _like(was, one) for was, one in zip(old, maps, strict=True)}
        return Given(_exchange(self.value, new), self.size)

    def _tensors(self) -> list[Tensor]:
        """Return every tensor once: the last state is often among all states, too."""
        return list({id(one): one for one in tensors_in(self.value)}.values())

    def _map(self, value: Tensor) -> Tensor | None:
        found = as_map(value, self.size) if value.is_floating_point() else None
        if found is None:
            return None
        # A map has the proportions of the picture, but for what rounding does to its sides
        (height, width), (full_height, full_width) = found.shape[-2:], self.size
        is_alike = abs(height * full_width - width * full_height) <= max(self.size)
        return found if is_alike else None


def _like(was: Tensor, new: Tensor) -> Tensor:
    """Return a map in the form of the tensor that it is to replace."""
    if was.ndim == 4:
        return new
    tokens = new.flatten(2).transpose(1, 2)
    return torch.cat([was[:, : was.shape[1] - tokens.shape[1]], tokens], 1)


def _exchange(value: Any, new: Mapping[int, Tensor]) -> Any:
    """Return a copy of anything with tensors in it that has others, by the identity of the old."""
    if isinstance(value, Tensor):
        return new.get(id(value), value)
    if isinstance(value, dict | UserDict):
        changed = copy.copy(value)
        for key, one in value.items():
            changed[key] = _exchange(one, new)
        return changed
    if isinstance(value, Mapping):
        raise TypeError(f"a {type(value).__name__} cannot be copied with other values")
    if isinstance(value, tuple | list):
        items = [_exchange(one, new) for one in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        other = copy.copy(value)
        for key, one in vars(value).items():
            object.__setattr__(other, key, _exchange(one, new))
        return other
    return value


class Call(NamedTuple):
    """The tensors that a module took, and all that it put out."""

    taken: list[Tensor]
    output: Any


@contextlib.contextmanager
def calls_of(module: nn.Module) -> Iterator[list[Call]]:
    """Collect the calls of a module while the network runs in this context.

    Raises:
        NacreError: something that it put out was changed in place by another module.
    """
    found: list[Call] = []
    versions: list[tuple[Tensor, int]] = []

    def keep(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        found.append(Call(list(tensors_in((args, kwargs))), output))
        known = (one for one in tensors_in(output) if not one.is_inference())
        versions.extend((one, one._version) for one in known)

    handle = module.register_forward_hook(keep, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()
    if any(one._version != version for one, version in versions):
        raise NacreError(
            f"a module changes in place what {type(module).__name__} puts out, such as a dropout "
            "with inplace=True: set inplace=False"
        )


@contextlib.contextmanager
def standing_in(module: nn.Module, value: Any) -> Iterator[None]:
    """Let a module put out a value in this context, whatever it is given."""
    own = module.__dict__.get("forward")  # of a module that was patched
    module.forward = lambda *args, **kwargs: value
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own
