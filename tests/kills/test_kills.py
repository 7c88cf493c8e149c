"""A small part of the count of kills and signals in every suite; the whole of it when asked."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def run(*arguments: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("count.py")), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_what_was_killed_ends_as_if_undisturbed():
    run("run", "learn", "predict", "--kills", "2")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_an_export_that_was_killed_ends_as_if_undisturbed():
    run("export", "--kills", "2")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_signal_loses_nothing_and_a_kill_leaves_nobody():
    run("signal SIGTERM to the group, workers 2", "signal SIGKILL")


@pytest.mark.nightly
@pytest.mark.timeout(7200)
def test_all_kills_and_signals():
    run()
