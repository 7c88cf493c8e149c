"""Valid and invalid headers of model files."""

import json
from typing import Any

import pytest

from nacre.errors import NacreError
from nacre.models.io import _read_info

STEP = {"step": 0, "classes": ["cat"], "images": 3, "data": ["pets"], "method": "mib"}
HEADER: dict[str, Any] = {
    "classes": ["background", "cat"],
    "colors": [[0, 0, 0], [255, 0, 0]],
    "steps": [2],
    "history": [STEP],
    "model": {},
    "crop": 32,
    "predict_mode": "crop",
    "config": {},
}


def test_a_valid_header_is_read() -> None:
    assert _read_info(json.loads(json.dumps(HEADER))).classes == ["background", "cat"]


@pytest.mark.parametrize(
    ("key", "value", "reason"),
    [
        ("classes", ["cat", "dog"], "first channel is 'cat', not 'background'"),
        ("classes", ["background", "background"], "two of its channels are the class 'background'"),
        ("classes", [], "classes: list should have at least 1 item"),
        ("colors", [[0, 0, 0]], "1 colors"),
        ("colors", [[0, 0, 0], [256, 0, 0]], "less than or equal to 255"),
        ("steps", [10**9], "steps.0: input should be less than or equal to 65536"),
        ("steps", [], "steps: list should have at least 1 item"),
        ("crop", 0, "crop: input should be greater than or equal to 1"),
        ("history", [{**STEP, "images": "many"}], "images: input should be a valid integer"),
        ("history", [{**STEP, "data": 5}], "data: input should be a valid list"),
        ("history", [{"step": 0}], "classes: missing; images: missing"),
        ("history", 5, "history: input should be a valid list"),
        ("config", [], "config: input should be a valid dictionary"),
    ],
)
def test_an_invalid_value_of_a_header_is_named(key: str, value: Any, reason: str) -> None:
    with pytest.raises(NacreError) as error:
        _read_info({**HEADER, key: value})
    assert reason in str(error.value)
