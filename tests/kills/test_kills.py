"""A small part of the count of kills and signals in `make slow`; the whole of it when asked."""

import subprocess
import sys
from pathlib import Path

import pytest

PARTS = {
    "kills": ("run", "learn", "predict", "--kills", "2"),
    "a kill of an export": ("export", "--kills", "1"),
    "signals": ("signal SIGTERM to the group, workers 2", "signal SIGKILL"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")
@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    "names",
    [
        *(pytest.param(PARTS[part], id=part, marks=pytest.mark.slow) for part in PARTS),
        pytest.param((), id="all", marks=pytest.mark.nightly),
    ],
)
def test_what_was_disturbed_ends_as_if_undisturbed(names):
    command = [sys.executable, str(Path(__file__).with_name("count.py")), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr
