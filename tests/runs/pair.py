"""One of two processes that disturb each other; see test_pair.py.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=… python pair.py FOLDER
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import torch

from nacre.errors import NacreError
from nacre.runs import folder as shared_folder
from nacre.runs.run import run_scenario
from nacre.training import trainer
from nacre.utils.distributed import exit_process, leave_distributed
from nacre.utils.signals import Interrupted
from tiny_runs import tiny_config

RANK = int(os.environ["RANK"])


class TremblingClock:
    """A clock with a random error."""

    def __init__(self) -> None:
        self.rng = random.Random(RANK)

    def monotonic(self) -> float:
        return time.monotonic() + self.rng.uniform(0, 0.2)


class StopInTest:
    """A stop in the tests after step 0, in the second process only."""

    def __init__(self, out: Path) -> None:
        self.model = out / "step-0" / "model.safetensors"

    def __call__(self) -> bool:
        return RANK == 1 and self.model.exists()


def outcome(work) -> str:
    try:
        work()
    except (NacreError, Interrupted) as error:
        return f"{type(error).__name__}: {error}"
    return "done"


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    shared_folder.SHARED_FOLDER_SECONDS = 0.5
    config = tiny_config()
    often = tiny_config(train={"epochs": 3})
    own = folder / f"of-rank-{RANK}"
    shared = folder / "shared"
    results = {"undisturbed": outcome(lambda: run_scenario(config, folder / "whole"))}
    clock, trainer.time = trainer.time, TremblingClock()
    minutes, trainer.CHECKPOINT_MINUTES = trainer.CHECKPOINT_MINUTES, 0.1 / 60
    results["trembling clock"] = outcome(lambda: run_scenario(often, folder / "trembling"))
    trainer.time, trainer.CHECKPOINT_MINUTES = clock, minutes
    stop = StopInTest(shared)
    results["stopped in a test"] = outcome(lambda: run_scenario(config, shared, should_stop=stop))
    results["tested then"] = str((shared / "step-0" / "metrics.json").exists())
    other = tiny_config(seed=2)
    results["another config"] = outcome(lambda: run_scenario(other, shared))
    results["going on"] = outcome(lambda: run_scenario(config, shared))
    results["folders of their own"] = outcome(lambda: run_scenario(config, own / "run"))
    results["folders of their own, going on"] = outcome(lambda: run_scenario(config, own / "begun"))
    (folder / f"{RANK}.json").write_text(json.dumps(results))
    if RANK == 1:
        out = folder / "lost"
        run_scenario(config, out, should_stop=lambda: os._exit(9))
    results["the other died"] = outcome(lambda: run_scenario(config, folder / "lost"))
    (folder / f"{RANK}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    leave_distributed()
    exit_process(0)
