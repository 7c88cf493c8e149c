"""What a network costs, computed before it is trained and without its memory.

Networks are built on the `meta` device, where tensors have shapes and no content: one forward
pass there gives FLOPs and, through the hooks for saved tensors, the bytes that autograd keeps. For
mixed precision, of which that device knows nothing, tensors pretend to be on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from nacre.errors import NacreError
from nacre.models.backbones import BACKBONES
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.kinds.deeplab import build

_FLOAT32 = 4  # bytes


@dataclass(frozen=True)
class Description:
    """Size and cost of a network; memory in bytes.

    Attributes:
        config: the network.
        num_classes: channels of the classifier, background included.
        crop: side of the training crops in pixels.
        batch: crops in memory at once.
        stride: input pixels per feature.
        parameters: of the backbone, the head and the classifier.
        flops: of the forward pass of one crop, a multiplication and an addition counting two.
        precision: of what is kept; parameters, gradients and logits are float32 in any case.
        kept: for the backward pass of a batch, with the network's own norm, and in mixed precision
            the weights as convolutions take them.
        kept_plain: the same with batch norm and leaky ReLU (lite0: its ReLU6) as separate layers.
        kept_inplace: the same with in-place ABN; None where the backbone cannot have it.
        state: parameters, gradients and momentum.
        teacher: parameters of the frozen network of the step before.
        logits: of a batch at full size, which losses hold unless they are fused.
    """

    config: DeepLabConfig
    num_classes: int
    crop: int
    batch: int
    stride: int
    parameters: dict[str, int]
    flops: int
    precision: str
    kept: int
    kept_plain: int
    kept_inplace: int | None
    state: int
    teacher: int
    logits: int


def describe(
    config: DeepLabConfig,
    num_classes: int,
    *,
    crop: int = 512,
    batch: int = 24,
    precision: torch.dtype = torch.float32,
) -> Description:
    """Compute what training a network takes.

    Args:
        config: the network; its weights are not loaded.
        num_classes: channels of the classifier, background included.
        crop: side of the training crops in pixels.
        batch: crops in memory at once, on one device.
        precision: in which the network computes.

    Raises:
        NacreError: a batch of 1 cannot be normalised in training.
    """
    if min(num_classes, crop) < 1 or batch < 2:
        raise NacreError(
            f"cannot describe {num_classes} classes, crop {crop} and batch {batch}: classes and "
            "crop are 1 or more, and training normalises over a batch of 2 or more"
        )
    network = _on_meta(config, num_classes, crop)
    parameters = {name: _count(part) for name, part in network.named_children()}
    total = sum(parameters.values())
    kept = {
        norm: _kept_with(config, norm, num_classes, crop, batch, precision)
        for norm in {config.norm, *_comparable(config)}
    }
    return Description(
        config=config,
        num_classes=num_classes,
        crop=crop,
        batch=batch,
        stride=network.stride,
        parameters=parameters,
        flops=_flops(network, crop),
        precision=str(precision).removeprefix("torch."),
        kept=kept[config.norm],
        kept_plain=kept["abn"],
        kept_inplace=kept.get("iabn"),
        state=3 * total * _FLOAT32,
        teacher=total * _FLOAT32,
        logits=batch * num_classes * crop * crop * _FLOAT32,
    )


def _comparable(config: DeepLabConfig) -> tuple[str, ...]:
    return tuple(norm for norm in BACKBONES[config.backbone].norms if norm != "bn")


def _on_meta(config: DeepLabConfig, num_classes: int, crop: int) -> DeepLab:
    with torch.device("meta"):
        return build(config, [num_classes], crop, load=False)


def _count(module: nn.Module) -> int:
    return sum(value.numel() for value in module.parameters())


def _flops(network: DeepLab, crop: int) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        network.eval()(torch.empty(1, 3, crop, crop, device="meta"))
    return counter.get_total_flops()


def _kept_with(
    config: DeepLabConfig,
    norm: str,
    num_classes: int,
    crop: int,
    batch: int,
    precision: torch.dtype,
) -> int:
    config = config.model_copy(update={"norm": norm})
    shape = (batch, 3, crop, crop)
    if precision == torch.float32:
        return kept_bytes(_on_meta(config, num_classes, crop), torch.empty(shape, device="meta"))
    with FakeTensorMode(), torch.autocast("cpu", precision):
        network = build(config, [num_classes], crop, load=False)
        return kept_bytes(network, torch.empty(shape))


def kept_bytes(network: nn.Module, images: Tensor) -> int:
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
