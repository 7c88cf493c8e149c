"""Incremental learning techniques (ILT): distillation of the old channels and of the features.

    loss = cross-entropy (eq. 2) + weight * distillation (eq. 5, 6)
         + feature_weight * mean over all pixels and channels of (f - f_teacher)^2

f are the backbone's features, as in the paper's released implementation. According to the paper's
text they are the output of the decoder, before the classifier: `layer=decoder`.
"""

from typing import Literal

from pydantic import Field
from torch import Tensor

from nacre.losses.reference import at_least_float32
from nacre.methods.base import (
    Batch,
    DistillingConfig,
    Method,
    label_cross_entropy,
    label_losses,
    require_teacher,
)
from nacre.models.network import Output


class IltConfig(DistillingConfig):
    """The weights of the two distillations, and the features to distill."""

    name: Literal["ilt"] = Field("ilt", description="incremental learning techniques")
    weight: float = Field(100.0, ge=0, description="weight of the distillation (paper: 100)")
    feature_weight: float = Field(
        100.0, ge=0, description="weight of the distance between features (paper: 100)"
    )
    layer: Literal["backbone", "decoder"] = Field(
        "backbone",
        description="features to distill: of the backbone (released code) or the decoder (text)",
    )


class Ilt(Method):
    """Cross-entropy, plain distillation, and a distance between features."""

    name = "ilt"
    Config = IltConfig
    presets = {
        # The backbone is frozen in this preset: only the decoder's features can differ.
        "small": {"layer": "decoder", "weight": 10, "feature_weight": 10},
        "demo": {"weight": 5, "feature_weight": 5},
        # The features of lite0 have no activation and are large: with the paper's 100 their
        # distance would outweigh the cross-entropy.
        "learn": {"feature_weight": 1},
        "text": {"average": "pixels", "layer": "decoder"},
    }
    tunable = ("weight", "feature_weight")
    uses_teacher = True
    requires = frozenset({"features"})
    config: IltConfig

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy and both distillations."""
        if not self.num_old:
            return label_cross_entropy(batch, student)
        teacher = require_teacher(teacher)
        losses = label_losses(self.config, batch, student, teacher)
        distance = self._features(student) - self._features(teacher)
        return losses | {"features": self.config.feature_weight * distance.square().mean()}

    def _features(self, output: Output) -> Tensor:
        features = output.features if self.config.layer == "backbone" else output.decoder_features
        # In half precision small distances would vanish.
        return at_least_float32(features)
