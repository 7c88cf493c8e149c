"""Processes of a group end with the right exit code, however late the group's threads run.

A thread of the group that frees a tensor while the interpreter ends aborts the process. So either
no thread is left by then, or the interpreter does not end.
"""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("leaving.py")


def end_two(ending: str) -> list[tuple[int, list[str]]]:
    """Return the exit codes of two processes of a group that end so, and what they printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[1]), *filter(None, sys.path)])
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, ending],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=600)[0].splitlines() for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, text) for process, text in zip(started, texts, strict=True)]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at threads in /proc")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("what", ["nothing", "ddp", "run"])
def test_no_thread_of_a_group_is_left_when_it_has_been_left(what):
    assert end_two(what) == [(0, ["True", ""])] * 2


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at threads in /proc")
def test_a_process_that_must_end_at_once_does_not_end_the_interpreter_around_the_threads():
    assert end_two("exit") == [(3, ["True"])] * 2
