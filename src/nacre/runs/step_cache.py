"""The step cache: a folder of learned steps that runs share.

An entry is the model and the metrics of a step, under the digest of everything that decides it: its
config, its data and the step before. Its name ends with the state that the method collected for
later steps: methods that learn step 0 alike share it, and a step with more state also serves
methods that need less. One process at a time learns a step; others wait for it. No run needs the
cache after it has ended, so the folder may be deleted.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from nacre.data.step_data import ScenarioData
from nacre.methods import find_method
from nacre.runs.folder import with_absolute_paths
from nacre.training.config import RunConfig
from nacre.utils.config import result_values
from nacre.utils.io import InUse, locked, remove_temporaries, save
from nacre.version import __version__

FILES = ("model.json", "model.safetensors", "metrics.json")
"""The files of a step; it is complete when the last one exists."""

CACHE = "steps"
"""The cache's folder in a grid or a search."""

Answer = Literal["taken", "learn", "wait"]


def step_keys(config: RunConfig, fingerprint: dict[str, Any], masks: str) -> list[str]:
    """Return the cache's key of each step of a run.

    Args:
        config: The config of the run.
        fingerprint: The classes and images of each step (`ScenarioData.fingerprint`).
        masks: The digest of the data's masks (`digest_masks`).
    """
    # A class that no step learns is background in tests, so figures depend on all steps.
    classes = sorted(label for step in fingerprint["steps"] for label in step["classes"])
    data = with_absolute_paths(config.data)
    before = _digest([__version__, torch.__version__, data, masks, classes])
    loss = find_method(config.method.name).step_0_of(config.method)
    keys: list[str] = []
    for step, images in enumerate(fingerprint["steps"]):
        recipe = result_values(config, step_0=step == 0)
        before = _digest([before, loss, recipe, images, fingerprint["tests"][step]])
        keys.append(before)
    return keys


def digest_masks(data: ScenarioData) -> str:
    """Return the digest of a data set's masks, from its index."""
    indices = (data.source.index(split) for split in ("train", "val"))
    return _digest([[index.names, index.pixel_counts] for index in indices])


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:32]


class StepCache:
    """The cache from the side of one run.

    Args:
        folder: The folder; created if it does not exist.
        keys: The key of each step.
        state: The state that the run's method collects in a step for later ones.
    """

    def __init__(self, folder: Path, keys: Sequence[str], state: frozenset[str]) -> None:
        self.folder, self.keys, self.state = folder, keys, state
        self.held = contextlib.ExitStack()

    def ask(self, step: int, target: Path) -> Answer:
        """Copy a step into a run's folder, or reserve it for this run to learn.

        Returns:
            ``wait`` if another process is learning the step now.
        """
        if self._take(step, target):
            return "taken"
        try:
            self.held.enter_context(locked(self._entry(step), "run"))
        except InUse:
            return "wait"
        if self._take(step, target):  # stored between the look and the lock
            self.release()
            return "taken"
        return "learn"

    def store(self, step: int, source: Path) -> None:
        """Store a step that this run learned and tested."""
        remove_temporaries(self._entry(step))
        _link_files(source, self._entry(step))

    def release(self) -> None:
        """Release the reserved step."""
        self.held.close()

    def _entry(self, step: int) -> Path:
        return self.folder / "-".join([self.keys[step], *sorted(self.state)])

    def _take(self, step: int, target: Path) -> bool:
        for entry in sorted(self.folder.glob(f"{self.keys[step]}*")):
            if self.state <= {*entry.name.split("-")[1:]} and (entry / FILES[-1]).exists():
                _link_files(entry, target)
                return True
        return False


def _link_files(source: Path, target: Path) -> None:
    """Link the files of a step into another folder, or copy them if there are no hard links."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        (target / name).unlink(missing_ok=True)
        try:
            os.link(source / name, target / name)
        except OSError:
            save(target / name, partial(shutil.copyfile, source / name))
