"""The same runs by one process and by two or more, in float64, where rounding does not matter.

torchrun calls `python one_and_two.py FOLDER`, which executes the run of every config in the folder.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from nacre.models.io import find_model
from nacre.runs.run import run_scenario
from nacre.training import loop
from nacre.training.config import build_config
from nacre.utils.distributed import exit_process, leave_distributed

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
NEAR = 1e-9
TINY_NORM = 1e-6
"""The smallest norm that differences are compared with: some tensors stay close to 0."""


def learn_by_one_and_two(
    configs: Mapping[str, Any], folder: Path, script: Path = Path(__file__)
) -> list[Path]:
    """Execute runs by one process and by two with a script; return both folders."""
    one, two = folder / "one", folder / "two"
    learn_alone(configs, one, script)
    write_configs(configs, two)
    # --standalone picks a free port, so that two sessions of tests do not meet.
    launch = [*TORCHRUN, "--standalone", "--nproc-per-node=2"]
    succeed([start([*launch, str(script), str(two)])])
    return [one, two]


def learn_alone(configs: Mapping[str, Any], folder: Path, script: Path = Path(__file__)) -> None:
    """Execute runs by one process."""
    write_configs(configs, folder)
    succeed([start([sys.executable, str(script), str(folder)])])


def learn_on_two_nodes(configs: Mapping[str, Any], folder: Path, processes: int) -> None:
    """Execute runs like two machines, each with its own torchrun, on loopback."""
    write_configs(configs, folder)
    each = ["--nnodes=2", f"--nproc-per-node={processes}"]
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    succeed([start([*TORCHRUN, *each, *meeting, __file__, str(folder)]) for _ in range(2)])


def end_two(script: Path, *words: str | Path) -> "list[subprocess.CompletedProcess[str]]":
    """Execute a script in two processes of a group, without torchrun; return their results."""
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    place["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    processes = [
        subprocess.Popen(
            [sys.executable, script, *words],
            env={**os.environ, **place, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=600) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [
        subprocess.CompletedProcess(process.args, process.returncode, *texts)
        for process, texts in zip(processes, said, strict=True)
    ]


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def write_configs(configs: Mapping[str, Any], folder: Path) -> None:
    """Write the configs of runs into a new folder."""
    folder.mkdir()
    for name, values in configs.items():
        (folder / f"{name}.yaml").write_text(json.dumps(values))


def start(command: list[str]) -> "subprocess.Popen[str]":
    """Start a command with the tests' import path and one thread."""
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
    return subprocess.Popen(command, env=env, stdout=quiet, stderr=pipe, text=True)


def succeed(processes: "list[subprocess.Popen[str]]") -> None:
    """Wait for processes; fail with their output if one fails."""
    said = [process.communicate()[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert not any(codes), "\n".join(text[-3000:] for text in said)


def assert_equal_runs(folders: list[Path], name: str) -> None:
    """Compare all tensors and the confusion matrix of a run."""
    paths = [find_model(folder / name) for folder in folders]
    one, two = (load_file(path) for path in paths)
    assert one.keys() == two.keys()
    for key, value in one.items():
        size = max(float(value.double().norm()), TINY_NORM)
        assert float((value.double() - two[key].double()).norm()) <= NEAR * size, key
    tested = [json.loads((path.parent / "metrics.json").read_text()) for path in paths]
    assert tested[0]["confusion"] == tested[1]["confusion"], "every test image counts exactly once"


def learn_all(folder: Path) -> None:
    """Execute the run of every config in a folder, and end the process."""
    build = loop.build_network
    loop.build_network = lambda *given: build(*given).double()
    torch.set_default_dtype(torch.float64)
    for path in sorted(folder.glob("*.yaml")):
        run_scenario(build_config(file=path), path.with_suffix(""))
    leave_distributed()
    exit_process(0)


if __name__ == "__main__":
    learn_all(Path(sys.argv[1]))
