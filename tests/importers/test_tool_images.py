"""The images of docs/annotation-tools.md are what the importers make today."""

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

DOCS = Path(__file__).parents[2] / "docs"


def script() -> Any:
    found = importlib.util.spec_from_file_location(
        "tool_pictures", DOCS / "hooks" / "tool_pictures.py"
    )
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    import sys

    sys.modules[found.name] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


SCRIPT = script()


@pytest.mark.parametrize("tool", SCRIPT.TOOLS)
def test_the_page_shows_what_is_imported(tool: str) -> None:
    made = np.asarray(SCRIPT.image(tool), np.float32)
    with Image.open(DOCS / "tools" / f"{tool}.jpg") as stored:
        shown = np.asarray(stored, np.float32)
    assert np.abs(made - shown).mean() < 8
    assert f"](tools/{tool}.jpg)" in (DOCS / "annotation-tools.md").read_text(encoding="utf-8")
