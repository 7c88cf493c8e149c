"""A run: one method over all steps of one scenario with one seed, in one folder.

Calling it again on the same folder goes on where it stopped, in the middle of a step too. A step
that has a model is not learnt again, a step that has metrics is not tested again.
"""

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nacre.data.dataset import eval_batches
from nacre.data.step_data import ScenarioData
from nacre.data.worker_monitor import explain_worker_crash
from nacre.evaluation.evaluate import evaluate
from nacre.evaluation.metrics import compute_metrics, summarize
from nacre.methods import find_method
from nacre.models.io import ModelInfo, load_model, save_model
from nacre.runs.base import check_base, take_base
from nacre.runs.event_file import EventFile, Position
from nacre.runs.folder import RunFolder
from nacre.runs.scenario_data import open_scenario, step_sampler
from nacre.training.config import RunConfig
from nacre.training.events import (
    ImagesTested,
    Observer,
    Recorder,
    RunBegan,
    StepSkipped,
    StepTested,
)
from nacre.training.resume import Checkpoint, load_resume
from nacre.training.step import Interrupted, Learnt, Session, StepSpec, learn_step
from nacre.utils.device import choose_precision
from nacre.utils.distributed import init_distributed
from nacre.utils.io import load_json, save_json


class Run:
    """One run while it is being carried out.

    Args:
        config: What is learnt.
        out: The run's folder.
        base: A run whose step 0 is taken over instead of being learnt again.
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
        base: Path | None = None,
        data: ScenarioData | None = None,
        num_steps: int | None = None,
        observers: Iterable[Observer] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.folder, self.base = config, RunFolder(out), base
        self.dist = init_distributed(config.train.device)
        self.precision = choose_precision(config.train.precision, self.dist.device)
        self.data = data or open_scenario(config)
        self.num_steps = num_steps or self.data.num_steps
        self.observers, self.should_stop = list(observers), should_stop
        self.checkpoint = Checkpoint(self.folder.resume, self.dist, config.train.checkpoint_minutes)

    def learn_steps(self) -> dict[str, Any]:
        """Learn and test the steps that are not there yet; return the last one's metrics."""
        self._index_once()
        self.data.check_tests(self.num_steps)
        specs = [self._spec(step) for step in range(self.num_steps)]
        with contextlib.ExitStack() as while_running:
            if self.dist.is_main:
                check_base(self.base, self.config, self.data)
                while_running.enter_context(self.folder.lock())
                self.folder.bind_config(self.config, self.data.fingerprint())
                take_base(self.base, self.folder)
            self.dist.barrier()
            session = self._session(specs)
            while_running.enter_context(explain_worker_crash())
            learnt: Learnt | None = None
            for spec in specs:
                if self._is_finished(spec.index):
                    session.recorder(self._skipped(spec))
                    learnt = None
                    continue
                learnt = self._learnt(spec, learnt, session)
                self._test(spec.index, learnt, session)
        metrics: dict[str, Any] = load_json(self.folder.step_metrics(self.num_steps - 1))
        return metrics

    def summarize(self) -> dict[str, Any]:
        """Write and return what all steps together show."""
        steps = [load_json(self.folder.step_metrics(step)) for step in range(self.num_steps)]
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
        if self.dist.is_main:
            save_json(self.folder.metrics, summary)
        self.dist.barrier()
        return summary

    def _is_finished(self, step: int) -> bool:
        return self.folder.model(step).exists() and self.folder.step_metrics(step).exists()

    def _learnt(self, spec: StepSpec, before: Learnt | None, session: Session) -> Learnt:
        """Learn a step from the one before, unless that was done."""
        if self.folder.model(spec.index).exists():
            return self._load(spec.index)
        if spec.index and before is None:
            before = self._load(spec.index - 1)
        learnt = learn_step(spec, before, self.config, session)
        if self.dist.is_main:
            info = self._info(spec.index)
            save_model(self.folder.model(spec.index), learnt.network, info, learnt.method_state)
        self.checkpoint.remove()
        self.dist.barrier()
        return learnt

    def _load(self, step: int) -> Learnt:
        """Return what a step left, as far as this run's method knows it."""
        network, _, state = load_model(self.folder.model(step), self.dist.device)
        # A step 0 that was taken over may hold what another method keeps.
        own = find_method(self.config.method.name).persistent_state
        return Learnt(network, {k: v for k, v in state.items() if k.partition(".")[0] in own})

    def _test(self, step: int, learnt: Learnt, session: Session) -> None:
        """Test the network after a step and write its metrics."""
        dataset = self.data.eval_dataset(step)
        train, dist = self.config.train, self.dist
        batch_size = train.micro_batch or max(1, train.batch_size // dist.world_size)

        def on_images(count: int) -> None:
            session.recorder(ImagesTested(step, count, len(dataset)))
            if dist.world_size == 1 and self.should_stop():
                raise Interrupted

        batches = eval_batches(dataset, batch_size, dist.rank, dist.world_size, train.num_workers)
        window = self.config.test_window
        confusion = evaluate(learnt.network, batches, dist.device, on_images, window)
        confusion = dist.sum(confusion)
        if dist.is_main:
            scenario = self.data.scenario
            metrics = compute_metrics(scenario.classes, scenario.groups, step, confusion)
            metrics |= {"images": len(dataset), "conventions": self.config.measured_under()}
            save_json(self.folder.step_metrics(step), metrics)
            session.recorder(StepTested(step, metrics["mean_iou"]))
        dist.barrier()

    def _spec(self, step: int) -> StepSpec:
        classes, dist = self.data.scenario.classes, self.dist
        dataset = self.data.train_dataset(step)
        return StepSpec(
            index=step,
            class_names=classes.names(step),
            num_old=classes.old_channels(step),
            dataset=dataset,
            sampler=step_sampler(self.config, len(dataset), step, dist.rank, dist.world_size),
        )

    def _session(self, specs: list[StepSpec]) -> Session:
        """Say what begins, to the folder and to all who are told."""
        recorder = Recorder()
        if self.dist.is_main:
            events = EventFile(self.folder.events, self._position())
            recorder = Recorder([events, *self.observers])
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
            recorder(began)
        return Session(self.dist, self.precision, self.checkpoint, recorder, self.should_stop)

    def _position(self) -> Position:
        """Return how far the folder is."""
        steps = range(self.num_steps)
        step = next((step for step in steps if not self._is_finished(step)), self.num_steps)
        if self.folder.model(step).exists():
            return Position(step, is_learnt=True)
        if self.folder.resume.exists():
            _, content = load_resume(self.folder.resume, self.dist.device)
            if content["step"] == step:
                return Position(step, content["iteration"])
        return Position(step)

    def _index_once(self) -> None:
        """Read the index in the main process; the others then find it in the cache."""
        for turn in (True, False):
            if self.dist.is_main == turn:
                _ = self.data.image_lists, self.data.val_index
            self.dist.barrier()

    def _skipped(self, spec: StepSpec) -> StepSkipped:
        taken = str(self.base) if self.base and spec.index == 0 else None
        return StepSkipped(spec.index, spec.sampler.iterations, taken)

    def _weights(self) -> str:
        """Say what the backbone starts from; the paper starts from ImageNet's weights."""
        model = self.config.model
        if model.weights != "none" or model.backbone == "tiny":
            return model.weights
        return "random: the paper's backbone starts from ImageNet's (set model.weights)"

    def _info(self, step: int) -> ModelInfo:
        classes = self.data.scenario.classes
        return ModelInfo(
            classes=list(classes.names(step)),
            colors=list(classes.colors(step)),
            labels=[classes.space.background, *classes.seen(step)],
            steps=[1 + len(classes.new(0)), *(len(one) for one in classes.steps[1 : step + 1])],
            history=[
                {
                    "step": index,
                    "classes": [classes.space.names[label] for label in classes.new(index)],
                    "images": len(self.data.image_lists[index]),
                }
                for index in range(step + 1)
            ],
            model=self.config.model.model_dump(mode="json"),
            crop=self.config.images.crop_size,
            predict_mode=self.config.images.predict_mode,
            config=self.config.to_dict(),
        )


def run_scenario(
    config: RunConfig,
    out: Path,
    *,
    base: Path | None = None,
    observers: Iterable[Observer] = (),
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Learn all steps of a config in the folder ``out``; return the metrics of the run."""
    run = Run(config, out, base=base, observers=observers, should_stop=should_stop)
    run.learn_steps()
    return run.summarize()
