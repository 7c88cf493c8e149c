"""Run a function in two gloo processes and collect what each returns."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def _free_port() -> int:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def _work(rank: int, port: int, function: Callable[..., Any], args: Any, queue: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    try:
        queue.put((rank, function(rank, *args)))
    finally:
        dist.destroy_process_group()


def in_two_processes(function: Callable[..., Any], *args: Any) -> list[Any]:
    """Return `[function(0, *args), function(1, *args)]`, each computed in its own process.

    Tensors must be returned as numpy arrays or lists: their memory dies with the process.
    """
    context = multiprocessing.get_context("spawn")
    queue, port = context.Queue(), _free_port()
    workers = [
        context.Process(target=_work, args=(rank, port, function, args, queue), daemon=True)
        for rank in range(2)
    ]
    for worker in workers:
        worker.start()
    results = dict(queue.get(timeout=120) for _ in workers)
    for worker in workers:
        worker.join()
    return [results[0], results[1]]
