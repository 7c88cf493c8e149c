"""A small network of every kind, as a config names it."""

from typing import Any, Literal

from torch import Tensor, nn

from nacre.models.adapter import Adapter
from nacre.models.build import KINDS, Kind
from nacre.models.config import AdapterConfig
from nacre.models.external import adapt, num_outputs

MODELS: dict[str, dict[str, Any]] = {
    "deeplab": {"backbone": "tiny", "decoder_channels": 8},
    "deeplab lite1": {
        "backbone": "lite1",
        "weights": "imagenet",
        "decoder_channels": 8,
    },
    "transformers": {
        "kind": "external",
        "library": "transformers",
        "name": "segformer",
        "weights": "none",
        "options": {
            "hidden_sizes": [8, 8, 16, 16],
            "depths": [1, 1, 1, 1],
            "decoder_hidden_size": 16,
            "drop_path_rate": 0.0,
            "classifier_dropout_prob": 0.0,
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
        },
    },
    "timm": {"backbone": "timm/resnet10t", "decoder_channels": 8, "output_stride": 8},
    "smp": {
        "kind": "external",
        "library": "smp",
        "name": "Unet/resnet18",
        "weights": "none",
    },
    "torchvision": {
        "kind": "external",
        "library": "torchvision",
        "name": "lraspp_mobilenet_v3_large",
        "weights": "none",
    },
    "plain": {"kind": "plain", "stages": ["body.0", "body"]},
}


class WithAux(nn.Module):
    """A network with batch norm and an auxiliary head, which no loss of nacre uses."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 1),
        )
        self.score = nn.Conv2d(width, num_classes, 1)
        self.aux = nn.Conv2d(width, num_classes, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        features = self.body(images)
        up = nn.functional.interpolate(
            self.score(features.relu()), images.shape[-2:], mode="bilinear"
        )
        return {"out": up, "aux": self.aux(features)}


class PlainConfig(AdapterConfig):
    """A kind of network that a package could add through an entry point."""

    kind: Literal["plain"] = "plain"


def make(config: PlainConfig, num_classes: int) -> nn.Module:
    return WithAux(num_classes, 8)


def build(config: PlainConfig, classes_per_step: Any, crop: Any, load: bool) -> Adapter:
    model = make(config, num_outputs(config, classes_per_step))
    return adapt(model, config, classes_per_step)


KINDS["plain"] = Kind(PlainConfig, build, make)
