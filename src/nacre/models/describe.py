"""What a network costs, computed before it is trained and without its memory.

Networks are built on the `meta` device, where tensors have shapes and no content: one forward
pass there gives FLOPs and, through the hooks for saved tensors, the bytes that autograd keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nacre.models.network import Network


def kept_bytes(network: Network, images: Tensor) -> int:
    """Return what a training step keeps for its backward pass, parameters not counted.

    Tensors that share memory count once, as convolutions and norms keep the same ones.
    """
    own = {_storage(value) for value in (*network.parameters(), *network.buffers())}
    kept: dict[int, tuple[int, Tensor]] = {}

    def keep(value: Tensor) -> Tensor:
        if _storage(value) not in own:
            # the tensor is held so that its storage's address is not given to another one
            kept[_storage(value)] = (value.untyped_storage().nbytes(), value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        network.train()(images)
    return sum(size for size, _ in kept.values())


def _storage(value: Tensor) -> int:
    address: int = value.untyped_storage()._cdata
    return address
