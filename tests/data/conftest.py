"""Fixtures of the data tests: a cache folder of their own, and the way to real pictures."""

import os
import sys
from pathlib import Path

import pytest

# pytest imports test files one by one; the module they share must be found by its name.
sys.path.insert(0, str(Path(__file__).parent))

BESIDE_THE_PROJECT = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache folder out of the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))


@pytest.fixture
def voc_part() -> Path:
    """The part of Pascal VOC 2012 that lies beside the project."""
    return _real("voc2012-part")


@pytest.fixture
def camvid() -> Path:
    """CamVid, which has no background class."""
    return _real("camvid")


def _real(name: str) -> Path:
    base = Path(os.environ.get("NACRE_TEST_DATA") or BESIDE_THE_PROJECT)
    if not (base / name).is_dir():
        pytest.skip(f"no {name} in {base}; set NACRE_TEST_DATA to the folder that holds it")
    return base / name
