"""A fast part of `fuzzing.py`: mutated exports of every tool end well, whatever is done to them."""

from pathlib import Path

import pytest
from exports import WRITERS
from fuzzing import attempt

SEEDS = (3, 49, 150)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("tool", WRITERS)
def test_a_mutated_export_ends_in_a_folder_or_in_one_sentence(
    tool: str, seed: int, tmp_path: Path
) -> None:
    assert attempt(tool, seed, tmp_path) in ("imported", "imported in part", "refused")
