"""Settings and fixtures of all tests: one thread per process, finished runs, real images."""

import os
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from nacre.training import loop
from nacre.utils.signals import STOP_SIGNALS
from tiny_runs import tiny_run

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch.utils.mkldnn  # torch.compile imports it, with warnings of its own

torch.set_num_threads(1)

# The time of an example depends on the load of the machine. Every run draws the same examples,
# except in `make fuzz`.
settings.register_profile(
    "busy",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="NACRE_FUZZ" not in os.environ,
)
settings.load_profile("busy")
# Hypothesis would read the sources of all modules outside of site-packages for constants: that
# takes ten seconds with timm, and the examples would depend on the tests that ran before.
providers._get_local_constants = lambda: providers._local_constants


@pytest.fixture(scope="session", autouse=True)
def _every_update_is_told() -> None:
    """Log every update, so that runs of a few updates have events."""
    loop.LOG_EVERY = 1


@pytest.fixture(scope="session")
def finished(_every_update_is_told: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three short steps; tests must not change it."""
    out = tmp_path_factory.mktemp("runs") / "mib"
    tiny_run(out)
    return out


@pytest.fixture(scope="session")
def learned(_every_update_is_told: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with more epochs."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    tiny_run(out, train={"epochs": 6})
    return out


@pytest.fixture
def heard_signals() -> Iterator[None]:
    """Restore the default handlers of signals that a shell or nohup ignores."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    for number, handler in before.items():
        if handler is signal.SIG_IGN:
            default = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, default)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


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
