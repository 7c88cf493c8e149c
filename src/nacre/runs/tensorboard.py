"""Events as TensorBoard shows them: losses, learning rate and speed by iteration, IoU by step.

The file is written by torch's own writer, which needs the package ``tensorboard`` (the extra of
the same name). Iterations are counted on over the steps.
"""

from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.training.events import Event, StepBegan, StepSkipped, StepTested, Trained


class TensorBoard:
    """An observer that writes the events of one run into a folder for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise NacreError(
                "--tensorboard needs a package that is not installed: pip install "
                "'nacre[tensorboard]'"
            ) from error
        self.writer: Any = SummaryWriter(str(folder))
        self.before = 0
        self.in_step = 0

    def __call__(self, event: Event) -> None:
        """Write an event that has something to show."""
        if isinstance(event, StepBegan):
            self.in_step = event.iterations
        elif isinstance(event, StepSkipped):
            self.before += event.iterations
        elif isinstance(event, Trained):
            self._train(event)
        elif isinstance(event, StepTested):
            self.before += self.in_step
            for name, value in event.mean_iou.items():
                if value is not None:
                    self.writer.add_scalar(f"miou/{name}", value, event.step)
            self.writer.flush()

    def _train(self, event: Trained) -> None:
        iteration = self.before + event.iteration
        for name, value in event.losses.items():
            self.writer.add_scalar(f"loss/{name}", value, iteration)
        self.writer.add_scalar("learning rate", event.lr, iteration)
        self.writer.add_scalar("images per second", event.images_per_second, iteration)
