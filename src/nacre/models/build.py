"""Making a network, from its config or for a model file, by its kind.

A kind from another package joins through the entry point group ``nacre.models`` (name = the kind,
object = a `Kind`). It is imported when it is asked for by name: one that is broken breaks only
itself.

The header of a model file is a stranger's text, and building what it says may take any amount of
memory and time. So `rebuild` does not believe it:

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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
"""The kind of our own networks, and what a config means that names none."""


@dataclass(frozen=True)
class Kind:
    """A kind of network; an entry point of the group ``nacre.models`` is one too.

    Attributes:
        config: what can be said about it.
        build: makes it, from its config, the channels of each step that has been learned (step 0's
            with the background), the side of the training crops, and whether to load its weights.
            The network's `config` says how to build it again without files or downloads.
        make: for a network in an adapter: makes the library's module alone, of so many classes,
            with random weights and without running it. `build` puts an adapter around it.
    """

    config: type[ModelConfig]
    build: Callable[[Any, Sequence[int], int | None, bool], Network]
    make: Callable[[Any, int], nn.Module] | None = None


KINDS: dict[str, Kind] = {
    OWN: Kind(DeepLabConfig, deeplab.build),
    "external": Kind(ExternalConfig, external.build, external.make),
}


def find_kind(name: str) -> Kind:
    """Return a kind of networks by name.

    Raises:
        NacreError: there is none, or the package that brings it is broken.
    """
    return find_entry(KINDS, name, "nacre.models", Kind, "kind of network", "model.kind")


def is_own_network(raw: Mapping[str, Any]) -> bool:
    """Return whether plain config values describe a network of ours."""
    return issubclass(model_config_type(raw), DeepLabConfig)


def model_config_type(raw: Mapping[str, Any]) -> type[ModelConfig]:
    """Return the config that belongs to what was written under ``model``."""
    return find_kind(str(raw.get("kind", OWN))).config


def read_model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Return the typed config of a network from plain data, such as a model file's."""
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
        config: which network.
        classes_per_step: channels of each step that has been learned, step 0's with the background;
            or of step 0 alone.
        crop: side of the training crops in pixels, the window of the decoder's pooling at test
            time; None pools over the whole image.
        load: whether to start from `config.weights`; without, the network is random.
    """
    steps = [classes_per_step] if isinstance(classes_per_step, int) else classes_per_step
    return find_kind(config.kind).build(config, steps, crop, load)


# The network of a model file

State = Mapping[str, Tensor]

_ANY_NUMBER = 4096
"""Numbers up to here may be sides of images or rates, of which no tensor tells."""
_ANY_BUFFERS = 2**24
"""Elements of buffers that no file holds, such as position embeddings."""


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
    _check_numbers(raw, state)
    if given is not None:
        if not (isinstance(config, ExternalConfig) and external.is_given(config)):
            raise NacreError(
                f"its header says how to build its network (kind {config.kind!r}): leave out "
                "network=…"
            )
        network: Network = _from_given(given, config, steps, state)
    else:
        build = partial(build_network, config, list(steps), crop, load=False)
        _compare_without_memory(partial(_compare, config, steps, state, build), state)
        network = build()
    network.match_state(state)
    network.load_state_dict(state)
    return network


def _compare_without_memory(compare: Callable[[], None], state: State) -> None:
    """Compare a network that is built with a file, without memory if that can be."""
    tensors, elements = 10_000 + 10 * len(state), _count(state.values())
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]), _at_most(tensors):
            compare()
    except Misfit:
        raise
    except Exception:  # mostly a library that asks a tensor for its value
        with _at_most(tensors, 2**24 + 2 * elements):
            compare()


def _compare(
    config: ModelConfig,
    steps: Sequence[int],
    state: dict[str, Tensor],
    build: Callable[[], Network],
) -> None:
    """Build the network of a config on the current device, and compare it with a file."""
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


def _from_given(
    given: nn.Module, config: ExternalConfig, steps: Sequence[int], state: State
) -> Network:
    """Return a copy of a network that was given; it may have learned some of the steps."""
    model, rows = copy.deepcopy(given).cpu(), _rows(config, steps)
    try:
        check_shapes(model, _inner(state), rows)
    except Misfit as error:
        raise Misfit(
            f"network={type(given).__name__} is not what it was learned from, a {config.name} of "
            f"{rows.first} classes: {error}"
        ) from error
    return external.adapt(model, config, steps)


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
    if len(found) != len(wanted) or len(differing) != 1:
        return False
    (now, before) = differing[0]
    return now == rows.now and rows.first <= before < now


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
