"""Image lists that other people published: ``train-K.npy``, positions in the name-sorted list.

They are taken as they are if they fit the task; a list that does not (a file that is missing, a
position beyond the data, an image without a class of its step, in the disjoint setup an image
with a future class) is refused with what does not fit.
"""

import io
import math
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format

from nacre.errors import NacreError
from nacre.scenarios.label_index import Index
from nacre.scenarios.scenario import ImageLists, Scenario, step_images
from nacre.utils.io import read_bytes

SHOWN = 3


def read_lists(folder: Path, scenario: Scenario, index: Index) -> ImageLists:
    """Read the list of every step of a scenario and check that it fits."""
    beyond = folder / f"train-{len(scenario.classes.steps)}.npy"
    if beyond.exists():
        raise NacreError(
            f"{folder} does not fit {scenario.name!r}: the task has {len(scenario.classes.steps)} "
            f"steps, but there is {beyond.name} too"
        )
    lists = tuple(
        _read(folder / f"train-{step}.npy", len(index))
        for step in range(len(scenario.classes.steps))
    )
    for step, images in enumerate(lists):
        _check(folder / f"train-{step}.npy", scenario, index, step, images)
    if scenario.setup != "overlapped":
        _check_disjoint(folder, lists, index)
    return lists


def compare_lists(lists: ImageLists, scenario: Scenario, index: Index) -> str:
    """Say how published lists differ from those that the scenario's own rule gives."""
    pairs = zip(lists, step_images(scenario, index), strict=True)
    differing = [
        f"step {step}: {len(set(theirs) - set(ours))} images more, "
        f"{len(set(ours) - set(theirs))} fewer"
        for step, (theirs, ours) in enumerate(pairs)
        if set(theirs) != set(ours)
    ]
    if not differing:
        return f"the lists are those of the rule of {scenario.setup!r}"
    return f"the lists fit the task but differ from the rule of {scenario.setup!r}: " + "; ".join(
        differing
    )


def _read(path: Path, images: int) -> tuple[int, ...]:
    positions = _read_array(path)
    if positions.ndim != 1 or positions.dtype.kind not in "iu" or not positions.size:
        raise NacreError(
            f"{path} is not a list of positions: {positions.ndim} dimension(s) of "
            f"{positions.dtype}, {positions.size} values"
        )
    outside = positions[(positions < 0) | (positions >= images)]
    if outside.size:
        raise NacreError(
            f"{path} names position {outside[0]}, but the data has {images} images (from 0)"
        )
    unique = np.unique(positions)
    if len(unique) != len(positions):
        raise NacreError(f"{path} names {len(positions) - len(unique)} image(s) more than once")
    return tuple(unique.tolist())


def _read_array(path: Path) -> npt.NDArray[Any]:
    content = read_bytes(path, "the list")
    try:
        return _array(content)
    except (ValueError, TypeError, EOFError, OverflowError, SyntaxError, TokenError) as error:
        reason = " ".join(str(error).split())[:200]
        raise NacreError(
            f"could not read the list {path}: not a whole .npy file: {reason}"
        ) from error


def _array(content: bytes) -> npt.NDArray[Any]:
    """Return the array in a .npy file, which must be as large as its header says."""
    stream = io.BytesIO(content)
    headers = {(1, 0): format.read_array_header_1_0, (2, 0): format.read_array_header_2_0}
    version = format.read_magic(stream)
    if version not in headers:
        raise ValueError(f"its version is {version}")
    shape, _, dtype = headers[version](stream)
    rest = content[stream.tell() :]
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(rest):
        raise ValueError(f"its header says {shape} of {dtype}, but {len(rest)} bytes follow")
    return np.frombuffer(rest, dtype).reshape(shape)


def _check(
    path: Path, scenario: Scenario, index: Index, step: int, images: tuple[int, ...]
) -> None:
    new = frozenset(scenario.classes.new(step))
    without = [i for i in images if not index.labels[i] & new]
    if without:
        raise NacreError(
            f"{path} does not fit {scenario.name!r}: {_some(without, index)} of its "
            f"{len(images)} images hold no class of step {step}"
        )
    if scenario.setup == "disjoint":
        future = frozenset(scenario.classes.future(step))
        early = [i for i in images if index.labels[i] & future]
        if early:
            raise NacreError(
                f"{path} does not fit {scenario.name!r}: {_some(early, index)} of its "
                f"{len(images)} images hold a class of a later step"
            )


def _check_disjoint(folder: Path, lists: ImageLists, index: Index) -> None:
    owner: dict[int, int] = {}
    for step, images in enumerate(lists):
        twice = [i for i in images if i in owner]
        if twice:
            raise NacreError(
                f"{folder / f'train-{step}.npy'}: {_some(twice, index)} are in the list of an "
                f"earlier step too (step {owner[twice[0]]})"
            )
        owner |= dict.fromkeys(images, step)


def _some(images: list[int], index: Index) -> str:
    named = ", ".join(index.names[i] for i in images[:SHOWN])
    return f"{len(images)} ({named}{', …' if len(images) > SHOWN else ''})"
