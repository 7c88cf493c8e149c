"""Carries out the run of every config in a folder, with the libraries that need help to import."""

import sys
from pathlib import Path

import models.kinds_of_networks  # noqa: F401  adds a kind
from models.conftest import import_foreign
from nacre.runs.run import run_scenario
from nacre.training.config import build_config
from nacre.utils.distributed import exit_process, leave_distributed

import_foreign()
for path in sorted(Path(sys.argv[1]).glob("*.yaml")):
    run_scenario(build_config(file=path), path.with_suffix(""))
leave_distributed()
exit_process(0)
