"""Tensors in files: tied ones are one again, whatever shares memory can be written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from nacre.errors import NacreError
from nacre.utils.tensor_file import read_tensors, write_tensors


def test_tied_tensors_are_stored_once_and_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    one, other = torch.arange(1000.0), torch.ones(1000)
    write_tensors(path, {"a": one, "b": other, "c": one, "d": one}, {"kind": "test", "more": 1})
    assert path.stat().st_size < 2.5 * 4000
    tensors, content = read_tensors(path, "test", "cpu")
    assert content == {"more": 1}
    assert tensors["a"] is tensors["c"] is tensors["d"]
    assert torch.equal(tensors["c"], one)
    assert torch.equal(tensors["b"], other)


def test_parts_of_one_memory_are_stored_apart(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    whole = torch.arange(12.0).view(3, 4)
    given = {
        "whole": whole,
        "rows": whole[:2],
        "turned": whole.T,
        "as ints": whole.view(torch.int32),
        "wide": whole[0].expand(5, 4),
        "empty": whole[:0],
        "nothing": torch.empty(0),
    }
    write_tensors(path, given, {"kind": "test"})
    tensors, _ = read_tensors(path, "test", "cpu")
    assert tensors.keys() == given.keys()
    for name, value in given.items():
        assert torch.equal(tensors[name], value), name
        assert tensors[name].dtype == value.dtype
    tensors["rows"].zero_()
    assert torch.equal(tensors["whole"], whole)


@pytest.mark.parametrize(
    ("aliases", "reason"),
    [
        ([], r"`aliases` is \[\]"),
        ("a", "`aliases` is 'a'"),
        ({"b": "nowhere"}, "'b' to 'nowhere', which is not another tensor"),
        ({"a": "a"}, "'a' to 'a', which is not another tensor"),
        ({"b": ["a"]}, r"'b' to \['a'\], which is not another tensor"),
        ({"b": "c", "c": "b"}, "which is not another tensor"),
        (5, "`aliases` is 5"),
        (None, "`aliases` is None"),
    ],
)
def test_wrong_aliases_are_one_sentence(aliases: Any, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    header = {"format": 1, "kind": "test", "aliases": aliases}
    save_file({"a": torch.ones(3)}, path, metadata={"nacre": json.dumps(header)})
    with pytest.raises(NacreError, match=f"has a damaged header: .*{reason}"):
        read_tensors(path, "test", "cpu")


def test_float64_stays_on_the_cpu_where_the_device_is_metal(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"sums": torch.ones(3, dtype=torch.float64)}, {"kind": "test"})
    tensors, _ = read_tensors(path, "test", "mps")
    assert tensors["sums"].device.type == "cpu"
    assert tensors["sums"].tolist() == [1, 1, 1]
