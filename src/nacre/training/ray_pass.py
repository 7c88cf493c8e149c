"""A pass over a step's images as tasks of a Ray cluster: a map whose results are summed.

Images are dealt in shares of some hundred, whatever the number of machines. A share is a task with
a core and, if there are any, a GPU. Ray finds a machine for it, and when that machine or the
process dies, the share is done again elsewhere. What a share returns depends on nothing but its
images and the function, so any number of machines gives the same sums, up to the order of addition
in float64. All machines need nacre, and the data at the same place.
"""

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor

from nacre.data.dataset import TrainDataset, plain_batches
from nacre.errors import NacreError
from nacre.methods import Batch, Step
from nacre.methods.step import Mapper
from nacre.models.network import Network
from nacre.training.config import TrainConfig
from nacre.training.events import Iterated
from nacre.utils.device import choose_device, configure_backends
from nacre.utils.signals import Interrupted
from nacre.utils.system import join_cluster

T = TypeVar("T")

IMAGES_PER_SHARE = 512
RETRIES = 10
_PATIENCE = 1.0
"""Seconds after which it is asked again whether the user wants to stop."""


def ray_mapper(step: Step) -> Mapper:
    """Return what has a pass over a step's images carried out by a Ray cluster."""
    if step.dist.world_size > 1:
        raise NacreError(
            "train.passes_on=ray: Ray's machines take the place of torchrun's; use one"
        )
    train: TrainConfig = step.config.train
    tf32, size = train.precision != "float32", train.test_batch(1)
    plan = SharedPass(step.network, step.data, size, step.may_be, train.device, tf32)

    def check_stop() -> None:
        if step.should_stop():
            raise Interrupted

    def told(function: Callable[[Network, Iterator[Batch]], T]) -> Iterator[T]:
        for done, result in enumerate(map_on_ray(plan, function, check_stop), start=1):
            yield result
            step.observe(Iterated(step.index, step.iterations * done // plan.shares))

    return told


@dataclass(frozen=True)
class SharedPass:
    """The common input of every share of a pass.

    Attributes:
        network: looks at the images.
        dataset: the images.
        batch_size: images that are read at once.
        may_be: what the method is told that targets may be, by data set.
        device: where the machines compute.
        tf32: whether convolutions on a GPU may use TF32.
    """

    network: Network
    dataset: TrainDataset
    batch_size: int
    may_be: Tensor | None
    device: str
    tf32: bool

    @property
    def shares(self) -> int:
        """The number of shares: it does not depend on the cluster."""
        return math.ceil(len(self.dataset) / IMAGES_PER_SHARE)

    def batches(self, share: int, shares: int, device: torch.device) -> Iterator[Batch]:
        """Yield the batches of a share."""
        may_be = None if self.may_be is None else self.may_be.to(device)
        for sample in plain_batches(self.dataset, self.batch_size, share, shares, 0):
            images, targets, whose = (one.to(device) for one in sample)
            rows = None if may_be is None else may_be[whose].expand(len(images), -1, -1)
            yield Batch(images, targets, may_be=rows, folder=int(whose))


def map_on_ray(
    plan: SharedPass,
    function: Callable[[Network, Iterator[Batch]], T],
    check_stop: Callable[[], None],
) -> Iterator[T]:
    """Yield what a function returns for each share, in the order in which they are done.

    Args:
        plan: what is read.
        function: takes the network and the batches of a share; it is sent with all that it holds.
        check_stop: raises an error if the user wants to stop.
    """
    ray = join_cluster("train.passes_on=ray")
    try:
        there = ray.cluster_resources()
        gpus = min(1, int(there.get("GPU", 0)))
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_carry_out)
        # Sent once to each machine and not with each share.
        network = copy.deepcopy(plan.network).cpu()
        common = ray.put((replace(plan, network=network), plan.shares, function))
        waiting = iter(range(plan.shares))
        # More tasks than places would only fill the memory with results that nobody has added yet.
        places = max(2, 2 * int(there.get("GPU" if gpus else "CPU", 1)))
        running = [task.remote(common, share) for share in islice(waiting, places)]
        while running:
            check_stop()
            done, running = ray.wait(running, timeout=_PATIENCE)
            for one in done:
                running += [task.remote(common, share) for share in islice(waiting, 1)]
                yield _result(ray, one)
    finally:
        ray.shutdown()


def _carry_out(common: Any, share: int) -> Any:
    """Call the function on a share, in a process of the cluster."""
    plan, shares, function = common
    device = choose_device(plan.device)
    configure_backends(device, tf32=plan.tf32)
    return function(plan.network.to(device), plan.batches(share, shares, device))


def _result(ray: Any, task: Any) -> Any:
    """Return what a task returned, or say in one sentence why there is nothing."""
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, NacreError):
            raise NacreError(str(cause)) from error
        last = str(error).strip().splitlines()[-1]
        raise NacreError(f"Ray could not carry out a share of the images: {last}") from error
