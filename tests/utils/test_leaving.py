"""Processes of a group end with the right exit code, however late the group's threads run."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("leaving.py")
PAIRS = 20


def free_ports(count: int) -> list[str]:
    """Return ports that nobody listens at."""
    with contextlib.ExitStack() as held:
        servers = [held.enter_context(socket.socket()) for _ in range(count)]
        for server in servers:
            server.bind(("127.0.0.1", 0))
        return [str(server.getsockname()[1]) for server in servers]


def pair(*words: str) -> list[subprocess.CompletedProcess[str]]:
    """Run two processes that end as the words say."""
    port = free_ports(1)[0]
    common = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[1]), *filter(None, sys.path)])
    started = [
        subprocess.Popen(
            [sys.executable, SCRIPT, *words],
            env={**common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        texts = [process.communicate(timeout=240) for process in started]
    finally:
        for process in started:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *text)
        for process, text in zip(started, texts, strict=True)
    ]


@pytest.mark.slow
def test_after_a_real_run_no_thread_of_the_group_is_left(tmp_path):
    ended = pair("run", str(tmp_path / "run"))
    assert [(one.returncode, one.stdout.split()) for one in ended] == [(0, ["threads:"])] * 2, ended


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "code"),
    [("leave", 0), ("leave-with-ddp", 0), ("exit", 3), ("exit-holding-the-group", 3)],
)
def test_pairs_whose_threads_are_late_never_abort(ending, code):
    ended = pair("starved", ending, *free_ports(PAIRS))
    assert [one.returncode for one in ended] == [0, 0], ended
    codes = [one.stdout.split() for one in ended]
    assert codes == [[str(code)] * PAIRS] * 2, f"{-signal.SIGABRT} is an abort"
