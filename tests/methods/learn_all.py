"""Carries out the run of every config in a folder; for torchrun, which is slow to start."""

import sys
from pathlib import Path

from nacre.runs.run import run_scenario
from nacre.training.config import build_config
from nacre.utils.distributed import exit_process, leave_distributed

for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
    run_scenario(build_config(file=path), path.with_suffix(""))
leave_distributed()
exit_process(0)
