"""Carries out the run of every config in a folder, in float64; torchrun is slow to start.

In float64 rounding decides nothing within so few updates: what differs between one process and two
is a mistake.
"""

import sys
from pathlib import Path

import torch

from nacre.runs.run import run_scenario
from nacre.training import step
from nacre.training.config import build_config
from nacre.utils.distributed import exit_process, leave_distributed


def learn_all(folder: Path) -> None:
    build = step.build_network
    step.build_network = lambda *given: build(*given).double()
    torch.set_default_dtype(torch.float64)
    for path in sorted(folder.glob("*.yaml")):
        run_scenario(build_config(file=path), path.with_suffix(""))


if __name__ == "__main__":
    learn_all(Path(sys.argv[1]))
    leave_distributed()
    exit_process(0)
