"""The state in the middle of a step, as a file: saved when it is due, read when a step goes on."""

import time
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, Field

from nacre.errors import NacreError, check
from nacre.training.trainer import Trainer
from nacre.utils.distributed import Distributed
from nacre.utils.tensor_file import Tensors, read_tensors, write_tensors

RESUME = "resume"
RANDOM = "random."

CHECKPOINT_MINUTES = 10.0
"""Minutes between two saves within a step."""


class Checkpoint:
    """Saves and restores a trainer in the middle of a step.

    The main process decides by its own clock when a save is due and tells the others (see
    `learn_step`): processes that each look at their own clock would wait for each other for ever.

    Args:
        path: The file.
        dist: The processes; the main one writes.
    """

    def __init__(self, path: Path, dist: Distributed) -> None:
        self.path, self.dist = path, dist
        self.restart()

    def restart(self) -> None:
        """Begin to count the minutes anew."""
        self.saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """True if the main process's clock says that it is time to save."""
        return self.dist.is_main and time.monotonic() - self.saved > 60 * CHECKPOINT_MINUTES

    def save(self, trainer: Trainer) -> None:
        """Write the trainer's state."""
        tensors = trainer.state() | _generators(self.dist)
        content = {
            "step": trainer.step.number,
            "iteration": trainer.iteration,
            "scaler": trainer.scaler.state_dict(),
        }
        self.dist.on_main(lambda: save_resume(self.path, tensors, content))
        self.restart()

    def restore(self, trainer: Trainer) -> None:
        """Bring a trainer to where its step was saved, if it was."""
        if self.dist.from_main(self.path.exists()):
            tensors, content = load_resume(self.path, self.dist.device)
            if content["step"] == trainer.step.number:
                random = {key: tensors.pop(key) for key in list(tensors) if key.startswith(RANDOM)}
                trainer.load_state(tensors, content["iteration"], content["scaler"])
                _set_generators(random, self.dist)
        places = self.dist.all(trainer.iteration)
        if len(set(places)) > 1:
            raise NacreError(f"the processes would go on at different iterations: {places}")

    def remove(self) -> None:
        """Remove the file, if there is one: the step is learned."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError as error:
            raise NacreError(f"could not remove {self.path}: {error.strerror}") from error


def _generators(dist: Distributed) -> Tensors:
    """Return the state of every process's generators, from which dropout draws."""
    mine = {"cpu": torch.get_rng_state()}
    if dist.device.type == "cuda":
        mine["cuda"] = torch.cuda.get_rng_state(dist.device)
    elif dist.device.type == "mps":
        mine["mps"] = torch.mps.get_rng_state()
    by_rank = enumerate(dist.all(mine))
    return {f"{RANDOM}{rank}.{kind}": state for rank, one in by_rank for kind, state in one.items()}


def _set_generators(states: Tensors, dist: Distributed) -> None:
    """Go on drawing where this process stopped, as far as the device is the same.

    A process that was not there before goes on as the main one: some draws must be the same in all.
    """
    rank = dist.rank if f"{RANDOM}{dist.rank}.cpu" in states else 0
    cpu, cuda, mps = (states.get(f"{RANDOM}{rank}.{kind}") for kind in ("cpu", "cuda", "mps"))
    if cpu is not None:
        torch.set_rng_state(cpu.cpu())
    if cuda is not None and dist.device.type == "cuda":
        torch.cuda.set_rng_state(cuda.cpu(), dist.device)
    if mps is not None and dist.device.type == "mps":
        torch.mps.set_rng_state(mps.cpu())


class _Header(BaseModel):
    """The description of a file's state."""

    step: int = Field(strict=True, ge=0)
    iteration: int = Field(strict=True, ge=0)
    scaler: dict[str, float]


def save_resume(path: Path, tensors: Tensors, content: dict[str, Any]) -> None:
    """Write the state in the middle of a step."""
    write_tensors(path, tensors, {"kind": RESUME, **content})


def load_resume(path: Path, device: torch.device) -> tuple[Tensors, dict[str, Any]]:
    """Read the state in the middle of a step."""
    tensors, content = read_tensors(path, RESUME, device)
    check(_Header, content, str(path))
    return tensors, content
