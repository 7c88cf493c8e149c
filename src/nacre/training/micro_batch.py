"""How many images fit a GPU at once: found by trying, before a step begins.

A trial is what an update does, without the update: the losses of some blank images, their
gradients and as much room as the optimizer will take. The largest part of a batch that fits is
taken, of those that divide it. Nothing of a trial stays: neither gradients nor running statistics
nor random draws.
"""

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.training.trainer import Trainer


def fitting_micro_batch(trainer: Trainer, batch_size: int, crop_size: int) -> int:
    """Return the most images of a batch whose gradients fit the device at once.

    Args:
        trainer: Of a step, before its first update.
        batch_size: Images of an update in this process.
        crop_size: Their sides.

    Raises:
        NacreError: Not even the fewest fit, or there are several processes, of which those that
            fit would wait for ever for one that does not.
    """
    if trainer.dist.world_size > 1:
        raise NacreError(
            "train.micro_batch=auto is for one process; with several give a number, such as the "
            "one that `nacre run` finds in one"
        )
    if trainer.dist.device.type == "cpu":
        return batch_size
    for count in range(batch_size, min(2, batch_size) - 1, -1):
        if batch_size % count == 0 and _fits(trainer, count, crop_size):
            return count
    raise NacreError(f"not even {min(2, batch_size)} images fit the GPU at once; {ADVICE}")


ADVICE = (
    "model.norm=iabn, model.grad_checkpointing=true, a smaller images.crop_size or a smaller "
    "network need less"
)


def _fits(trainer: Trainer, count: int, crop_size: int) -> bool:
    device = trainer.dist.device
    kept = {name: value.clone() for name, value in trainer.network.named_buffers()}
    devices = [device] if device.type == "cuda" else []
    try:
        with torch.random.fork_rng(devices):
            _try(trainer, count, crop_size)
    except torch.OutOfMemoryError:
        return False
    finally:
        _undo(trainer, kept)
    return True


def _try(trainer: Trainer, count: int, crop_size: int) -> None:
    """Do what an update of so many images does, up to the gradients."""
    # What the optimizer remembers of each parameter, which it takes with its first update.
    copies = 2 if trainer.config.optimizer == "adamw" else 1
    learning = [one for one in trainer.network.parameters() if one.requires_grad]
    room = [torch.empty_like(one) for one in learning for _ in range(copies)]
    images = torch.zeros(count, 3, crop_size, crop_size, dtype=torch.uint8)
    targets = torch.zeros(count, crop_size, crop_size, dtype=torch.uint8)
    trainer.find_gradients((images, targets))
    del room


@torch.no_grad()
def _undo(trainer: Trainer, buffers: dict[str, Tensor]) -> None:
    trainer.optimizer.zero_grad(set_to_none=True)
    for name, value in trainer.network.named_buffers():
        value.copy_(buffers[name])
    if trainer.dist.device.type == "cuda":
        torch.cuda.empty_cache()
