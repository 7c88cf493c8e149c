"""Building the network that a model file describes, without believing the file.

A header is a stranger's text, and building what it says may take any amount of memory and time. So

1. its config passes `ModelConfig.check_file`: names that a library knows, no path, no repository;
2. no number in it is larger than what the tensors beside it could need;
3. the network is built where tensors have no memory, out of not many more tensors than the file
   has, and its shapes are compared with the file's;
4. only then is it built.

Few networks cannot be built without memory. These are stopped while they are built, as soon as they
are larger than the file.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registration

from nacre.errors import NacreError, shown
from nacre.models.build import build_network, find_kind, read_model_config
from nacre.models.config import AdapterConfig, ExternalConfig, ModelConfig
from nacre.models.external import adapt, check_given, num_outputs
from nacre.models.network import Network
from nacre.models.probe import until_left

State = Mapping[str, Tensor]

_ANY_NUMBER = 4096
"""Numbers up to here may be sides of images or rates, of which no tensor tells."""
_ANY_BUFFERS = 2**24
"""Elements of buffers that no file holds, such as tables of positions."""


class Misfit(NacreError):
    """A header that describes another network than the tensors of its file make."""


@dataclass(frozen=True)
class Rows:
    """Channels of a scoring layer of another library's network.

    Attributes:
        first: in step 0, as the network is made.
        now: after all steps, as its file has them.
    """

    first: int
    now: int


def rebuild(
    raw: Mapping[str, Any],
    steps: Sequence[int],
    crop: int,
    state: dict[str, Tensor],
    given: nn.Module | None = None,
) -> Network:
    """Build the network of a model file, as its header says, and load its tensors.

    `given` is the network that the file was learned from, if the caller has brought it.

    Raises:
        NacreError: the header asks for what it may not, or for other tensors than there are.
    """
    config = read_model_config(raw)
    config.check_file()
    check_given(config, given)
    _check_numbers(raw, state)
    rows = None
    if isinstance(config, AdapterConfig):
        first = num_outputs(config, steps)
        rows = Rows(first, first + sum(config.own_steps(steps)[1:]))
    if given is not None:
        assert isinstance(config, ExternalConfig)
        assert rows is not None
        network: Network = _from_given(given, config, steps, state, rows)
    else:
        network = _from_config(config, steps, crop, state, rows)
    network.match_state(state)
    network.load_state_dict(state)
    return network


def _from_config(
    config: ModelConfig,
    steps: Sequence[int],
    crop: int,
    state: dict[str, Tensor],
    rows: Rows | None,
) -> Network:
    tensors, elements = 10_000 + 10 * len(state), _count(state.values())
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]), _at_most(tensors):
            _compare_config(config, steps, crop, state, rows)
    except Misfit:
        raise
    except Exception:  # mostly a library that asks a tensor for its value
        with _at_most(tensors, 2**24 + 2 * elements):
            _compare_config(config, steps, crop, state, rows)
    return build_network(config, list(steps), crop, load=False)


def _compare_config(
    config: ModelConfig,
    steps: Sequence[int],
    crop: int,
    state: dict[str, Tensor],
    rows: Rows | None,
) -> None:
    """Build the network of a config on the current device, and compare it with a file."""
    make = find_kind(config.kind).make
    if make is None or rows is None:
        network = build_network(config, list(steps), crop, load=False)
        network.match_state(state)
        check_shapes(network, state)
    else:
        check_shapes(make(config, rows.first), _inner(state), rows)


def _from_given(
    given: nn.Module, config: ExternalConfig, steps: Sequence[int], state: State, rows: Rows
) -> Network:
    """Return a copy of a network that was given, as wide as the file's."""
    model, inner = copy.deepcopy(given).cpu(), _inner(state)
    problems = []
    for i in range(1, len(config.own_steps(steps)) + 1):  # it may have learned some of the steps
        width = rows.first + sum(steps[1:i])
        try:
            check_shapes(model, inner, Rows(width, rows.now))
        except Misfit as error:
            problems.append(error)
        else:
            return adapt(model, config, [sum(steps[:i]), *steps[i:]])
    raise Misfit(
        f"network={type(given).__name__} is not what it was learned from, a {config.name} of "
        f"{rows.first} classes: {problems[0]}"
    )


def check_shapes(network: nn.Module, state: State, rows: Rows | None = None) -> None:
    """Refuse a file whose tensors are not of the network's shapes, but for rows of new classes.

    Raises:
        Misfit: a tensor is not there or of another shape, or there are large ones beside.
    """
    built = network.state_dict()
    for name, value in built.items():
        if name not in state:
            raise Misfit(f"it has no tensor {name}")
        found, wanted = tuple(state[name].shape), tuple(value.shape)
        if found != wanted and not (rows and _is_widened(found, wanted, rows)):
            shapes = [" x ".join(map(str, one)) or "a number" for one in (found, wanted)]
            raise Misfit(f"{name} is {shapes[0]}, and its network asks for {shapes[1]}")
    unsaved = _count(one for name, one in network.named_buffers() if name not in built)
    if unsaved > max(_ANY_BUFFERS, _count(state.values())):
        raise Misfit(f"its network needs {unsaved:,} numbers beside its tensors")


def _is_widened(found: Sequence[int], wanted: Sequence[int], rows: Rows) -> bool:
    """Return whether a shape is another one with the rows of new classes."""
    differing = [(a, b) for a, b in zip(found, wanted, strict=False) if a != b]
    return len(found) == len(wanted) and differing == [(rows.now, rows.first)]


def _check_numbers(raw: Any, state: State) -> None:
    """Refuse a config with a number that is larger than all that the tensors are made of."""
    largest = max([_ANY_NUMBER, *(side for one in state.values() for side in one.shape)])
    level = [raw]
    while level:
        one = level.pop()
        if isinstance(one, Mapping):
            level += one.values()
        elif isinstance(one, list | tuple):
            level += one
        elif isinstance(one, int | float) and not abs(one) <= largest:
            raise Misfit(f"its header says {shown(one)}, and no tensor is that large")


@contextlib.contextmanager
def _at_most(tensors: int, elements: int | None = None) -> Iterator[None]:
    """Stop the making of a network of more tensors or modules, or of more numbers, than this."""
    thread, seen, size = threading.get_ident(), 0, 0

    def count(module: nn.Module, name: str, value: Any) -> None:
        nonlocal seen, size
        if threading.get_ident() != thread:
            return
        seen += 1
        size += value.numel() if isinstance(value, Tensor) else 0
        if seen > tensors or (elements is not None and size > elements):
            raise Misfit("its header describes a larger network than its tensors are")

    handles = [
        registration.register_module_parameter_registration_hook(count),
        registration.register_module_buffer_registration_hook(count),
        registration.register_module_module_registration_hook(count),
    ]
    with until_left(handles):
        yield


def _count(tensors: Any) -> int:
    return sum(one.numel() for one in tensors)


def _inner(state: State) -> dict[str, Tensor]:
    """Return the tensors of the network within an adapter, by its own names."""
    return {name.removeprefix("model."): one for name, one in state.items()}
