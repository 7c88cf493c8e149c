"""The same runs by one process and by two, in float64, where rounding decides nothing.

python one_and_two.py FOLDER carries out the run of every config in a folder; torchrun calls it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from nacre.models.io import find_model
from nacre.runs.run import run_scenario
from nacre.training import step
from nacre.training.config import build_config
from nacre.utils.distributed import exit_process, leave_distributed

NEAR = 1e-9
TINY_NORM = 1e-6
"""What starts at 0 and hardly moves is compared with this."""


def learn_by_one_and_two(
    configs: Mapping[str, Any], folder: Path, script: Path = Path(__file__)
) -> list[Path]:
    """Carry out runs by one process and by two, each as the script does; return both folders."""
    folders = [folder / "one", folder / "two"]
    # A port that is asked for, not drawn: two sessions of tests would otherwise meet.
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}
    for place, how in zip(folders, ([sys.executable], launch), strict=True):
        place.mkdir()
        for name, values in configs.items():
            (place / f"{name}.yaml").write_text(json.dumps(values))
        command = [*how, str(script), str(place)]
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    return folders


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
    """Carry out the run of every config in a folder, and end the process."""
    build = step.build_network
    step.build_network = lambda *given: build(*given).double()
    torch.set_default_dtype(torch.float64)
    for path in sorted(folder.glob("*.yaml")):
        run_scenario(build_config(file=path), path.with_suffix(""))
    leave_distributed()
    exit_process(0)


if __name__ == "__main__":
    learn_all(Path(sys.argv[1]))
