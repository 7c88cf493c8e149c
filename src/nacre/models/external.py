"""Networks of other libraries, and those that a Python program has, as a config names them.

model: {kind: external, library: transformers, name: nvidia/mit-b0}
model: {kind: external, library: smp, name: Unet/resnet34}
model: {kind: external, library: torchvision, name: lraspp_mobilenet_v3_large, weights: none}

All of them are put into an `Adapter`. A network that was given to `nacre.learn` in Python cannot be
built from a name: a file that was learned from one says which class it is of, and the program that
opens the file brings such a network (`nacre.load(path, network=…)`), with the classes that it had
before it was taught.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models import transformers
from nacre.models.adapter import IMAGENET, Adapter
from nacre.models.backbone import check_timm_name
from nacre.models.config import AdapterConfig, ExternalConfig, ModelConfig, PixelsConfig
from nacre.utils.system import import_extra


def build(
    config: ExternalConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network of another library in an adapter."""
    model, again, pixels = _make(
        config, num_outputs(config, classes_per_step), load and config.weights != "none"
    )
    return adapt(model, again, classes_per_step, pixels=pixels)


def make(config: ExternalConfig, num_classes: int) -> nn.Module:
    """Make the library's module alone, with random weights and without running it."""
    model, _, _ = _make(config, num_classes, False)
    return model


def _make(
    config: ExternalConfig, num_classes: int, load: bool
) -> tuple[nn.Module, ExternalConfig, PixelsConfig | None]:
    """Return the library's module, how to build it again, and what it expects of its pixels."""
    if config.library == "transformers":
        return transformers.make(config, num_classes, load)
    if config.library == "python":
        raise NacreError(
            f"its network is a {config.name} that a Python program made: build one of the classes "
            "that it had then and open the file by nacre.load(path, network=…)"
        )
    make_module = _make_smp if config.library == "smp" else _make_torchvision
    again = config.model_copy(update={"weights": "none"})
    return make_module(config, num_classes, load), again, None


def num_outputs(config: AdapterConfig, classes_per_step: Sequence[int]) -> int:
    """Return how many classes the network itself scores in step 0."""
    return classes_per_step[0] - (config.background is None)


def adapt(
    model: nn.Module,
    config: AdapterConfig,
    classes_per_step: Sequence[int],
    *,
    pixels: PixelsConfig | None = None,
) -> Adapter:
    """Put a network between nacre's images and outputs.

    Args:
        model: with the channels of step 0 (`Network.match_state` gives it those of a file); it
            becomes one of float32 if it is of another precision.
        config: what is said about it; the network's own says how to build it again.
        classes_per_step: channels of each step that has been learned.
        pixels: what it expects of its pixels, if the config does not say so.
    """
    if any(one.is_floating_point() and one.dtype != torch.float32 for one in model.parameters()):
        # Losses and updates are of float32; train.precision computes in half.
        model = model.float()
    pixels = config.pixels or pixels or IMAGENET
    adapter = Adapter(
        model,
        background=config.background,
        scoring_layers=config.scoring_layers or None,
        pixels=pixels,
        stages=config.stages,
    )
    adapter.config = config.model_copy(update={"pixels": pixels})
    if config.ledger is not None:
        own = config.own_steps(classes_per_step)
        adapter.add_ledger(config.ledger, classes_per_step[len(own) :])
    return adapter


def is_given(config: ModelConfig) -> bool:
    """Return whether a network was given in Python, and cannot be built."""
    return isinstance(config, ExternalConfig) and config.library == "python"


def describe_given(model: nn.Module) -> ExternalConfig:
    """Return what files say about a network that is given: by its library, or by its class."""
    settings = getattr(model, "config", None)
    if type(model).__module__.startswith("transformers.") and hasattr(settings, "model_type"):
        found = transformers.describe_model(model)
        if found is not None:
            return found
    name = f"{type(model).__module__}.{type(model).__qualname__}"[:300]
    return ExternalConfig(library="python", name=name, weights="none")


def _make_torchvision(config: ExternalConfig, num_classes: int, load: bool) -> nn.Module:
    import_extra("torchvision", "torchvision")
    models = import_extra("torchvision.models", "torchvision")
    known = models.list_models(models.segmentation)
    if config.name not in known:
        raise NacreError(
            f"model.name={shown(config.name)}: torchvision has no such segmentation network"
            f"{did_you_mean(config.name, known)}; known: {', '.join(known)}"
        )
    if config.weights not in ("pretrained", "imagenet", "none"):
        raise NacreError(f"model.weights={config.weights!r}: give 'pretrained' or 'none'")
    weights = "IMAGENET1K_V1" if load else None
    try:
        model: nn.Module = models.get_model(
            config.name, weights=None, weights_backbone=weights, num_classes=num_classes
        )
    except Exception as error:  # such as weights that cannot be had
        raise NacreError(
            f"torchvision cannot make {config.name}: {' '.join(str(error).split())[:300]}"
        ) from error
    return model


def _make_smp(config: ExternalConfig, num_classes: int, load: bool) -> nn.Module:
    smp = import_extra("segmentation_models_pytorch", "smp")
    architecture, _, encoder = config.name.partition("/")
    if encoder.startswith("tu-"):
        check_timm_name(import_extra("timm", "timm"), encoder.removeprefix("tu-"))
    elif encoder not in smp.encoders.encoders:
        hint = did_you_mean(encoder, smp.encoders.encoders)
        raise NacreError(
            f"model.name={shown(config.name)}: smp has no encoder {shown(encoder)}{hint}; give "
            "architecture and encoder, such as Unet/resnet34"
        )
    weights = "imagenet" if config.weights == "pretrained" else config.weights
    try:
        model: nn.Module = smp.create_model(
            architecture,
            encoder_name=encoder,
            encoder_weights=weights if load else None,
            classes=num_classes,
        )
    except Exception as error:  # wrong names, weights that cannot be had
        reason = " ".join(str(error).split())[:300]
        raise NacreError(
            f"smp cannot make {shown(architecture)} with the encoder {encoder!r} and "
            f"weights {config.weights!r}: {reason}"
        ) from error
    return model
