"""What several tests of the models use."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def in_two_processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[Callable[[int], Any]], list[Any]]:
    """`in_two_processes(f)` is `[f(0), f(1)]`, each computed in its own gloo process.

    The function stands at the top of a test file and returns arrays and numbers.
    """

    def run(function: Callable[[int], Any]) -> list[Any]:
        with socket.socket() as server:
            server.bind(("127.0.0.1", 0))
            port = server.getsockname()[1]
        folder = tmp_path_factory.mktemp("pair")
        results = [folder / f"{rank}.pickle" for rank in range(2)]
        script, file = Path(__file__).with_name("gloo_pair.py"), function.__code__.co_filename
        workers = [
            subprocess.Popen(
                [sys.executable, script, str(rank), str(port), file, function.__name__, result],
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank, result in enumerate(results)
        ]
        try:
            for worker in workers:
                _, errors = worker.communicate(timeout=120)
                assert worker.returncode == 0, errors
        finally:
            for worker in workers:
                worker.kill()
        return [pickle.loads(result.read_bytes()) for result in results]

    return run
