"""The search for a method's loss weight without old data, as in the paper's supplement.

    1. step 0 is learned once and shared by all trials (`nacre.runs.step_cache`);
    2. fine-tuning learns the first incremental step with each learning rate that is offered; the
       best accuracy on the new classes chooses the rate and is the measure;
    3. the method learns the same step with weights A * 10^B, A in {1, 5}, B in -3..3; the highest
       one with which it loses at most 20 % of that accuracy is chosen, for all later steps too:

           accuracy(weight) >= (1 - 0.2) * accuracy(fine-tuning)

The heavier the weight, the more is kept and the less is learned, so the accuracy falls as the
weight grows, and halving the grid finds the last weight that passes in four trials of 14. The
accuracy is the mean IoU of the new classes, without the background, on a fifth of the step's
images, which is held out. Both weights of `ilt` are tried as one value, as in the supplement. A
method whose step 0 is not learned by cross-entropy (`lwf-mc`) is measured against itself with the
weight 0, which is fine-tuning with its own loss: step 0 stays the same.

Every trial is a folder of its own, so that an interrupted search resumes where it stopped.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from nacre.data.dataset import EvalDataset, LabeledImages
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex
from nacre.methods import find_method
from nacre.runs.folder import RunFolder
from nacre.runs.run import learn_scenario, open_scenario
from nacre.runs.step_cache import CACHE
from nacre.scenarios.scenario import ImageLists
from nacre.training.config import RunConfig, deep_merge, resolve
from nacre.training.events import Observer
from nacre.training.trainer import NotFinite
from nacre.utils.distributed import init_distributed
from nacre.utils.io import remove_temporaries, save_json, save_text

WEIGHTS = tuple(float(f"{a}e{b}") for b in range(-3, 4) for a in (1, 5))
TOLERATED = 0.2
HELD_OUT = 0.2
FIRST = 1
"""The step that trials learn: the first incremental one."""


def next_weight(found: Mapping[float, float], least: float) -> float | None:
    """Return the weight to try next, or None when the highest that passes is known.

    Args:
        found: Accuracy by weight, of those that were tried.
        least: The accuracy that passes.
    """
    passes = [i for i, weight in enumerate(WEIGHTS) if weight in found and found[weight] >= least]
    below = max(passes, default=-1)
    fails = [i for i, weight in enumerate(WEIGHTS) if weight in found and i > below]
    above = min(fails, default=len(WEIGHTS))
    return WEIGHTS[(below + above) // 2] if above - below > 1 else None


def highest(found: Mapping[float, float], least: float) -> float | None:
    """Return the highest weight that passes, or None if none of those tried does."""
    return max((weight for weight, accuracy in found.items() if accuracy >= least), default=None)


@dataclass(frozen=True)
class Trial:
    """A config that was tried.

    Attributes:
        name: The name of its folder.
        rate: The learning rate.
        weight: The method's weight; None for fine-tuning.
        accuracy: The mean IoU of the new classes; 0 if it diverged.
        diverged: True if the losses became infinite.
    """

    name: str
    rate: float
    weight: float | None
    accuracy: float
    diverged: bool = False

    def line(self, least: float | None) -> str:
        """Return the trial as a line, with its verdict once the accuracy that passes is known."""
        figures = f"learning rate {self.rate:g}: mIoU of new classes {100 * self.accuracy:.1f}"
        word = "diverged" if self.diverged else ""
        if least is not None and not word:
            word = "passes" if self.accuracy >= least else "too low"
        return f"{self.name}, {figures}" + (f": {word}" if word else "")


@dataclass
class Tuning:
    """A search: what was tried, and what that chose.

    Attributes:
        method: The method whose weight is chosen.
        trials: The trials in order.
        least: The accuracy that passes, once fine-tuning's is known.
        rate: The learning rate that fine-tuning chose.
        weight: The weight that was chosen.
    """

    method: str
    trials: list[Trial] = field(default_factory=list)
    least: float | None = None
    rate: float | None = None
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrialData(ScenarioData):
    """The data of trials: a fifth of the first incremental step's images is held out.

    Held-out images have the step's own labels, as in training: new classes by name and all else,
    old classes too, as background; they are not augmented and borders are ignored, as in a test.

    Attributes:
        whole: The scenario of a run; its index is read once for all trials.
    """

    whole: ScenarioData

    @classmethod
    def of(cls, whole: ScenarioData) -> "TrialData":
        """Return the data of all trials on a scenario."""
        values = {one.name: getattr(whole, one.name) for one in fields(whole)}
        return cls(**values, whole=whole)

    @property
    def train_index(self) -> LabelIndex:
        """The whole scenario's index."""
        return self.whole.train_index

    @property
    def val_index(self) -> LabelIndex:
        """The index of the training images: the test images are not for choosing weights."""
        return self.whole.train_index

    @cached_property
    def image_lists(self) -> ImageLists:
        """The training images of all steps, without those held out."""
        before, first, *later = self.whole.image_lists
        kept, _ = split(first, self.seed)
        return (before, kept, *later)

    def eval_dataset(self, step: int) -> EvalDataset:
        """Return the held-out images with the labels of the step alone."""
        if step != FIRST:
            return self.whole.eval_dataset(step)
        _, held_out = split(self.whole.image_lists[FIRST], self.seed)
        names = [self.train_index.names[image] for image in held_out]
        policy = self.policy.model_copy(update={"border": "ignored"})
        mapping = self.scenario.classes.training_mapping(FIRST, policy)
        return EvalDataset(LabeledImages(self.source, names, mapping), self.config)


