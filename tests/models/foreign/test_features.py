"""What a backbone gave its network: found, exchanged, given again."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from models.foreign.small_networks import CLASSES
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


def test_a_vector_and_numbers_are_no_maps() -> None:
    value = (
        torch.randn(2, 3, 1, 1),
        torch.ones(2, 8, 8, 4, dtype=torch.long),
        torch.randn(2, 7),
        5,
    )
    assert Given(value, SIZE).maps() == []


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
    """A network whose encoder is called as often as it is told, or whose scores need it not."""

    def __init__(self, calls: int = 1, uses: bool = True) -> None:
        super().__init__()
        self.encoder = nn.Conv2d(3, 6, 3, 2, 1)
        self.other = nn.Conv2d(3, 6, 3, 2, 1)
        self.score = nn.Conv2d(6, CLASSES, 1)
        self.calls, self.uses = calls, uses

    def forward(self, images: Tensor) -> Tensor:
        seen = [self.encoder(images * (1 + i)) for i in range(self.calls)]
        scores: Tensor = self.score(sum(seen) if self.uses else self.other(images))
        return scores


@pytest.mark.parametrize(
    ("network", "is_apart"), [(Net(), True), (Net(calls=2), False), (Net(uses=False), False)]
)
def test_a_backbone_stands_apart_if_it_is_asked_once_and_scores_are_made_of_it(
    network: nn.Module, is_apart: bool
) -> None:
    assert ("backbone" in Adapter(network).gives) == is_apart
