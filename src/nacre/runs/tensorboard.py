"""Events as TensorBoard shows them: losses, learning rate and speed by iteration, IoU by step.

The file is written by torch's own writer, which needs the package ``tensorboard`` (the extra of
the same name). Iterations are counted on over the steps.
"""

from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.training.events import Event, RunBegan, StepTested, Trained


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
        self.iterations: list[int] = []

    def __call__(self, event: Event) -> None:
        """Write an event that has something to show."""
        if isinstance(event, RunBegan):
            self.iterations = event.iterations
        elif isinstance(event, Trained):
            self._train(event)
        elif isinstance(event, StepTested):
            for name, value in event.mean_iou.items():
                if value is not None:
                    self.writer.add_scalar(f"miou/{name}", value, event.step)
            self.writer.flush()

    def _train(self, event: Trained) -> None:
        # Not counted up from event to event: a step may have been learnt before this start.
        iteration = sum(self.iterations[: event.step]) + event.iteration
        for name, value in event.losses.items():
            self.writer.add_scalar(f"loss/{name}", value, iteration)
        self.writer.add_scalar("learning rate", event.lr, iteration)
        self.writer.add_scalar("images per second", event.images_per_second, iteration)
