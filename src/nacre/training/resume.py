"""The state in the middle of a step, as a file: saved when it is due, read when a step goes on."""

import time
from pathlib import Path
from typing import Any

import torch

from nacre.training.trainer import Trainer
from nacre.utils.distributed import Distributed
from nacre.utils.tensor_file import Tensors, read_tensors, write_tensors

RESUME = "resume"


class Checkpoint:
    """Saves and restores a trainer in the middle of a step.

    The main process decides by its own clock when a save is due and tells the others (see
    `learn_step`): processes that each look at their own clock would wait for each other for ever.

    Args:
        path: The file.
        dist: The processes; the main one writes.
        minutes: Between two saves.
    """

    def __init__(self, path: Path, dist: Distributed, minutes: float) -> None:
        self.path, self.dist, self.minutes = path, dist, minutes
        self.restart()

    def restart(self) -> None:
        """Begin to count the minutes anew."""
        self.saved = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether the main process's clock says that it is time to save."""
        return self.dist.is_main and time.monotonic() - self.saved > 60 * self.minutes

    def save(self, trainer: Trainer) -> None:
        """Write the trainer's state."""
        tensors = trainer.state()
        if self.dist.is_main:
            content = {
                "step": trainer.step.index,
                "iteration": trainer.iteration,
                "scaler": trainer.scaler.state_dict(),
            }
            save_resume(self.path, tensors, content)
        self.restart()
        self.dist.barrier()

    def restore(self, trainer: Trainer) -> None:
        """Bring a trainer to where its step was saved, if it was."""
        if self.path.exists():
            tensors, content = load_resume(self.path, self.dist.device)
            if content["step"] == trainer.step.index:
                trainer.load_state(tensors, content["iteration"], content["scaler"])

    def remove(self) -> None:
        """Remove the file: the step is learnt."""
        if self.dist.is_main:
            self.path.unlink(missing_ok=True)


def save_resume(path: Path, tensors: Tensors, content: dict[str, Any]) -> None:
    """Write the state in the middle of a step."""
    write_tensors(path, tensors, {"kind": RESUME, **content})


def load_resume(path: Path, device: torch.device) -> tuple[Tensors, dict[str, Any]]:
    """Read the state in the middle of a step."""
    return read_tensors(path, RESUME, device)
