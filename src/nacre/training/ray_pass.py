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
from dataclasses import dataclass
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


@dataclass(frozen=True)
class SharedPass:
    """The common input of every share of a pass.

    Attributes:
        network: looks at the images.
        function: what is made of the network and the batches of a share.
        dataset: the images.
        shares: their number; it does not depend on the cluster.
        batch_size: images that are read at once.
        may_be: what the method is told that targets may be, by data set.
        device: where the machines compute.
        tf32: whether convolutions on a GPU may use TF32.
    """

    network: Network
    function: Callable[[Network, Iterator[Batch]], Any]
    dataset: TrainDataset
    shares: int
    batch_size: int
    may_be: Tensor | None
    device: str
    tf32: bool

    def batches(self, share: int, device: torch.device) -> Iterator[Batch]:
        """Yield the batches of a share."""
        may_be = None if self.may_be is None else self.may_be.to(device)
        for sample in plain_batches(self.dataset, self.batch_size, share, self.shares, 0):
            images, targets, whose = (one.to(device) for one in sample)
            rows = None if may_be is None else may_be[whose].expand(len(images), -1, -1)
            yield Batch(images, targets, may_be=rows, folder=int(whose))


def ray_mapper(step: Step) -> Mapper:
    """Return what has a pass over a step's images carried out by a Ray cluster.

    It yields what a function returns for each share, in the order in which they are done. The
    function is sent with all that it holds.
    """
    if step.dist.world_size > 1:
        raise NacreError(
            "train.passes_on=ray: Ray's machines take the place of torchrun's; use one"
        )

    train: TrainConfig = step.config.train

    def mapped(function: Callable[[Network, Iterator[Batch]], T]) -> Iterator[T]:
        shares = math.ceil(len(step.data) / IMAGES_PER_SHARE)
        given = SharedPass(
            # Sent once to each machine and not with each share.
            network=copy.deepcopy(step.network).cpu(),
            function=function,
            dataset=step.data,
            shares=shares,
            batch_size=train.test_batch(1),
            may_be=step.may_be,
            device=train.device,
            tf32=train.precision != "float32",
        )
        ray = join_cluster("train.passes_on=ray")
        try:
            for done, task in enumerate(_ended(ray, given, step.should_stop), start=1):
                yield _result(ray, task)
                step.observe(Iterated(step.number, step.iterations * done // shares))
        finally:
            ray.shutdown()

    return mapped


def _ended(ray: Any, given: SharedPass, should_stop: Callable[[], bool]) -> Iterator[Any]:
    """Yield the tasks of all shares as they end."""
    there = ray.cluster_resources()
    gpus = min(1, int(there.get("GPU", 0)))
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=RETRIES)(_carry_out)
    common = ray.put(given)
    waiting = iter(range(given.shares))
    # More tasks than places would only fill the memory with results that nobody has added yet.
    places = max(2, 2 * int(there.get("GPU" if gpus else "CPU", 1)))
    running = [task.remote(common, share) for share in islice(waiting, places)]
    while running:
        if should_stop():
            raise Interrupted
        ended, running = ray.wait(running, timeout=_PATIENCE)
        for one in ended:
            running += [task.remote(common, share) for share in islice(waiting, 1)]
            yield one


def _carry_out(given: SharedPass, share: int) -> Any:
    """Call the function on a share, in a process of the cluster."""
    device = choose_device(given.device)
    configure_backends(device, tf32=given.tf32)
    return given.function(given.network.to(device), given.batches(share, device))


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
