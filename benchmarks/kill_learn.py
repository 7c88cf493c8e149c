"""Kills `nacre learn` with -9 at random moments, lets it go on, and compares what it ends in.

    python benchmarks/kill_learn.py [--kills 200] [--seed 1]

Every trial is a process of its own that begins a step of a few updates in a fresh folder, is killed
after a random part of the processor time that such a step takes, and is begun again until it ends;
its tensors and metrics must be those of a step that nobody disturbed, and nothing half written may
lie in its folder. Processes are forked from one that has everything imported (Linux).
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import torch

from nacre.data.sources.scenes_render import ScenesConfig
from nacre.models.io import load_model
from nacre.runs.learn import find_start
from nacre.runs.learn_plan import plan_learning
from nacre.training import resume
from partial_data import write_folder

# Small, so that a step takes little more than what is done around its updates.
WORLD = ScenesConfig(train=10, val=4, size=32, seed=3)
VALUES = {
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, "augmentation": "flip"},
    "train": {"iterations": 10, "batch_size": 4},
}
# A save after every update, so that kills fall between, before and within them.
resume.CHECKPOINT_MINUTES = 1e-6


def learn(data: Path, start: Path | None, out: Path) -> None:
    values = VALUES if start is None else {k: v for k, v in VALUES.items() if k != "model"}
    plan_learning([data], find_start(start), values=values).learning(out)()


def in_a_process(data: Path, start: Path, out: Path, seconds: float) -> bool:
    """Begin in a process of its own, kill it after some work; return whether it ended before."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            learn(data, start, out)
            code = 0
        finally:
            os._exit(code)
    done, status = 0, 0
    while not done and worked(child) < seconds:
        time.sleep(0.01)
        done, status = os.waitpid(child, os.WNOHANG)
    if not done:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"it failed: {code}"
    return code == 0


def worked(process: int) -> float:
    """Return the seconds that a process has been on a processor: no other process changes them."""
    return int(Path(f"/proc/{process}/schedstat").read_text().split()[0]) / 1e9


def digest(out: Path) -> str:
    network, _, state = load_model(out / "model.safetensors")
    found = hashlib.sha256((out / "metrics.json").read_bytes())
    for name, value in sorted({**network.state_dict(), **state}.items()):
        found.update(name.encode() + value.numpy().tobytes())
    return found.hexdigest()


def main(kills: int, seed: int) -> None:
    with tempfile.TemporaryDirectory(prefix="nacre-kills-") as folder:
        count(Path(folder), kills, seed)


def count(root: Path, kills: int, seed: int) -> None:
    rng = random.Random(seed)
    write_folder(root / "pets", ["pearl", "starfish"], world=WORLD)
    write_folder(root / "birds", ["crate"], world=WORLD)
    torch.set_num_threads(1)
    learn(root / "pets", None, root / "start")
    learn(root / "birds", root / "start", root / "whole")
    began = time.process_time()
    learn(root / "birds", root / "start", root / "again")
    usual = time.process_time() - began
    wanted, files = digest(root / "whole"), sorted(p.name for p in (root / "whole").iterdir())
    killed = steps = same = tidy = 0
    while killed < kills:
        out = root / "cut"
        shutil.rmtree(out, ignore_errors=True)
        while not in_a_process(root / "birds", root / "start", out, rng.uniform(0, usual)):
            killed += 1
        steps += 1
        same += digest(out) == wanted
        tidy += sorted(p.name for p in out.iterdir()) == files
        print(f"{killed} kills, {same} of {steps} steps identical, {tidy} tidy", flush=True)
    print(json.dumps({"kills": killed, "steps": steps, "identical": same, "tidy": tidy}))
    assert steps == same == tidy


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    main(given.kills, given.seed)
