"""Endpoint weight fusion (EWF): after a step, old and new weights in one.

A step is learnt as `mib` or `plop` learns it, with the old rows of the classifier frozen, and then

    W = (1 - a) W_old + a W_new,     a = sqrt(N / (O + N))

for everything the old network had: weights, batch norm with its running statistics, old rows. O are
the old channels, background included, N the new ones, whose rows stay as they were learnt. It takes
no time and no memory in training. A single step of one class hardly learns, as a is small:
`parts.fusion` can be a number.

MiB is its base unless told otherwise, with the weight 10 also in VOC 15-1, 100 in ADE20K's 100-10
and 100-5, as in the released scripts. Any other method has the same with `parts.fusion=sqrt` and
`parts.freeze_old_rows=true`.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from nacre.methods.base import Batch, Method, MethodConfig
from nacre.methods.mib import Mib, MibConfig
from nacre.methods.plop import Plop, PlopConfig, PodConfig
from nacre.models.network import Network, Output


class EwfConfig(PodConfig):
    """What a step is learnt by, and its weights."""

    name: Literal["ewf"] = Field("ewf", description="endpoint weight fusion")
    base: Literal["mib", "plop"] = Field("mib", description="the method that learns a step")
    weight: float = Field(10.0, ge=0, description="weight of mib's distillation")

    @classmethod
    def own_parts(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return EWF's, and the base's own."""
        base = PlopConfig.own_parts(values) if values.get("base") == "plop" else {}
        return base | {"fusion": "sqrt", "freeze_old_rows": True}


class Ewf(Method):
    """A base method whose steps end with a fusion of the weights."""

    name = "ewf"
    title = "EWF"
    summary = "mib or plop, and a fusion of old and new weights after each step"
    regularizes = "weights, after the step"
    paper = "Xiao et al. 2023"
    Config = EwfConfig
    presets = {
        **Plop.presets,
        "paper ade20k/100-10": {"weight": 100},
        "paper ade20k/100-5": {"weight": 100},
    }
    train_presets = {"paper ade20k/100-50": {"batch_size": 48}}
    tunable = ("weight",)
    uses_teacher = True
    extra_param_copies = 1
    config: EwfConfig

    def __init__(self, config: MethodConfig, num_old: int) -> None:
        super().__init__(config, num_old)
        self.base: Method = Mib(MibConfig(name="mib", weight=self.config.weight), num_old)
        if self.config.base == "plop":
            pod = {"pod": self.config.pod, "pod_logits": self.config.pod_logits}
            self.base = Plop(PlopConfig(name="plop", **pod), num_old)
        self.uses_stages, self.needs = self.base.uses_stages, self.base.needs
        self.parts.unsure, self.parts.weigh_images = self.base.unsure, self.base.weighs_images

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Say which cross-entropy the base has."""
        assert isinstance(config, EwfConfig)
        return config.base == "mib"

    def grow(self, network: Network, num_new: int) -> None:
        """Let new rows start as the base's do."""
        self.base.grow(network, num_new)

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the base's losses."""
        return self.base.losses(batch, student, teacher)
