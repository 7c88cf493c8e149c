"""Networks compiled by `torch.compile`, as an option for GPUs.

A norm, its activation and the casts around it become one kernel that reads and writes a map once. A
network is one graph without breaks, whichever norm it has. Its classes are constants in the graph,
so every step compiles anew, student and teacher: some minutes that pay in long runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from nacre.errors import NacreError
from nacre.models.network import Network, Output

BACKEND = "inductor"


def compile_networks(*networks: Network) -> list[Callable[..., Output]]:
    """Return compiled twins that share the networks' weights and modes.

    What was compiled before is forgotten: torch gives up on code of which it has compiled many
    variants, and every step is another.
    """
    torch.compiler.reset()
    return [_compiled(network) for network in networks]


def _compiled(network: Network) -> Callable[..., Output]:
    compiled: Callable[..., Output] = torch.compile(
        network, fullgraph=True, dynamic=False, backend=BACKEND
    )

    def run(*args: Any, **kwargs: Any) -> Output:
        try:
            return compiled(*args, **kwargs)
        except torch._dynamo.exc.TorchDynamoException as error:
            reason = str(error).strip().splitlines()[0]
            raise NacreError(
                f"train.compile_network: the network cannot be compiled here ({reason}); "
                "train.compile_network=false does without"
            ) from error

    return run
