"""Time and memory of an update of an external network, relative to a plain training loop.

    python benchmarks/networks.py                  # 4 x 3 x 128 x 128

The plain loop makes the same update with the cross-entropy of upsampled scores. Fine-tuning with
nacre's trainer adds the adapter and the fused loss; MiB adds the teacher and the distillation. The
network is a U-Net of plain torch, which outputs scores at a quarter of the size.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measuring import PAGE, Row, apart, command, peak_of_process, take_turns
from methods import NEW, OLD, make_batch, trainer_of
from nacre.models.build import KINDS, Kind
from nacre.models.config import AdapterConfig
from nacre.models.external import adapt
from nacre.training import loop
from nacre.utils.system import keep_freed_memory


class Encoder(nn.Module):
    """Convolutions at a quarter and an eighth of the size, and a way back up."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.stem = self._block(3, width, 4)
        self.down = self._block(width, 2 * width, 2)
        self.up = self._block(3 * width, width, 1)
        self.score = nn.Conv2d(width, num_classes, 1)

    def _block(self, inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        fine = self.stem(images)
        coarse = F.interpolate(self.down(fine), fine.shape[-2:], mode="bilinear")
        scores: Tensor = self.score(self.up(torch.cat([fine, coarse], 1)))
        return scores


class EncoderConfig(AdapterConfig):
    """The network as a config names it."""

    kind: str = "encoder"
    width: int


KINDS["encoder"] = Kind(
    EncoderConfig,
    lambda config, steps, crop, load: adapt(Encoder(steps[0], config.width), config, steps),
)


def alone(width: int, crop: int, batch: int) -> Callable[[], None]:
    """Return an update of the network in a loop of its own."""
    torch.manual_seed(0)
    network = Encoder(OLD + NEW, width)
    optimizer = torch.optim.SGD(network.parameters(), 1e-4, 0.9, nesterov=True)
    ((images, targets, *_),) = make_batch(crop, batch)

    def update() -> None:
        scores = network(images.float() / 255)
        large = F.interpolate(scores, targets.shape[-2:], mode="bilinear")
        loss = F.cross_entropy(large, targets.long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return update


def update_by(name: str, width: int, crop: int, batch: int) -> Callable[[], object]:
    """Return an update by a method of nacre, or of the network alone."""
    if name == "alone":
        return alone(width, crop, batch)
    config = EncoderConfig(width=width)
    return partial(loop.update, trainer_of(name, config, crop, batch), make_batch(crop, batch))


def times(width: int, crop: int, batch: int, rounds: int) -> dict[str, float]:
    """Return the time of an update of the network alone and by two methods."""
    keep_freed_memory()
    updates = {name: update_by(name, width, crop, batch) for name in ("alone", "ft", "mib")}
    for update in updates.values():
        update()  # warm-up
    return take_turns(updates, rounds)


def memory(name: str, width: int, crop: int, batch: int) -> float:
    """Return the MiB by which updates raise the memory of a process."""
    update = update_by(name, width, crop, batch)
    before = peak_of_process()
    for _ in range(2):
        update()
    return max(peak_of_process() - before, PAGE) / 2**20


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return time and memory of an update against the network alone."""
    width, crop, batch = (4, 32, 2) if tiny else (32, 128, 4)
    seconds = apart(times, width, crop, batch, rounds)
    size = f"{batch} x {crop} x {crop}, {OLD + NEW} classes"
    rows = [
        Row(
            f"update by {name} of an external network, {size}: time against the network alone",
            seconds[name] / seconds["alone"],
            None,
            "most",
            {f"{one} s": seconds[one] for one in ("alone", name)},
        )
        for name in ("ft", "mib")
    ]
    if tiny:
        return rows  # a process for each is all that would be measured
    own = apart(memory, "alone", width, crop, batch)
    for name in ("ft", "mib"):
        used = apart(memory, name, width, crop, batch)
        rows.append(
            Row(
                f"update by {name} of an external network, {size}: "
                "memory against the network alone",
                used / own,
                None,
                "most",
                {"alone MiB": own, f"{name} MiB": used},
            )
        )
    return rows


if __name__ == "__main__":
    command(measure, __doc__)
