"""A run: one method over all steps of one scenario with one seed, in one folder.

Calling it again on the same folder goes on where it stopped, in the middle of a step too. A step
that has a model is not learnt again, a step that has metrics is not tested again.
"""

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from nacre.data.dataset import explain_worker_crash
from nacre.data.step_data import ScenarioData
from nacre.errors import NacreError
from nacre.evaluation.confusion import ConfusionMatrix
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.metrics import compute_metrics, summarize
from nacre.evaluation.predictor import cut_predictor
from nacre.methods import find_method
from nacre.models.backbones import BACKBONES
from nacre.models.config import DeepLabConfig
from nacre.models.io import ModelInfo, load_model, save_model
from nacre.models.weights import find_model_weights
from nacre.runs.event_file import EventFile, Position
from nacre.runs.folder import RunFolder, with_absolute_paths
from nacre.runs.records import StepMetrics, read_record
from nacre.runs.scenario_data import open_scenario, step_sampler
from nacre.runs.shared_folder import check_shared
from nacre.runs.step_cache import StepCache, digest_masks, step_keys
from nacre.scenarios.exemplars import memory_lines
from nacre.training.config import RunConfig
from nacre.training.events import (
    ImagesTested,
    Observer,
    Recorder,
    RunBegan,
    StepAwaited,
    StepSkipped,
    StepTested,
)
from nacre.training.resume import Checkpoint, load_resume
from nacre.training.step import (
    Interrupted,
    Learned,
    Session,
    StepSpec,
    batches_to_test,
    learn_step,
)
from nacre.utils.device import set_precision, sizes_vary
from nacre.utils.distributed import explain_lost_process, init_distributed
from nacre.utils.io import save_json, save_text

WAIT_SECONDS = 2.0


