"""Processes of a group end with the right exit code, however late the group's threads run.

A thread of the group that frees a tensor while the interpreter ends aborts the process. So either
no thread is left by then, or the interpreter does not end.
"""

import sys
from pathlib import Path

import pytest

from one_and_two import end_two

SCRIPT = Path(__file__).with_name("leaving.py")


def ended(ending: str) -> list[tuple[int, list[str]]]:
    """Return the exit codes of two processes of a group that end so, and what they printed."""
    return [(one.returncode, one.stdout.splitlines()) for one in end_two(SCRIPT, ending)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at threads in /proc")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["nothing", "ddp", "run"])
def test_no_thread_of_a_group_is_left_when_it_has_been_left(what):
    assert ended(what) == [(0, ["True", ""])] * 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at threads in /proc")
def test_a_process_that_must_end_at_once_does_not_end_the_interpreter_around_the_threads():
    assert ended("exit") == [(3, ["True"])] * 2
