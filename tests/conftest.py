"""Shared by all tests: one thread per process, since they run in several; the real pictures."""

import os
import warnings
from pathlib import Path

import pytest
import torch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch.utils.mkldnn  # torch.compile imports it, with warnings of its own

torch.set_num_threads(1)


def _data_root() -> Path:
    given = os.environ.get("NACRE_TEST_DATA")
    return Path(given) if given else Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def voc_part() -> Path:
    """A part of Pascal VOC 2012."""
    return _existing("voc2012-part")


@pytest.fixture(scope="session")
def camvid() -> Path:
    """CamVid, which has no background class."""
    return _existing("camvid")


def _existing(name: str) -> Path:
    path = _data_root() / name
    if not path.is_dir():
        pytest.skip(f"no {name} in {_data_root()}: set NACRE_TEST_DATA to a folder that has it")
    return path
