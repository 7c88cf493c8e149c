"""Presets: named values that lie under a user's own config."""

from typing import Any

from nacre.errors import unknown_name
from nacre.scenarios.scenario import ScenarioFile

PAPER_EPOCHS = {"voc": 30, "ade20k": 60}

PRESETS: dict[str, dict[str, Any]] = {
    # The network and recipe of the paper; a matter of GPUs and days.
    "paper": {
        "model": {"backbone": "resnet101", "output_stride": 16, "norm": "iabn"},
        "pictures": {"crop": 512},
        "train": {"epochs": 30, "batch": 24, "lr": 0.01, "next_lr": 0.001},
    },
    # A pretrained small network on small pictures: a CPU in minutes.
    "small": {
        "model": {"backbone": "lite0", "weights": "imagenet", "head_width": 128},
        "pictures": {"crop": 160},
        "train": {"epochs": 3, "batch": 16, "lr": 0.05, "next_lr": 0.01},
    },
    # Generated scenes and a tiny network: what `nacre demo` learns.
    "demo": {
        "model": {"backbone": "tiny", "head_width": 32, "dilations": [1, 2, 4]},
        "pictures": {"crop": 64, "augmentation": "flip"},
        "train": {"epochs": 4, "next_epochs": 3, "lr": 0.2, "next_lr": 0.06},
    },
}


# The methods' own defaults are the paper's, chosen for its network and learning rate. Here a
# penalty's weight times the preset's rate is about what it is in the paper: more of it lets the
# penalty overshoot until nothing is finite (see `nacre.methods._regularizer`). The features of lite0
# end in no activation and are large: with the paper's 100, their distance is all that ILT learns.
WEIGHTS: dict[str, dict[str, dict[str, float]]] = {
    "small": {
        "ewc": {"weight": 50},
        "pi": {"weight": 50},
        "rw": {"weight": 10},
        "ilt": {"feature_weight": 1},
    },
    "demo": {"ewc": {"weight": 8}, "pi": {"weight": 8}, "rw": {"weight": 1.6}},
}


def preset_values(name: str, scenario: ScenarioFile | None, method: str = "mib") -> dict[str, Any]:
    """Return a preset as plain config values for a scenario and a method."""
    if name not in PRESETS:
        raise unknown_name("preset", name, PRESETS)
    values = dict(PRESETS[name])
    if name == "paper" and scenario is not None:
        epochs = PAPER_EPOCHS.get(scenario.data, values["train"]["epochs"])
        values["train"] = {**values["train"], "epochs": epochs}
        if (scenario.data, scenario.task) == ("voc", "15-1"):
            # The one task for which the paper's figures were made with another weight.
            values["method"] = {"name": "mib", "weight": 100}
    if method in WEIGHTS.get(name, {}):
        values["method"] = {"name": method, **WEIGHTS[name][method]}
    return values
