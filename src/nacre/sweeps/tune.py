"""The search for a method's loss weight without old data, as in the paper's supplement.

    1. Step 0 is learned once and shared by all trials (`nacre.runs.step_cache`).
    2. Fine-tuning learns the first incremental step with each learning rate that the user gives.
       The rate with the best accuracy on the new classes is chosen.
    3. The method learns the same step with weights A * 10^B, A in {1, 5}, B in -3..3. The highest
       weight that loses at most 20 % of that accuracy is chosen, for all later steps:

           accuracy(weight) >= (1 - 0.2) * accuracy(fine-tuning)

A higher weight keeps more and learns less, so the accuracy falls as the weight grows, and a binary
search over the 14 weights needs at most four trials. The accuracy is the mean IoU of the new
classes, without the background, on a fifth of the step's images, which is held out. Both weights of
`ilt` have the same value, as in the supplement. If a method does not learn step 0 by cross-entropy
(`lwf-mc`), fine-tuning is the method with weight 0, so that both start from the same step 0.

Each trial has its own folder, so that an interrupted search resumes.
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
MAX_LOSS = 0.2
HELD_OUT = 0.2
FIRST = 1
"""The step that trials learn: the first incremental step."""


def next_weight(accuracies: Mapping[float, float], min_accuracy: float) -> float | None:
    """Return the weight to try next; None if the highest weight that passes is known.

    Args:
        accuracies: Accuracy by weight, for the weights that were tried.
        min_accuracy: Accuracy that passes.
    """
    tried = [i for i, weight in enumerate(WEIGHTS) if weight in accuracies]
    passed = [i for i in tried if accuracies[WEIGHTS[i]] >= min_accuracy]
    low = max(passed, default=-1)
    high = min((i for i in tried if i > low), default=len(WEIGHTS))
    return WEIGHTS[(low + high) // 2] if high - low > 1 else None


def highest(accuracies: Mapping[float, float], min_accuracy: float) -> float | None:
    """Return the highest weight that passes; None if no weight does."""
    passed = [weight for weight, accuracy in accuracies.items() if accuracy >= min_accuracy]
    return max(passed, default=None)


@dataclass(frozen=True)
class Trial:
    """A trial of a weight or a learning rate.

    Attributes:
        name: Name of its folder.
        weight: Weight of the method; None for fine-tuning.
        accuracy: Mean IoU of the new classes; 0 if the losses became infinite.
    """

    name: str
    rate: float
    weight: float | None
    accuracy: float
    diverged: bool = False

    def line(self, min_accuracy: float | None) -> str:
        """Return the trial as a line, with a verdict if the accuracy that passes is known."""
        result = f"learning rate {self.rate:g}: mIoU of new classes {100 * self.accuracy:.1f}"
        verdict = "diverged" if self.diverged else ""
        if min_accuracy is not None and not verdict:
            verdict = "passes" if self.accuracy >= min_accuracy else "too low"
        return f"{self.name}, {result}" + (f": {verdict}" if verdict else "")


@dataclass
class Tuning:
    """The trials and the result of a search.

    Attributes:
        min_accuracy: Accuracy that passes; None before fine-tuning.
        rate: Chosen learning rate; None before fine-tuning.
        weight: Chosen weight; None before the end.
    """

    method: str
    trials: list[Trial] = field(default_factory=list)
    min_accuracy: float | None = None
    rate: float | None = None
    weight: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrialData(ScenarioData):
    """The data of trials: a fifth of the first incremental step's images is held out.

    Held-out images have the labels of training: the new classes, and all others as background. They
    are not augmented and borders are ignored, as in a test.

    Attributes:
        whole: Data of the whole scenario. All trials share its index.
    """

    whole: ScenarioData

    @classmethod
    def of(cls, whole: ScenarioData) -> "TrialData":
        """Return the data of all trials on a scenario."""
        values = {item.name: getattr(whole, item.name) for item in fields(whole)}
        return cls(**values, whole=whole)

    @property
    def train_index(self) -> LabelIndex:
        """The index of the training images."""
        return self.whole.train_index

    @property
    def val_index(self) -> LabelIndex:
        """The index of the training images: test images must not choose weights."""
        return self.whole.train_index

    @cached_property
    def image_lists(self) -> ImageLists:
        """The training images of all steps, without the held-out images."""
        before, first, *later = self.whole.image_lists
        kept, _ = split(first, self.seed)
        return (before, kept, *later)

    def eval_dataset(self, step: int) -> EvalDataset:
        """Return the held-out images, with the labels of the step only."""
        if step != FIRST:
            return self.whole.eval_dataset(step)
        _, held_out = split(self.whole.image_lists[FIRST], self.seed)
        names = [self.train_index.names[image] for image in held_out]
        policy = self.policy.model_copy(update={"border": "ignored"})
        mapping = self.scenario.classes.training_mapping(FIRST, policy)
        return EvalDataset(LabeledImages(self.source, names, mapping), self.config)


def split(images: Sequence[int], seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split images at random into training and held-out images, 80 to 20."""
    order = np.random.default_rng([seed, len(images)]).permutation(len(images))
    held_out = {int(i) for i in order[: max(1, round(HELD_OUT * len(images)))]}
    kept = tuple(image for i, image in enumerate(images) if i not in held_out)
    return kept, tuple(images[i] for i in sorted(held_out))


