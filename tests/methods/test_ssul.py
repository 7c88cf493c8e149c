"""SSUL's unknown class, in targets and in scores."""

from __future__ import annotations

import pytest
import torch

from nacre.losses import IGNORE_INDEX
from nacre.methods.ssul import NO_CHANNEL, NOT_COUNTED, unknown_targets
from nacre.models.network import merge_unknown


def slow_unknown(y: int, num_old: int) -> int:
    if y == IGNORE_INDEX:
        return NOT_COUNTED
    if y == 0:
        return 1
    return NO_CHANNEL if y < num_old else 2 + y - num_old


@pytest.mark.parametrize("num_old", [1, 4])
def test_background_becomes_unknown(num_old: int) -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.tensor([0, *range(num_old + 2), IGNORE_INDEX], dtype=torch.uint8)
    targets = values[torch.randint(0, len(values), (2, 6, 7), generator=g)]
    expected = [slow_unknown(y, num_old) for y in targets.flatten().tolist()]
    assert unknown_targets(targets, num_old).flatten().tolist() == expected


def test_background_and_unknown_count_as_one() -> None:
    g = torch.Generator().manual_seed(0)
    logits, unknown = (torch.randn(2, c, 8, 8, generator=g).double() * 3 for c in (4, 1))
    probabilities = logits.sigmoid()
    probabilities[:, :1] += unknown.sigmoid()
    merged = merge_unknown(logits, unknown)
    sum_is_possible = probabilities[:, 0] < 1 - 1e-6
    torch.testing.assert_close(
        merged.sigmoid().amax(1)[sum_is_possible], probabilities.amax(1)[sum_is_possible]
    )
    # Beyond a sum of 1 a class wins only if it is all but sure
    sure = probabilities[:, 1:].amax(1) > 1 - 1e-6
    assert torch.equal(merged.argmax(1)[~sure], probabilities.argmax(1)[~sure])
