"""A pass over a step's images as tasks of a Ray cluster: a map whose results are summed.

The images are split into shares of some hundred, whatever the number of machines. A share is a task
with a core and, if there are any, a GPU. If its machine or process dies, Ray runs it again
elsewhere. The result of a share depends only on its images and the function, so any number of
machines gives the same sums, up to the order of additions in float64. All machines need nacre, and
the data at the same path.
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
MAX_RETRIES = 10
STOP_CHECK_SECONDS = 1.0
"""Seconds between two checks whether the user stopped the pass."""


@dataclass(frozen=True)
class SharedPass:
    """The common input of all tasks of a pass: Ray sends it once to each machine."""

    network: Network
    function: Callable[[Network, Iterator[Batch]], Any]
    dataset: TrainDataset
    num_shares: int
    may_be: Tensor | None
    train: TrainConfig

    def run(self, share: int) -> Any:
        """Call the function on a share, in a process of the cluster."""
        device = choose_device(self.train.device)
        configure_backends(self.train.precision, device)
        return self.function(self.network.to(device), self.batches(share, device))

    def batches(self, share: int, device: torch.device) -> Iterator[Batch]:
        """Yield the batches of a share."""
        may_be = None if self.may_be is None else self.may_be.to(device)
        batch_size = self.train.test_batch(1)
        for sample in plain_batches(self.dataset, batch_size, share, self.num_shares, 0):
            images, targets, folder = (x.to(device) for x in sample)
            rows = None if may_be is None else may_be[folder].expand(len(images), -1, -1)
            yield Batch(images, targets, may_be=rows, folder=int(folder))


def ray_mapper(step: Step) -> Mapper:
    """Return a function that runs a pass over a step's images on a Ray cluster.

    It yields the results of all shares in the order in which they end. The function of the pass is
    sent with everything it refers to.
    """
    if step.dist.world_size > 1:
        raise NacreError("train.passes_on=ray: Ray replaces torchrun's processes; use one of both")
    num_shares = math.ceil(len(step.data) / IMAGES_PER_SHARE)

    def map_shares(function: Callable[[Network, Iterator[Batch]], T]) -> Iterator[T]:
        network = copy.deepcopy(step.network).cpu()
        train = step.config.train
        work = SharedPass(network, function, step.data, num_shares, step.may_be, train)
        ray = join_cluster("train.passes_on=ray")
        try:
            for done, task in enumerate(_ended(ray, work, step.should_stop), start=1):
                yield _result(ray, task)
                step.observe(Iterated(step.number, step.iterations * done // num_shares))
        finally:
            ray.shutdown()

    return map_shares


def _ended(ray: Any, work: SharedPass, should_stop: Callable[[], bool]) -> Iterator[Any]:
    """Submit a task per share; yield the tasks as they end."""
    resources = ray.cluster_resources()
    gpus = min(1, int(resources.get("GPU", 0)))
    task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=MAX_RETRIES)(SharedPass.run)
    common = ray.put(work)
    shares = iter(range(work.num_shares))
    # More tasks would only fill the memory with results that are not added yet.
    max_running = max(2, 2 * int(resources.get("GPU" if gpus else "CPU", 1)))
    running = [task.remote(common, share) for share in islice(shares, max_running)]
    while running:
        if should_stop():
            raise Interrupted
        ended, running = ray.wait(running, timeout=STOP_CHECK_SECONDS)
        for one in ended:
            running += [task.remote(common, share) for share in islice(shares, 1)]
            yield one


def _result(ray: Any, task: Any) -> Any:
    """Return the result of a task; raise its error as one sentence."""
    try:
        return ray.get(task)
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, NacreError):
            raise NacreError(str(cause)) from error
        last = str(error).strip().splitlines()[-1]
        raise NacreError(f"Ray could not process a share of the images: {last}") from error