class Run:
    """One run while it is being carried out.

    Args:
        config: What is learnt.
        out: The run's folder.
        cache: Folder of learned steps that runs share; None learns all of them here.
        data: The config's data; opened if not given.
        num_steps: How many of the scenario's steps are learnt; all of them by default.
        observers: Receive the events.
        should_stop: Whether the user wants to stop.
    """

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        *,
        cache: Path | None = None,
        data: ScenarioData | None = None,
        num_steps: int | None = None,
        observers: Iterable[Observer] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.folder = config, RunFolder(out)
        self.cache_folder = cache
        self.dist = init_distributed(config.train.device)
        self.precision = set_precision(config.train.precision, self.dist.device)
        self.data = data or open_scenario(config)
        self.num_steps = num_steps or self.data.num_steps
        self.observers, self.should_stop = list(observers), should_stop
        self.recorder = Recorder()
        self.checkpoint = Checkpoint(self.folder.resume, self.dist)

    def learn_steps(self) -> dict[str, Any]:
        """Learn and test the steps that are not there yet; return the last one's metrics."""
        with contextlib.ExitStack() as while_running:
            while_running.enter_context(explain_lost_process(self.dist))
            # The main process first: the others then find weights and index in the cache.
            self.dist.on_main(self._find_weights)
            self.dist.on_main(self._read_data)
            self._read_data()
            specs = [self._spec(step) for step in range(self.num_steps)]
            self.dist.on_main(lambda: self._open_folder(specs, while_running))
            check_shared(self.folder, self.data.fingerprint(), self.dist)
            while_running.enter_context(explain_worker_crash())
            self._learn_all(specs)
            last = self.folder.step_metrics(self.num_steps - 1)
            metrics: dict[str, Any] = self.dist.on_main(lambda: read_record(StepMetrics, last))
        return metrics

    def summarize(self) -> dict[str, Any]:
        """Write and return what all steps together show."""
        return self.dist.on_main(self._summarize)

    def _summarize(self) -> dict[str, Any]:
        steps = [
            read_record(StepMetrics, self.folder.step_metrics(step))
            for step in range(self.num_steps)
        ]
        scenario = self.data.scenario
        name = scenario.classes.space.names
        summary = {
            "scenario": self.config.scenario,
            "method": self.config.method.name,
            "seed": self.config.seed,
            "groups": [[name[label] for label in labels] for labels in scenario.groups],
            "conventions": self.config.measured_under(),
            **summarize(steps),
        }
        save_json(self.folder.metrics, summary)
        return summary

    def _learn_all(self, specs: list[StepSpec]) -> None:
        recorder, dist = self.recorder, self.dist
        session = Session(dist, self.precision, self.checkpoint, recorder, self.should_stop)
        learned: Learned | None = None
        for spec in specs:
            # What is there is seen by the main process, and told: folders may look different
            # from another machine for a while.
            if dist.from_main(self.folder.is_finished(spec.index)):
                recorder(StepSkipped(spec.index, spec.sampler.iterations))
                learned = None
                continue
            with self._shared(spec) as is_taken:
                learned = None if is_taken else self._learn_or_load(spec, learned, session)
                if learned is not None:
                    self._test(spec.index, learned)

    @contextlib.contextmanager
    def _shared(self, spec: StepSpec) -> Iterator[bool]:
        """Take a step that another run learned, or leave to others what is learned now."""
        if self.cache_folder is None:
            yield False
            return
        step, place = spec.index, self.folder.model(spec.index).parent
        is_taken = self._wait_for(step)
        if is_taken:
            self.dist.on_main(self.checkpoint.remove)
            self.recorder(StepSkipped(step, spec.sampler.iterations, str(self.cache_folder)))
        try:
            yield is_taken
            if not is_taken:
                self.dist.on_main(lambda: self._cache.store(step, place))
        finally:
            if self.dist.is_main:
                self._cache.release()

    def _wait_for(self, step: int) -> bool:
        """Return whether the cache had a step; while another process learns it, wait."""
        place, is_told = self.folder.model(step).parent, False
        while True:
            answer = self.dist.on_main(lambda: self._cache.ask(step, place))
            if answer != "wait":
                return answer == "taken"
            if not is_told:
                self.recorder(StepAwaited(step))
                is_told = True
            if any(self.dist.any(self.should_stop())):
                raise Interrupted
            time.sleep(WAIT_SECONDS)

    @cached_property
    def _cache(self) -> StepCache:
        assert self.cache_folder is not None
        state = find_method(self.config.method.name).persistent_state
        keys = step_keys(self.config, self.data.fingerprint(), digest_masks(self.data))
        return StepCache(self.cache_folder, keys, state)

    def _learn_or_load(self, spec: StepSpec, before: Learned | None, session: Session) -> Learned:
        """Learn a step from the one before, unless that was done."""
        if self.dist.from_main(self.folder.model(spec.index).exists()):
            return self._load(spec.index)
        if spec.index and before is None:
            before = self._load(spec.index - 1)
        learned = learn_step(spec, before, self.config, session)
        self.dist.on_main(lambda: self._save(spec.index, learned))
        return learned

    def _save(self, step: int, learned: Learned) -> None:
        save_model(self.folder.model(step), learned.network, self._info(step), learned.method_state)
        self.checkpoint.remove()

    def _load(self, step: int) -> Learned:
        """Return what a step left, as far as this run's method knows it."""
        network, _, state = load_model(self.folder.model(step), self.dist.device)
        # A step 0 that was taken over may hold what another method keeps.
        own = find_method(self.config.method.name).persistent_state
        return Learned(network, {k: v for k, v in state.items() if k.partition(".")[0] in own})

    def _test(self, step: int, learned: Learned) -> None:
        """Test the network after a step and write its metrics."""
        dataset = self.data.eval_dataset(step)
        dist = self.dist
        batches = batches_to_test(dataset, self.config.train, dist, self.should_stop)

        def on_images(count: int) -> None:
            self.recorder(ImagesTested(step, count, len(dataset)))

        confusion = ConfusionMatrix(learned.network.num_classes, dist.device)
        predictor = cut_predictor(learned.network, self.config.images)
        with sizes_vary(self.config.images.eval_mode == "full"):
            evaluate(predictor, batches, [confusion], dist.device, on_images, self.precision)
        confusion.merge(dist)

        def write() -> None:
            scenario = self.data.scenario
            metrics = compute_metrics(scenario.classes, scenario.groups, step, confusion.counts())
            metrics |= {"images": len(dataset), "conventions": self.config.measured_under()}
            # The event first: a step with metrics is not tested again.
            self.recorder(StepTested(step, metrics["mean_iou"]))
            save_json(self.folder.step_metrics(step), metrics)

        dist.on_main(write)

    def _spec(self, step: int) -> StepSpec:
        classes, dist = self.data.scenario.classes, self.dist
        dataset, num_own = self.data.train_dataset(step), len(self.data.image_lists[step])
        shares = self.data.batch_shares(step)
        return StepSpec(
            index=step,
            channels=classes.channels(step),
            growth=classes.growth(step),
            dataset=dataset,
            # Old pictures take places of a batch; how long is learnt the step's own decide.
            sampler=step_sampler(self.config, num_own, step, dist.rank, dist.world_size, shares),
            overlapped=self.data.scenario.setup == "overlapped",
        )

    def _find_weights(self) -> None:
        """Refuse weights that are not there before the data are read, which may take long."""
        if not self.folder.model(0).exists():
            find_model_weights(self.config.model)

    def _read_data(self) -> None:
        """Read which images there are, and refuse data that cannot be learnt from or tested on."""
        _ = self.data.image_lists
        self.data.check_tests(self.num_steps)

    def _open_folder(self, specs: list[StepSpec], while_running: contextlib.ExitStack) -> None:
        """Make the folder this run's, tidy it, and say what begins to all who are told."""
        while_running.enter_context(self.folder.lock())
        self.folder.tidy()
        self.folder.bind_config(self.config, self.data.fingerprint())
        self._keep_exemplars()
        self.recorder.observers = [
            EventFile(self.folder.events, self._position()),
            *self.observers,
        ]
        began = RunBegan(
            scenario=self.config.scenario,
            method=self.config.method.name,
            seed=self.config.seed,
            device=str(self.dist.device),
            processes=self.dist.world_size,
            precision=self.precision.reason,
            weights=self._weights(),
            iterations=[spec.sampler.iterations for spec in specs],
        )
        self.folder.append_start(began.to_dict())
        self.recorder(began)

    def _keep_exemplars(self) -> None:
        """Write down which old pictures each step learns from; refuse if they are others now."""
        path, lines = self.folder.exemplars, memory_lines(self.data.memories)
        if not self.config.memory:
            path.unlink(missing_ok=True)
            return
        begun = path.exists() and not self.folder.nothing_learned
        if begun and path.read_text(encoding="utf-8") != lines:
            raise NacreError(
                f"{path}: the pictures that are kept would be others than when the run began; the "
                "labels of the data were changed"
            )
        save_text(path, lines)

    def _position(self) -> Position:
        """Return how far the folder is; a saved state that is behind it is removed."""
        steps = range(self.num_steps)
        step = next((i for i in steps if not self.folder.is_finished(i)), self.num_steps)
        is_learned = self.folder.model(step).exists()
        if self.folder.resume.exists() and not is_learned:
            _, content = load_resume(self.folder.resume, self.dist.device)
            if content["step"] == step:
                return Position(step, content["iteration"])
        self.checkpoint.remove()
        return Position(step, is_learned=is_learned)

    def _weights(self) -> str:
        """Say what the backbone starts from; the paper starts from ImageNet's weights."""
        model = self.config.model
        row = BACKBONES.get(model.backbone) if isinstance(model, DeepLabConfig) else None
        if model.weights != "none" or (row is not None and row.imagenet is None):
            return model.weights
        return "random: the paper's backbone starts from ImageNet's (set model.weights)"

    def _info(self, step: int) -> ModelInfo:
        classes = self.data.scenario.classes
        channels = classes.channels(step)
        return ModelInfo(
            classes=list(channels.names),
            colors=list(channels.colors),
            labels=[classes.space.background, *classes.seen(step)],
            steps=channels.per_step,
            lineage=[
                {
                    "step": index,
                    "classes": list(channels.learned_in(index)),
                    "images": len(self.data.image_lists[index]),
                    "data": [self.data.scenario.data],
                    "method": self.config.method.name,
                }
                for index in range(step + 1)
            ],
            model=self.config.model.model_dump(mode="json"),
            crop=self.config.images.crop_size,
            predict_mode=self.config.images.predict_mode,
            config=with_absolute_paths(self.config),
        )


def run_scenario(
    config: RunConfig,
    out: Path,
    *,
    cache: Path | None = None,
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Learn all steps of a config in the folder ``out``; return the metrics of the run."""
    run = Run(config, out, cache=cache, observers=observers, should_stop=should_stop)
    run.learn_steps()
    return run.summarize()
