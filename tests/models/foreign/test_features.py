"""What a backbone gave its network: found, exchanged, given again."""

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from models.foreign.small_networks import CLASSES
from nacre.errors import NacreError
from nacre.models.foreign.adapter import Adapter
from nacre.models.foreign.features import Given, standing_in

SIZE = (64, 32)


class Pair(NamedTuple):
    first: Any
    second: Any


@dataclass(frozen=True)
class States:
    last: Tensor
    every: list[Tensor]
    length: int = 3


@pytest.mark.parametrize(
    "pack",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, {"x": b}],
        lambda a, b: Pair(a, b),
        lambda a, b: OrderedDict(out=a, rest=(b, None)),
        lambda a, b: States(b, [a, b]),
    ],
    ids=["tuple", "list", "named tuple", "dictionary", "dataclass"],
)
def test_maps_are_found_and_exchanged_in_whatever_holds_them(pack: Any) -> None:
    a = torch.randn(2, 3, 8, 4, requires_grad=True)
    b = torch.randn(2, 1 + 4 * 2, 5)  # tokens, and one for the whole picture
    value = pack(a, b)
    given = Given(value, SIZE).detached()
    assert type(given.value) is type(value)
    maps = given.maps()
    assert sorted(tuple(one.shape) for one in maps) == [(2, 3, 8, 4), (2, 5, 4, 2)]
    assert not any(one.requires_grad for one in maps)
    changed = given.exchanged([one + 1 for one in maps])
    assert all(torch.equal(new, old + 1) for new, old in zip(changed.maps(), maps, strict=True))
    assert all(torch.equal(new, old) for new, old in zip(given.maps(), maps, strict=True))
    if isinstance(changed.value, States):
        assert changed.value.every[1] is changed.value.last, "one tensor in two places stays one"
        assert torch.equal(changed.value.last[:, 0], b[:, 0]), "the token of the whole stays"


def test_vectors_numbers_and_other_proportions_are_no_maps() -> None:
    labels, channels_last = torch.ones(2, 8, 8, 4, dtype=torch.long), torch.randn(2, 8, 4, 16)
    assert Given((labels, channels_last, torch.randn(2, 7), 5), SIZE).maps() == []
    rounded = torch.randn(2, 3, 7, 3)
    assert Given(rounded, (100, 50)).maps()[0] is rounded


def test_a_mapping_that_cannot_be_copied_is_left_alone() -> None:
    class Wrapped(Mapping[str, Tensor]):
        def __init__(self, inner: dict[str, Tensor]) -> None:
            self.inner = inner

        def __getitem__(self, key: str) -> Tensor:
            return self.inner[key]

        def __iter__(self) -> Iterator[str]:
            return iter(self.inner)

        def __len__(self) -> int:
            return len(self.inner)

    given = Given(Wrapped({"out": torch.randn(2, 3, 8, 4)}), SIZE)
    with pytest.raises(TypeError, match="Wrapped"):
        given.detached()


def test_what_stands_in_for_a_module_is_gone_after_an_error() -> None:
    module = nn.Linear(2, 2)
    with standing_in(module, "something"):
        assert module(1) == "something"
    with pytest.raises(ZeroDivisionError), standing_in(module, "something"):
        1 / 0  # noqa: B018
    assert module(torch.ones(2)).shape == (2,)
    module.forward = lambda x: x  # of one that was patched
    with standing_in(module, "something"):
        assert module(1) == "something"
    assert module(1) == 1


class Net(nn.Module):
    """A network with an encoder, and something that it should not have for grafts."""

    def __init__(self, odd: str = "") -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 6, 3, 2, 1)
        self.other = nn.Conv2d(3, 6, 3, 2, 1)
        self.stem = nn.Conv2d(3, 3, 1)
        self.score = nn.Conv2d(6, CLASSES, 1)
        self.odd = odd

    def forward(self, images: Tensor) -> Tensor:
        seen: Tensor = self.encoder(self.stem(images) if self.odd == "learns before" else images)
        if self.odd == "called twice":
            seen = seen + self.encoder(2 * images)
        if self.odd == "is not read":
            seen = self.other(images)
        if self.odd == "another path":
            seen = seen + self.other(images)
        if self.odd == "changed in place":
            seen.relu_()
        scores: Tensor = self.score(seen)
        return scores


@pytest.mark.parametrize(
    "odd", ["", "called twice", "is not read", "another path", "learns before", "changed in place"]
)
def test_a_backbone_stands_apart_if_scores_are_made_of_it_alone(odd: str) -> None:
    adapter = Adapter(Net(odd))
    adapter.model.requires_grad_(False)  # as in the step after one that froze something
    assert ("backbone" in adapter.gives) == (not odd)
    assert not any(one.requires_grad for one in adapter.parameters())


def test_other_maps_in_training_are_refused() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 6, 3, 2, 1)

        def forward(self, images: Tensor) -> list[Tensor]:
            return [images, self.conv(images)] if self.training else [self.conv(images)]

    class Changing(Net):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = Encoder()  # type: ignore[assignment]

        def forward(self, images: Tensor) -> Tensor:
            scores: Tensor = self.score(self.encoder(images)[-1])
            return scores

    adapter = Adapter(Changing())
    assert "backbone" in adapter.gives
    adapter.keeps_maps = True
    output = adapter.train()(torch.rand(2, 3, 16, 16))
    with pytest.raises(NacreError, match="Encoder gives other maps"):
        adapter.maps(output)


def test_a_mask_lies_over_the_maps_of_a_picture_that_was_continued() -> None:
    adapter = Adapter(Net(), divisor=32)
    mask = torch.zeros(1, 40, 50, dtype=torch.bool)
    mask[:, 30:, 25:] = True
    over = adapter.over_maps(mask)
    assert over.shape == (1, 64, 64)
    assert torch.equal(over[:, :40, :50], mask)
    assert over[:, 30:, 25:].all()
    assert not over[:, :30].any()
