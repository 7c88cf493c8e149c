"""Sharing a step 0: a run may begin with another run's instead of learning it again."""

import shutil
from pathlib import Path
from typing import Any

from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.methods import MethodConfig, find_method
from nacre.runs.folder import RunFolder, read_config
from nacre.runs.records import Fingerprint, read_record
from nacre.training.config import RunConfig, differences
from nacre.utils.affects import deciding


def check_base(base: Path | None, config: RunConfig, data: ScenarioData) -> None:
    """Refuse a base whose step 0 is not what a run would learn."""
    if base is None:
        return
    theirs, source = read_config(base), RunFolder(base)
    if not source.step_metrics(0).exists() or not source.fingerprint.exists():
        raise NacreError(f"--base {base}: its step 0 is not finished")
    changed = differences(deciding(theirs, step_0=True), deciding(config, step_0=True))
    changed += _step_0_differences(theirs.method, config.method)
    changed += _other_step_0(read_record(Fingerprint, source.fingerprint), data.fingerprint())
    if changed:
        raise NacreError(f"--base {base} learnt step 0 differently ({'; '.join(changed)})")


def take_base(base: Path | None, folder: RunFolder) -> None:
    """Begin with the step 0 of another run instead of learning it again."""
    if base is None or folder.model(0).exists():
        return
    # Renamed when whole: a copy cut short must not look like a finished step.
    source, target = RunFolder(base).model(0).parent, folder.model(0).parent
    try:
        shutil.rmtree(target, ignore_errors=True)  # without a model: what a killed step left
        shutil.copytree(source, folder.unfinished_base, dirs_exist_ok=True)
        folder.unfinished_base.replace(target)
    except OSError as error:  # of which shutil's own errors are a kind, with all of them in a list
        shutil.rmtree(folder.unfinished_base, ignore_errors=True)
        reason = error.strerror or error.args[0][0][2]
        raise NacreError(
            f"could not copy step 0 of --base {base} to {folder.path}: {reason}"
        ) from error


def step_0_key(config: RunConfig, fingerprint: dict[str, Any]) -> list[Any]:
    """Return what tells a run's step 0 from others': runs with the same key may share it."""
    loss = find_method(config.method.name).step_0_of(config.method)
    recipe = deciding(config, step_0=True)
    data = [fingerprint["steps"][0], fingerprint["tests"][0], classes_ever(fingerprint)]
    return [loss, recipe, *data]


def _step_0_differences(their_config: MethodConfig, our_config: MethodConfig) -> list[str]:
    """Say what a method would lack in a step 0 that another method learnt."""
    changed = []
    theirs, ours = find_method(their_config.name), find_method(our_config.name)
    have, want = theirs.step_0_of(their_config), ours.step_0_of(our_config)
    if have != want:
        changed.append(f"its loss: {have} -> {want}")
    lacking = sorted(ours.persistent_state - theirs.persistent_state)
    if lacking:
        changed.append(f"{ours.name} needs what {theirs.name} did not keep: {', '.join(lacking)}")
    return changed


def _other_step_0(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """Say where two runs' step 0 differ in classes, images or what counts in testing."""
    have, want = theirs["steps"][0], mine["steps"][0]
    if have["classes"] != want["classes"]:
        names = [", ".join(step["classes"].values()) for step in (have, want)]
        return [f"classes of step 0: {names[0]} -> {names[1]}"]
    if have["sha256"] != want["sha256"]:
        return [f"images of step 0: {have['images']} -> {want['images']}, other ones"]
    have, want = theirs["tests"][0], mine["tests"][0]
    if have["sha256"] != want["sha256"]:
        return [f"test images of step 0: {have['images']} -> {want['images']}, other ones"]
    # A class that no step learns is background in tests, so step 0's figures depend on all steps.
    if classes_ever(theirs) != classes_ever(mine):
        return ["the classes of all steps together"]
    return []


def classes_ever(fingerprint: dict[str, Any]) -> list[str]:
    """Return the labels of all steps together."""
    return sorted(label for step in fingerprint["steps"] for label in step["classes"])
