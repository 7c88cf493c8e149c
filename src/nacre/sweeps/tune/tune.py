"""The validation protocol of the paper's supplement: which weight a method gets.

    1. step 0 is learned once and shared by all trials (`nacre.runs.step_cache`);
    2. fine-tuning learns the first incremental step, with each learning rate that is offered;
       the best accuracy on the new classes chooses the rate and sets the measure;
    3. the method learns the same step with weights of the grid (`nacre.sweeps.tune.result`); the
       highest one that keeps 80 % of fine-tuning's accuracy is chosen, for all later steps too.

The accuracy is the mean IoU of the new classes, without the background, on a fifth of the step's
images, which is held out (`nacre.sweeps.tune.trial`). Both weights of `ilt` are tried as one value,
as in the supplement. A method whose step 0 is not learnt by cross-entropy (`lwf-mc`) is measured
against itself with the weight 0, which is fine-tuning with its own loss: step 0 stays the same.

Every trial is a folder of its own, so that a search that was interrupted goes on where it stopped.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from nacre.errors import NacreError
from nacre.methods import find_method
from nacre.runs.folder import RunFolder
from nacre.runs.run import learn_scenario
from nacre.runs.scenario_data import open_scenario
from nacre.runs.step_cache import CACHE
from nacre.sweeps.tune.result import (
    GRID,
    Trial,
    Tuning,
    as_comment,
    as_plain,
    highest,
    least_accuracy,
    next_weight,
)
from nacre.sweeps.tune.trial import FIRST, accuracy, trial_data
from nacre.training.config import RunConfig, deep_merge, resolve_config
from nacre.training.events import Observer
from nacre.training.trainer import NotFinite
from nacre.utils.distributed import init_distributed
from nacre.utils.io import remove_temporaries, save_json, save_text


class _Search:
    """A search while it is being carried out."""

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        cache: Path,
        observers: Iterable[Observer],
        should_stop: Callable[[], bool],
        show: Callable[[Tuning], None],
    ) -> None:
        self.config, self.out, self.show = config, out, show
        self.options: dict[str, Any] = {
            "cache": cache,
            "observers": list(observers),
            "should_stop": should_stop,
        }
        self.dist = init_distributed(config.train.device)
        self.kind = find_method(config.method.name)
        self.whole = open_scenario(config)
        self.trial_data = trial_data(self.whole)
        self._check()
        self.tuning = Tuning(config.method.name)

    def _check(self) -> None:
        if not self.kind.tunable:
            raise NacreError(f"method {self.kind.name!r} has no weight to choose")
        if self.whole.num_steps <= FIRST:
            raise NacreError(
                f"scenario {self.config.scenario!r} has one step; weights are chosen in the second"
            )

    def _learn_step_0(self) -> None:
        """Learn step 0 with what the method collects in it, which fine-tuning does not."""
        folder = self.out / "step-0"
        learn_scenario(self.config, folder, data=self.whole, num_steps=1, **self.options)

    def fine_tuning(self, rate: float) -> Trial:
        """Measure what can be learnt when nothing is to be kept."""
        values: dict[str, Any] = {"method": {"name": "ft"}}
        fine_tuning = find_method("ft")
        learned = fine_tuning.step_0_of(fine_tuning.Config(name="ft"))
        if learned != self.kind.step_0_of(self.config.method):
            values = {"method": dict.fromkeys(self.kind.tunable, 0.0)}
        return self._try(Trial(f"ft-lr-{rate:g}", rate), values)

    def weighted(self, weight: float, rate: float) -> Trial:
        """Try a weight."""
        values = {"method": dict.fromkeys(self.kind.tunable, weight)}
        return self._try(Trial(f"weight-{weight:g}", rate, weight), values)

    def _try(self, trial: Trial, values: dict[str, Any]) -> Trial:
        """Carry out a trial, unless that was done before."""
        folder = self.out / trial.name
        self._note(trials=(*self.tuning.trials, trial))
        diverged, config = folder / "diverged.json", self.changed(values, trial.rate)
        remove_temporaries(folder, [diverged.name])
        if diverged.exists():
            RunFolder(folder).check_same(config, self.trial_data.fingerprint())
        else:
            trial = self._learn(trial, config, folder)
        if diverged.exists():
            trial = replace(trial, accuracy=0.0, diverged=True)
        self._note(trials=(*self.tuning.trials[:-1], trial))
        return trial

    def _learn(self, trial: Trial, config: RunConfig, folder: Path) -> Trial:
        data, count = self.trial_data, FIRST + 1
        try:
            steps = learn_scenario(config, folder, data=data, num_steps=count, **self.options)
            return replace(trial, accuracy=accuracy(steps[-1]))
        except NotFinite as error:
            # With several processes the others cannot know: then it is an error like any other.
            if self.dist.world_size > 1:
                raise
            save_json(folder / "diverged.json", {"error": str(error)})
            return trial

    def changed(self, values: dict[str, Any], rate: float) -> RunConfig:
        """Return the config with other values and a learning rate for the incremental steps."""
        return resolve_config(
            deep_merge(
                self.config.to_dict(), deep_merge(values, {"train": {"incremental_lr": rate}})
            )
        )

    def _note(self, **values: Any) -> None:
        self.tuning = replace(self.tuning, **values)
        self.show(self.tuning)

    def search(self, rates: Sequence[float]) -> Tuning:
        """Choose the learning rate by fine-tuning, then the weight."""
        for rate in rates:
            self.changed({}, rate)  # refused here, and not when step 0 is learnt
        self._learn_step_0()
        best = max((self.fine_tuning(rate) for rate in rates), key=lambda one: one.accuracy or 0)
        if not best.accuracy:
            raise NacreError(
                f"fine-tuning learns nothing of the new classes of {self.config.scenario!r} "
                "(accuracy 0), so there is no measure; train longer or with another learning rate"
            )
        least = least_accuracy(best.accuracy)
        self._note(least=least, rate=best.rate)
        found: dict[float, float] = {}
        while (weight := next_weight(found, least)) is not None:
            found[weight] = self.weighted(weight, best.rate).accuracy or 0.0
        self._conclude(highest(found, least), best.rate)
        return self.tuning

    def _conclude(self, weight: float | None, rate: float) -> None:
        if weight is None:
            raise NacreError(
                f"no weight of {self.kind.name!r} keeps enough of fine-tuning's accuracy, not even "
                f"{GRID[0]:g}; see {self.out / 'tuning.json'}"
            )
        config = self.changed({"method": dict.fromkeys(self.kind.tunable, weight)}, rate)
        self._note(weight=weight, config=self.out / "tuned.yaml")
        if self.dist.is_main:
            content = yaml.safe_dump(config.to_dict(), sort_keys=False)
            save_text(self.out / "tuned.yaml", as_comment(self.tuning) + content)


def tune(
    config: RunConfig,
    out: Path,
    *,
    cache: Path | None = None,
    rates: Sequence[float] = (),
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
    show: Callable[[Tuning], None] = lambda tuning: None,
) -> Tuning:
    """Choose the weight of a config's method in the folder ``out``; write ``tuned.yaml`` there.

    Args:
        config: The scenario, the method and everything that is the same in all trials.
        out: Folder for the trials and the result; calling again goes on there.
        cache: Folder of learned steps that runs share; ``out/steps`` if not given.
        rates: Learning rates for fine-tuning to choose from; the config's if there are none.
        observers: Receive the events of every run.
        should_stop: Whether the user wants to stop; what was learnt is saved.
        show: Receives the search after every change.
    """
    search = _Search(config, out, cache or out / CACHE, observers, should_stop, show)
    remove_temporaries(out, ["tuning.json", "tuned.yaml"])
    try:
        return search.search(rates or (config.train.incremental_lr,))
    finally:
        if search.dist.is_main:
            save_json(out / "tuning.json", as_plain(search.tuning))
