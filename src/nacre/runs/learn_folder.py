"""The folder of `nacre learn`: one step, so its model and metrics lie in the folder itself.

config.yaml        the resolved config
run.json           every start: version, command, machine, seed, device, precision
facts.json         the start model, the classes, the images of every data set
events.jsonl       what happened
before.npz         what the start model says of the test images
first.safetensors  a model that is of use before the first update, until the next one is there
model.safetensors  the network (and model.json, for people)
metrics.json       how it tests, beside the start model, and where both agree
resume.safetensors the state in the middle of the step, while it is being learnt
"""

from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.models.io import FIRST_MODEL
from nacre.runs.folder import RunFolder, read_plain_config
from nacre.runs.learn_config import LearnConfig, resolve_learn_config
from nacre.runs.records import LearnFingerprint, Starts, read_record
from nacre.training.config import differences
from nacre.utils.io import remove_temporaries


class LearnFolder(RunFolder):
    """The paths of the files of one step."""

    fingerprint_type = LearnFingerprint

    def model(self, step: int) -> Path:
        """The network after the step."""
        return self.path / "model.safetensors"

    def step_metrics(self, step: int) -> Path:
        """How the network tests after the step."""
        return self.path / "metrics.json"

    @property
    def first_model(self) -> Path:
        """The network before its first update, where it is of use by then."""
        return self.path / FIRST_MODEL

    def remove_first(self) -> None:
        """Remove the network before its first update."""
        for path in (self.first_model, self.first_model.with_suffix(".json")):
            path.unlink(missing_ok=True)

    @property
    def before(self) -> Path:
        """The start model's class maps of the test images."""
        return self.path / "before.npz"

    @property
    def nothing_learned(self) -> bool:
        """Whether neither a model nor a part of the way to one is there yet."""
        return not self.resume.exists() and not self.model(0).exists()

    def tidy(self) -> None:
        """Remove what killed processes left, and the way to a model that is there."""
        super().tidy()
        if self.config.exists():
            remove_temporaries(self.path, [self.before.name, self.first_model.name])
        if self.model(0).exists():
            self.resume.unlink(missing_ok=True)
            self.remove_first()

    def check_kind(self, content: dict[str, Any]) -> None:
        """Refuse the folder of another command, whether or not something was learnt there."""
        if "scenario" in content:
            raise NacreError(
                f"{self.path} holds a run of a scenario, not a step of `nacre learn`; choose "
                "another --out"
            )

    def saved_config(self) -> LearnConfig:
        """Return the config that the folder holds."""
        return read_learn_config(self.path)

    def changed_data(self, before: dict[str, Any], now: dict[str, Any]) -> list[str]:
        """Say where the start model, classes or images are not those it began with."""
        changed = differences(
            {key: before.get(key) for key in ("start", "known", "new")},
            {key: now.get(key) for key in ("start", "known", "new")},
        )
        for kind in ("data", "tests"):
            have = {one["name"]: one for one in before.get(kind, ())}
            want = {one["name"]: one for one in now.get(kind, ())}
            for name in sorted({*have, *want}):
                if have.get(name) != want.get(name):
                    changed.append(f"what {name} holds: other images or classes than before")
        return changed

    def first_start(self) -> str:
        """Return when the step was first begun."""
        starts = read_record(Starts, self.path / "run.json")["starts"]
        return str(starts[0].get("time", "")) if starts else ""


def read_learn_config(folder: Path) -> LearnConfig:
    """Read the config of a folder of `nacre learn`."""
    content = read_plain_config(folder)
    LearnFolder(folder).check_kind(content)
    return resolve_learn_config(content)
