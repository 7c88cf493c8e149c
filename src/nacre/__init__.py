"""nacre teaches a segmentation network new classes step by step, and keeps what it knew.

>>> model = nacre.load("runs/my-run")          # a run folder, a step folder or a model file
>>> model.predict("image.jpg").class_fractions()      # {"background": 0.8, "cat": 0.2}
>>> nacre.learn("birds/", start=model, out="models/birds")
>>> nacre.run("scenes/4-2-2/overlapped", "runs/mib", method="mib", preset="demo")

Names are imported when they are first used, so that ``import nacre`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from nacre.version import __version__

if TYPE_CHECKING:
    from nacre import losses
    from nacre.api.model import Evaluation, Model, learn, load, merge, run
    from nacre.api.own_data import ImageFolder, make_step, save_step
    from nacre.errors import NacreError
    from nacre.evaluation.evaluate import report_forgetting
    from nacre.models.widen import Teacher, widen
    from nacre.predict.prediction import Prediction
    from nacre.training.loop import learn_step
    from nacre.utils.signals import Interrupted

__all__ = [
    "Evaluation",
    "ImageFolder",
    "Interrupted",
    "Model",
    "NacreError",
    "Prediction",
    "Teacher",
    "__version__",
    "learn",
    "learn_step",
    "load",
    "losses",
    "make_step",
    "merge",
    "report_forgetting",
    "run",
    "save_step",
    "widen",
]

_HOMES = {
    "Interrupted": "nacre.utils.signals",
    "NacreError": "nacre.errors",
    "Evaluation": "nacre.api.model",
    "Model": "nacre.api.model",
    "Prediction": "nacre.predict.prediction",
    "learn": "nacre.api.model",
    "load": "nacre.api.model",
    "merge": "nacre.api.model",
    "run": "nacre.api.model",
    # For your own data, steps and training loop.
    "ImageFolder": "nacre.api.own_data",
    "learn_step": "nacre.training.loop",
    "make_step": "nacre.api.own_data",
    "save_step": "nacre.api.own_data",
    "Teacher": "nacre.models.widen",
    "widen": "nacre.models.widen",
    "report_forgetting": "nacre.evaluation.evaluate",
}


def __getattr__(name: str) -> Any:
    if name == "losses":
        return import_module("nacre.losses")
    if name not in _HOMES:
        raise AttributeError(f"module 'nacre' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