def accuracy(metrics: Mapping[str, Any]) -> float:
    """Return a trial's accuracy: the mean IoU of the new classes, without the background."""
    value = metrics["mean_iou"]["new_without_background"]
    if value is None:
        raise NacreError(
            "no held-out image contains a pixel of a new class; use a scenario with more images in "
            "step 1"
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
        self.method = find_method(config.method.name)
        self.whole = open_scenario(config)
        if not self.method.tunable:
            raise NacreError(f"method {self.method.name!r} has no weight to choose")
        if self.whole.num_steps <= FIRST:
            raise NacreError(
                f"scenario {config.scenario!r} has one step; weights are chosen in the second"
            )
        self.data = TrialData.of(self.whole)
        self.tuning = Tuning(config.method.name)

    def search(self, rates: Sequence[float]) -> Tuning:
        """Choose the learning rate by fine-tuning, then the weight."""
        for rate in rates:
            self._changed({}, rate)  # refuses a wrong rate before step 0 is learned
        # The method's own step 0 stores the state that later steps need; fine-tuning's does not.
        learn_scenario(
            self.config, self.out / "step-0", data=self.whole, num_steps=1, **self.options
        )
        best = max((self._fine_tune(rate) for rate in rates), key=lambda trial: trial.accuracy)
        if not best.accuracy:
            raise NacreError(
                f"fine-tuning learns nothing of the new classes of {self.config.scenario!r} "
                "(accuracy 0); train longer or with another learning rate"
            )
        min_accuracy = (1 - MAX_LOSS) * best.accuracy
        self.tuning.min_accuracy, self.tuning.rate = min_accuracy, best.rate
        accuracies: dict[float, float] = {}
        while (weight := next_weight(accuracies, min_accuracy)) is not None:
            values = {"method": dict.fromkeys(self.method.tunable, weight)}
            trial = self._try(f"weight-{weight:g}", best.rate, weight, values)
            accuracies[weight] = trial.accuracy
        self._save(highest(accuracies, min_accuracy), best.rate)
        return self.tuning

    def _fine_tune(self, rate: float) -> Trial:
        """Measure what can be learned if nothing has to be kept."""
        method, fine_tuning = self.config.method, find_method("ft")
        # Modules that a preset freezes under every method are frozen under fine-tuning, too.
        own = self.method.Config.model_fields["freeze"].default
        freeze = [name for name in method.freeze if name not in own]
        values = {"name": "ft", "freeze": freeze, "freeze_step_0": method.freeze_step_0}
        learned = fine_tuning.step_0_of(fine_tuning.Config.model_validate(values))
        if learned != self.method.step_0_of(method):
            values = dict.fromkeys(self.method.tunable, 0.0)
        return self._try(f"ft-lr-{rate:g}", rate, None, {"method": values})

    def _try(self, name: str, rate: float, weight: float | None, values: dict[str, Any]) -> Trial:
        """Run a trial, unless it is done."""
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
        self.show(trial.line(self.tuning.min_accuracy))
        return trial

    def _learn(self, config: RunConfig, folder: Path, diverged: Path) -> float:
        """Train a trial; return its accuracy."""
        count = FIRST + 1
        try:
            steps = learn_scenario(config, folder, data=self.data, num_steps=count, **self.options)
            return accuracy(steps[-1])
        except NotFinite as error:
            # One of several processes cannot tell the others, so that the run fails.
            if self.dist.world_size > 1:
                raise
            save_json(diverged, {"error": str(error)})
            return 0.0

    def _changed(self, values: dict[str, Any], rate: float) -> RunConfig:
        """Return the config with other values and another incremental learning rate."""
        values = deep_merge(values, {"train": {"incremental_lr": rate}})
        return resolve(RunConfig, deep_merge(self.config.to_dict(), values))

    def _save(self, weight: float | None, rate: float) -> None:
        """Write the config with the chosen weight."""
        if weight is None:
            raise NacreError(
                f"no weight of {self.method.name!r} keeps enough of fine-tuning's accuracy, not "
                f"even {WEIGHTS[0]:g}; see {self.out / 'tuning.json'}"
            )
        config = self._changed({"method": dict.fromkeys(self.method.tunable, weight)}, rate)
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
        config: The scenario, the method and the values of all trials.
        out: Folder for the trials and the result; the same call resumes the search.
        cache: Folder of learned steps that runs share. Default: ``out/steps``.
        rates: Learning rates to try with fine-tuning. Default: the config's.
        observers: Called with the events of every trial.
        should_stop: Returns True to stop after a save.
        show: Called with a line about every trial.
    """
    options = {"cache": cache or out / CACHE, "observers": list(observers)}
    search = _Search(config, out, show, should_stop=should_stop, **options)
    remove_temporaries(out)
    try:
        return search.search(rates or (config.train.incremental_lr,))
    finally:
        if search.dist.is_main:
            save_json(out / "tuning.json", asdict(search.tuning))
