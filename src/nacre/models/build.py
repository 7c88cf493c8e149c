"""Making a network from its config, or for a model file.

A package adds a kind of network through the entry point group ``nacre.models`` (name = the kind,
object = a `Kind`). It is imported only if a config names it, so that a broken package breaks
nothing else.

The header of a model file may come from a stranger, and building the network that it describes
could take any amount of memory and time. So `rebuild` checks it first:

1. its config passes `ModelConfig.check_file`: no paths, no repositories, only names of a library;
2. no number in it is larger than the tensors beside it could need;
3. the network is built on torch's meta device, which has no memory, from not many more tensors
   than the file has, and its shapes are compared with the file's;
4. only then is it built.

A few networks cannot be built on the meta device. Their construction is stopped as soon as they are
larger than the file.
"""

from __future__ import annotations

import contextlib
import copy
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as registration

from nacre.errors import NacreError, check, shown
from nacre.models import deeplab, external
from nacre.models.config import AdapterConfig, DeepLabConfig, ExternalConfig, ModelConfig
from nacre.models.network import Network
from nacre.models.probe import until_left
from nacre.utils.system import find_entry

OWN = "deeplab"
"""The kind of our own networks, and the default."""


@dataclass(frozen=True)
class Kind:
    """A kind of network; entry points of the group ``nacre.models`` are of this class.

    Attributes:
        config: the class of its configs.
        build: makes a network from a config, the channels of each step that was learned (step 0's
            include the background), the side of the training crops, and whether to load weights.
            The network's `config` is enough to build it again without files or downloads.
        make: for a network in an adapter: makes only the library's module with a number of
            classes, with random weights and without running it.
    """

    config: type[ModelConfig]
    build: Callable[[Any, Sequence[int], int | None, bool], Network]
    make: Callable[[Any, int], nn.Module] | None = None


KINDS: dict[str, Kind] = {
    OWN: Kind(DeepLabConfig, deeplab.build),
    "external": Kind(ExternalConfig, external.build, external.make),
}


def find_kind(name: str) -> Kind:
    """Return the kind of network with a name.

    Raises:
        NacreError: there is none, or its package is broken.
    """
    return find_entry(KINDS, name, "nacre.models", Kind, "kind of network", "model.kind")


def is_own_network(raw: Mapping[str, Any]) -> bool:
    """Return True if plain config values describe a network of ours."""
    return issubclass(model_config_type(raw), DeepLabConfig)


def model_config_type(raw: Mapping[str, Any]) -> type[ModelConfig]:
    """Return the class of config for the plain values under ``model``."""
    return find_kind(str(raw.get("kind", OWN))).config


def read_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Return the typed config of a network from plain values, such as those of a model file."""
    return check(model_config_type(raw), dict(raw))


def build_network(
    config: ModelConfig,
    classes_per_step: int | list[int],
    crop: int | None = None,
    *,
    load: bool = True,
) -> Network:
    """Make a network.

    Args:
        config: describes the network.
        classes_per_step: channels of each step that was learned (step 0's include the background),
            or only those of step 0.
        crop: side of the training crops in pixels, which is the window of the decoder's pooling at
            test time; None pools over the whole image.
        load: start from `config.weights`; otherwise the network is random.
    """
    steps = [classes_per_step] if isinstance(classes_per_step, int) else classes_per_step
    return find_kind(config.kind).build(config, steps, crop, load)


# The network of a model file

State = Mapping[str, Tensor]

MAX_FREE_NUMBER = 4096
"""Numbers up to this may be sides of images or rates, which no tensor limits."""
MAX_FREE_BUFFERS = 2**24
"""Elements of buffers that files do not contain, such as position embeddings."""


class Misfit(NacreError):
    """The header of a model file describes another network than its tensors."""


@dataclass(frozen=True)
class Rows:
    """Channels of a scoring layer of an external network.

    Attributes:
        first: in step 0, as the network is made.
        now: after all steps, as the file contains them.
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
    """Build the network that the header of a model file describes, and load its tensors.

    `given` is a network like the one that the first step started from, if a program passes one.

    Raises:
        NacreError: the header has a forbidden value, or describes other tensors.
    """
    config = read_model_config(raw)
    config.check_file()
    _check_numbers(raw, state)
    if given is not None:
        if not (isinstance(config, ExternalConfig) and external.is_given(config)):
            raise NacreError(
                f"its header says how to build its network (kind {config.kind!r}): leave out "
                "network=…"
            )
        network: Network = _copy_given(given, config, steps, state)
    else:
        build = partial(build_network, config, list(steps), crop, load=False)
        _compare_without_memory(partial(_compare, config, steps, state, build), state)
        network = build()
    network.match_state(state)
    network.load_state_dict(state)
    return network


def _compare_without_memory(compare: Callable[[], None], state: State) -> None:
    """Build a network and compare it with a file, without memory if possible."""
    tensors, elements = 10_000 + 10 * len(state), _count(state.values())
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]), _at_most(tensors):
            compare()
    except Misfit:
        raise
    except Exception:  # mostly a library that reads the value of a tensor
        with _at_most(tensors, 2**24 + 2 * elements):
            compare()


