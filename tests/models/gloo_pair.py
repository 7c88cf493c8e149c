"""One of two gloo processes: call a function of a test file and write down what it returns.

python gloo_pair.py RANK PORT FILE FUNCTION RESULT
"""

from __future__ import annotations

import importlib
import importlib.util
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from nacre.utils.distributed import exit_process, leave_distributed


def _function(file: str, name: str) -> Any:
    spec = importlib.util.spec_from_file_location("test_file", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["test_file"] = module
    spec.loader.exec_module(module)
    return getattr(module, name)


def main(rank: str, port: str, file: str, name: str, result: str) -> None:
    torch.set_num_threads(1)
    function = _function(file, name)
    address = f"tcp://127.0.0.1:{port}"
    importlib.import_module("torch._dynamo")  # before the group, as init_distributed does
    dist.init_process_group("gloo", init_method=address, rank=int(rank), world_size=2)
    Path(result).write_bytes(pickle.dumps(function(int(rank))))
    leave_distributed()
    exit_process(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
