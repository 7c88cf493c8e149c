"""A small part of the count of kills and signals in every suite; the whole of it when asked."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at processes in /proc")


def run(script, *arguments):
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_killed_before_a_file_operation_ends_as_if_undisturbed():
    assert "3 of 3 ended as undisturbed" in run("count.py", "operations", "--kills", "3")


def test_a_signal_loses_nothing_and_a_kill_leaves_nobody():
    cases = ("SIGTERM to the group, workers 2", "SIGKILL to the process")
    assert "2 of 2 cases fine" in run("signal_cases.py", *cases)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ["operations", "base", "moments", "tune", "grid"])
def test_all_kills(kind):
    kills = {"moments": "200", "tune": "30", "grid": "12"}.get(kind, "1000")
    run("count.py", kind, "--kills", kills)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_all_signals():
    run("signal_cases.py")