def split(images: Sequence[int], seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split images at random into those to learn from and those held out, 80 to 20."""
    order = np.random.default_rng([seed, len(images)]).permutation(len(images))
    held_out = {int(i) for i in order[: max(1, round(HELD_OUT * len(images)))]}
    kept = tuple(image for i, image in enumerate(images) if i not in held_out)
    return kept, tuple(images[i] for i in sorted(held_out))


def accuracy(metrics: Mapping[str, Any]) -> float:
    """Return a trial's accuracy: the mean IoU of the new classes, without the background."""
    value = metrics["mean_iou"]["new_without_background"]
    if value is None:
        raise NacreError(
            "no held-out image contains a pixel of a new class; the step has too few images to "
            "choose a weight with"
        )
    return float(value)


class _Search:
    """A search in progress."""

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        show: Callable[[str], None],
        **options: Any,
    ) -> None:
        self.config, self.out, self.show, self.options = config, out, show, options
        self.dist = init_distributed(config.train.device)
        self.kind = find_method(config.method.name)
        self.whole = open_scenario(config)
        if not self.kind.tunable:
            raise NacreError(f"method {self.kind.name!r} has no weight to choose")
        if self.whole.num_steps <= FIRST:
            raise NacreError(
                f"scenario {config.scenario!r} has one step; weights are chosen in the second"
            )
        self.data = TrialData.of(self.whole)
        self.tuning = Tuning(config.method.name)

    def search(self, rates: Sequence[float]) -> Tuning:
        """Choose the learning rate by fine-tuning, then the weight."""
        for rate in rates:
            self._changed({}, rate)  # refused here, and not after step 0
        # The method's own step 0 has the state that it collects, which fine-tuning's has not.
        learn_scenario(
            self.config, self.out / "step-0", data=self.whole, num_steps=1, **self.options
        )
        best = max((self._fine_tune(rate) for rate in rates), key=lambda one: one.accuracy)
        if not best.accuracy:
            raise NacreError(
                f"fine-tuning learns nothing of the new classes of {self.config.scenario!r} "
                "(accuracy 0), so there is no measure; train longer or with another learning rate"
            )
        least = (1 - TOLERATED) * best.accuracy
        self.tuning.least, self.tuning.rate = least, best.rate
        found: dict[float, float] = {}
        while (weight := next_weight(found, least)) is not None:
            values = {"method": dict.fromkeys(self.kind.tunable, weight)}
            found[weight] = self._try(f"weight-{weight:g}", best.rate, weight, values).accuracy
        self._save(highest(found, least), best.rate)
        return self.tuning

    def _fine_tune(self, rate: float) -> Trial:
        """Measure what can be learned when nothing is to be kept."""
        method, fine_tuning = self.config.method, find_method("ft")
        # What a preset freezes under every method is frozen under fine-tuning too.
        own = self.kind.Config.model_fields["freeze"].default
        freeze = [part for part in method.freeze if part not in own]
        values = {"name": "ft", "freeze": freeze, "freeze_step_0": method.freeze_step_0}
        learned = fine_tuning.step_0_of(fine_tuning.Config.model_validate(values))
        if learned != self.kind.step_0_of(method):
            values = dict.fromkeys(self.kind.tunable, 0.0)
        return self._try(f"ft-lr-{rate:g}", rate, None, {"method": values})

    def _try(self, name: str, rate: float, weight: float | None, values: dict[str, Any]) -> Trial:
        """Run a trial, unless that was done before."""
        folder, config = self.out / name, self._changed(values, rate)
        diverged = folder / "diverged.json"
        remove_temporaries(folder, diverged.name)
        value = 0.0
        if diverged.exists():
            RunFolder(folder).check_same(config, self.data.fingerprint())
        else:
            value = self._learn(config, folder, diverged)
        trial = Trial(name, rate, weight, value, diverged.exists())
        self.tuning.trials.append(trial)
        self.show(trial.line(self.tuning.least))
        return trial

    def _learn(self, config: RunConfig, folder: Path, diverged: Path) -> float:
        """Learn a trial; return its accuracy."""
        count = FIRST + 1
        try:
            steps = learn_scenario(config, folder, data=self.data, num_steps=count, **self.options)
            return accuracy(steps[-1])
        except NotFinite as error:
            # With several processes the others cannot know: then it is an error like any other.
            if self.dist.world_size > 1:
                raise
            save_json(diverged, {"error": str(error)})
            return 0.0

    def _changed(self, values: dict[str, Any], rate: float) -> RunConfig:
        """Return the config with other values and a learning rate for the incremental steps."""
        values = deep_merge(values, {"train": {"incremental_lr": rate}})
        return resolve(RunConfig, deep_merge(self.config.to_dict(), values))

    def _save(self, weight: float | None, rate: float) -> None:
        """Write the config with the chosen weight."""
        if weight is None:
            raise NacreError(
                f"no weight of {self.kind.name!r} keeps enough of fine-tuning's accuracy, not even "
                f"{WEIGHTS[0]:g}; see {self.out / 'tuning.json'}"
            )
        config = self._changed({"method": dict.fromkeys(self.kind.tunable, weight)}, rate)
        self.tuning.weight = weight
        if self.dist.is_main:
            content = yaml.safe_dump(config.to_dict(), sort_keys=False)
            about = f"# weight {weight:g}: chosen by nacre tune; tuning.json has every trial\n"
            save_text(self.out / "tuned.yaml", about + content)


def tune(
    config: RunConfig,
    out: Path,
    *,
    cache: Path | None = None,
    rates: Sequence[float] = (),
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[str], None] = lambda line: None,
) -> Tuning:
    """Choose the weight of a config's method; write ``tuned.yaml`` into the folder ``out``.

    Args:
        config: The scenario, the method and everything that is the same in all trials.
        out: Folder for the trials and the result; calling again resumes the search.
        cache: Folder of learned steps that runs share; by default ``out/steps``.
        rates: Learning rates for fine-tuning to choose from; by default the config's.
        observers: Receive the events of every run.
        should_stop: Returns True if the user wants to stop; what was learned is saved.
        show: Receives a line about every trial.
    """
    options = {"cache": cache or out / CACHE, "observers": list(observers)}
    search = _Search(config, out, show, should_stop=should_stop, **options)
    remove_temporaries(out)
    try:
        return search.search(rates or (config.train.incremental_lr,))
    finally:
        if search.dist.is_main:
            save_json(out / "tuning.json", asdict(search.tuning))
