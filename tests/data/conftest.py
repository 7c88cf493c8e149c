"""Fixtures of the data tests: a cache folder of their own."""

import sys
from pathlib import Path

import pytest

# pytest imports test files one by one; the module they share must be found by its name.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the user's cache folder out of the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user-cache"))
