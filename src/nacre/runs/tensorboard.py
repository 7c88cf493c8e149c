"""Events as TensorBoard shows them: losses, learning rate and speed by iteration, IoU by step.

The file is written by torch's own writer, which needs the package ``tensorboard`` (the extra of
the same name). Iterations are counted on over the steps.
"""

from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.training.events import Event


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
        kind = event["event"]
        if kind == "begin":
            self.in_step = event["iterations"]
        elif kind == "skipped":
            self.before += event["iterations"]
        elif kind == "train":
            self._train(event)
        elif kind == "end":
            self.before += self.in_step
            for name, value in event["mean_iou"].items():
                if value is not None:
                    self.writer.add_scalar(f"miou/{name}", value, event["step"])
            self.writer.flush()

    def _train(self, event: Event) -> None:
        at = self.before + event["iteration"]
        for name, value in event["losses"].items():
            self.writer.add_scalar(f"loss/{name}", value, at)
        self.writer.add_scalar("learning rate", event["lr"], at)
        self.writer.add_scalar("images a second", event["images_per_second"], at)