def _compare(
    config: ModelConfig,
    steps: Sequence[int],
    state: dict[str, Tensor],
    build: Callable[[], Network],
) -> None:
    """Build the network of a config on the current device and compare it with a file."""
    make = find_kind(config.kind).make
    if isinstance(config, AdapterConfig) and make is not None:
        rows = _rows(config, steps)
        check_shapes(make(config, rows.first), _inner(state), rows)
    else:
        network = build()
        network.match_state(state)
        check_shapes(network, state)


def _rows(config: AdapterConfig, steps: Sequence[int]) -> Rows:
    first = external.num_outputs(config, steps)
    return Rows(first, first + sum(config.own_steps(steps)[1:]))


def _copy_given(
    given: nn.Module, config: ExternalConfig, steps: Sequence[int], state: State
) -> Network:
    """Return an adapter around a copy of a given network, which may know some of the steps."""
    model, rows = copy.deepcopy(given).cpu(), _rows(config, steps)
    try:
        check_shapes(model, _inner(state), rows)
    except Misfit as error:
        raise Misfit(
            f"network={type(given).__name__} does not fit the file, which needs a {config.name} of "
            f"{rows.first} classes: {error}"
        ) from error
    return external.adapt(model, config, steps)


def check_shapes(network: nn.Module, state: State, rows: Rows | None = None) -> None:
    """Compare the shapes of a file's tensors with the network's, except rows of new classes.

    Raises:
        Misfit: a tensor is missing or has another shape, or the network needs large buffers.
    """
    built = network.state_dict()
    for name, value in built.items():
        if name not in state:
            raise Misfit(f"it has no tensor {name}")
        actual, expected = tuple(state[name].shape), tuple(value.shape)
        if actual != expected and not (rows and _is_widened(actual, expected, rows)):
            raise Misfit(f"{name} is {_size(actual)} instead of {_size(expected)}")
    unsaved = _count(value for name, value in network.named_buffers() if name not in built)
    if unsaved > max(MAX_FREE_BUFFERS, _count(state.values())):
        raise Misfit(f"its network needs {unsaved:,} numbers beside its tensors")


def _size(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape)) or "a number"


def _is_widened(actual: Sequence[int], expected: Sequence[int], rows: Rows) -> bool:
    """Return True if a shape differs from another only by rows of new classes."""
    differing = [(a, b) for a, b in zip(actual, expected, strict=False) if a != b]
    if len(actual) != len(expected) or len(differing) != 1:
        return False
    now, before = differing[0]
    return now == rows.now and rows.first <= before < now


def _check_numbers(raw: Any, state: State) -> None:
    """Refuse a config with a number that is larger than any side of the tensors."""
    largest = max([MAX_FREE_NUMBER, *(side for tensor in state.values() for side in tensor.shape)])
    pending = [raw]
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, int | float) and not abs(value) <= largest:
            raise Misfit(f"its header has the number {shown(value)}, and no tensor is that large")


@contextlib.contextmanager
def _at_most(tensors: int, elements: int | None = None) -> Iterator[None]:
    """Stop the construction of a network with more tensors and modules, or more elements."""
    thread, num_tensors, num_elements = threading.get_ident(), 0, 0

    def count(module: nn.Module, name: str, value: Any) -> None:
        nonlocal num_tensors, num_elements
        if threading.get_ident() != thread:
            return
        num_tensors += 1
        num_elements += value.numel() if isinstance(value, Tensor) else 0
        if num_tensors > tensors or (elements is not None and num_elements > elements):
            raise Misfit("its header describes a larger network than its tensors")

    hooks = [
        registration.register_module_parameter_registration_hook(count),
        registration.register_module_buffer_registration_hook(count),
        registration.register_module_module_registration_hook(count),
    ]
    with until_left(hooks):
        yield


def _count(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def _inner(state: State) -> dict[str, Tensor]:
    """Return the tensors of the network inside an adapter, by its own names."""
    return {name.removeprefix("model."): value for name, value in state.items()}
