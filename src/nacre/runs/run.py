"""A run: one method over all steps of one scenario with one seed, in one folder.

Calling it again on the same folder goes on where it stopped, in the middle of a step too. A step
that has a model is not learnt again, a step that has metrics is not tested again.
"""

import contextlib
import copy
import shutil
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from nacre.scenarios.classes import ClassTable
from nacre.data.sampler import BatchOrder
from nacre.data.dataset import eval_batches
from nacre.data.worker_monitor import deaths_explained
from nacre.errors import NacreError
from nacre.evaluation.evaluate import confusion_of
from nacre.evaluation.metrics import step_metrics, summarise
from nacre.utils.io import load_json, save_json
from nacre.methods import Method, find_method
from nacre.models.network import Network, build_network
from nacre.models.io import ModelInfo, load_model, save_model
from nacre.utils.tensor_file import Tensors
from nacre.training.resume import load_resume, save_resume
from nacre.training.config import RunConfig, differences
from nacre.runs.folder import RunFolder, read_plain_config
from nacre.training.trainer import Interrupted, Learner
from nacre.data.step_data import ScenarioData
from nacre.runs.scenario_data import batch_order, open_scenario
from nacre.training.distributed import Processes, join_processes
from nacre.utils.device import choose_precision, peak_memory
from nacre.training.events import EventFile, Observer, Recorder

SHARED_BY_BASE = ("seed", "data", "model", "train", "pictures", "conventions")
"""What must be equal for a run to start from another run's step 0."""

LATER = ("next_lr", "next_epochs", "compile", "workers", "save_minutes", "log_every")
"""What of `train` does not decide what step 0 is."""


class Run:
    """One run while it is being carried out."""

    def __init__(
        self,
        config: RunConfig,
        out: Path,
        *,
        base: Path | None = None,
        observers: Iterable[Observer] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.folder, self.base = config, RunFolder(out), base
        self.should_stop = should_stop
        self.observers = list(observers)
        self.processes: Processes = join_processes(config.train.device)
        self.precision = choose_precision(config.train.precision, self.processes.device)
        self.Method = find_method(config.method.name)

    def __call__(self) -> dict[str, Any]:
        """Carry the run out; return its metrics."""
        self.prepared: ScenarioData = self._prepare()
        self._index_once()
        self.prepared.check_tests()
        me = self.processes
        orders = [
            batch_order(self.config, len(images), step, me.rank, me.size)
            for step, images in enumerate(self.prepared.images[: self.prepared.num_steps])
        ]
        with contextlib.ExitStack() as while_running:
            if me.is_first:
                self._check_base()
                while_running.enter_context(self.folder.hold())
                self.folder.claim(self.config, self.prepared.fingerprint())
                self._take_base()
            me.wait()
            self.recorder = Recorder(self._observers() if me.is_first else ())
            if me.is_first:
                self._announce(orders)
            while_running.enter_context(deaths_explained())
            network: Network | None = None
            state: Tensors = {}
            for step, order in enumerate(orders):
                network, state = self._one_step(step, order, network, state)
            return self._finish()

    def _prepare(self) -> ScenarioData:
        return prepare(self.config)

    def _one_step(
        self, step: int, order: BatchOrder, network: Network | None, state: Tensors
    ) -> tuple[Network | None, Tensors]:
        """Learn and test a step, each unless that was done before."""
        done = self.folder.model(step).exists()
        if done and self.folder.step_metrics(step).exists():
            taken = str(self.base) if self.base and step == 0 else None
            self.recorder("skipped", step=step, iterations=order.iterations, taken_from=taken)
            return None, {}
        if done:
            network, state = self._load(step)
        else:
            if step and network is None:
                network, state = self._load(step - 1)
            network, state = self._learn(step, order, network, state)
        self._test(step, network)
        return network, state

    def _load(self, step: int) -> tuple[Network, Tensors]:
        """Return the network after a step, and what this run's method collected in it."""
        network, _, state = load_model(self.folder.model(step), self.processes.device)
        # A step 0 that was taken over may hold what another method collected.
        own = self.Method.collects
        return network, {key: kept for key, kept in state.items() if key.partition(".")[0] in own}

    def _learn(
        self, step: int, order: BatchOrder, network: Network | None, state: Tensors
    ) -> tuple[Network, Tensors]:
        """Learn a step from the network of the step before, or from where it was interrupted."""
        began = time.monotonic()
        classes = self.prepared.scenario.classes
        method = self.Method(self.config.method, classes.old_channels(step))
        if state:
            method.load_state(state)
        network, teacher = self._grow(step, method, network)
        learner = Learner(
            step=step,
            network=network,
            teacher=teacher,
            method=method,
            config=self.config.train,
            lr=self.config.train.next_lr if step else self.config.train.lr,
            order=order,
            processes=self.processes,
            precision=self.precision,
        )
        method.begin_step(network)
        self._resume(learner)
        self.recorder(
            "begin",
            step=step,
            classes=list(classes.names(step)[-len(classes.new(step)) :]),
            images=order.images,
            iterations=order.iterations,
            first=learner.iteration,
        )
        learner.learn(self.prepared.train_dataset(step), self.recorder, self.should_stop, self._save)
        method.end_step(network)
        seconds = round(time.monotonic() - began, 1)
        memory = peak_memory(self.processes.device)
        self.recorder("learnt", step=step, seconds=seconds, peak_memory_bytes=memory)
        state = method.state()
        unnamed = {key for key in state if key.partition(".")[0] not in method.collects}
        assert not unnamed, f"{method.name}.collects does not name {sorted(unnamed)}"
        if self.processes.is_first:
            save_model(self.folder.model(step), network, self._info(step, order, method), state)
            self.folder.resume.unlink(missing_ok=True)
        self.processes.wait()
        return network, state

    def _grow(
        self, step: int, method: Method, network: Network | None
    ) -> tuple[Network, Network | None]:
        """Return the student with its new channels, and the teacher if the method has one."""
        # All processes draw the same weights, and a step's do not depend on the steps before.
        torch.manual_seed(self.config.seed * 1000 + step)
        classes = self.prepared.scenario.classes
        if network is None:
            crop = self.config.pictures.crop
            network = build_network(self.config.model, classes.channels(0), crop)
            return network.to(self.processes.device), None
        teacher = None
        if method.uses_teacher:
            teacher = copy.deepcopy(network).eval().requires_grad_(False)
        method.grow(network.classifier, len(classes.new(step)))
        return network, teacher

    def _test(self, step: int, network: Network) -> None:
        """Test the network after a step and write its metrics."""
        data = self.prepared.eval_dataset(step)
        train = self.config.train
        share = train.micro_batch or max(1, train.batch // self.processes.size)

        def on_images(count: int) -> None:
            self.recorder("tested", step=step, images=count, of=len(data))
            if self.processes.size == 1 and self.should_stop():
                raise Interrupted

        batches = eval_batches(
            data, share, self.processes.rank, self.processes.size, train.workers
        )
        device, window = self.processes.device, self.config.test_window
        confusion = confusion_of(network, batches, device, on_images, window)
        confusion = self.processes.sum(confusion)
        if self.processes.is_first:
            scenario = self.prepared.scenario
            metrics = step_metrics(scenario.classes, scenario.groups, step, confusion)
            metrics |= {"images": len(data), "conventions": self.config.measured_under()}
            save_json(self.folder.step_metrics(step), metrics)
            self.recorder("end", step=step, mean_iou=metrics["mean_iou"])
        self.processes.wait()

    def _finish(self) -> dict[str, Any]:
        steps = [load_json(self.folder.step_metrics(at)) for at in range(self.prepared.num_steps)]
        scenario = self.prepared.scenario
        name = scenario.classes.space.names
        summary = {
            "scenario": self.config.scenario,
            "method": self.config.method.name,
            "seed": self.config.seed,
            "groups": [[name[label] for label in labels] for labels in scenario.groups],
            "conventions": self.config.measured_under(),
            **summarise(steps),
        }
        if self.processes.is_first:
            save_json(self.folder.metrics, summary)
        self.processes.wait()
        return summary

    def _index_once(self) -> None:
        """Read the index in the first process; the others then find it in the cache."""
        for turn in (True, False):
            if self.processes.is_first == turn:
                _ = self.prepared.images, self.prepared.val_index
            self.processes.wait()

    def _save(self, learner: Learner) -> None:
        if self.processes.is_first:
            content = {
                "step": learner.step,
                "iteration": learner.iteration,
                "scaler": learner.scaler.state_dict(),
                "events": self.event_file.size,
            }
            save_resume(self.folder.resume, learner.state(), content)
        self.processes.wait()

    def _resume(self, learner: Learner) -> None:
        if self.folder.resume.exists():
            tensors, content = load_resume(self.folder.resume, self.processes.device)
            if content["step"] == learner.step:
                learner.load_state(tensors, content["iteration"], content["scaler"])

    def _observers(self) -> list[Observer]:
        """Return who is told; the file of events is cut back to what is not done again."""
        keep = None
        if self.folder.resume.exists():
            content = load_resume(self.folder.resume, torch.device("cpu"))[1]
            if not self.folder.model(content["step"]).exists():
                keep = content["events"]
        self.event_file = EventFile(self.folder.events, keep)
        return [self.event_file, *self.observers]

    def _announce(self, orders: list[BatchOrder]) -> None:
        facts = {
            "scenario": self.config.scenario,
            "method": self.config.method.name,
            "seed": self.config.seed,
            "device": str(self.processes.device),
            "processes": self.processes.size,
            "precision": self.precision.reason,
            "weights": self._weights(),
        }
        self.folder.note_start(facts)
        self.recorder("run", **facts, iterations=[order.iterations for order in orders])

    def _weights(self) -> str:
        """Say what the backbone starts from; the paper starts from ImageNet's weights."""
        model = self.config.model
        if model.weights != "none" or model.backbone == "tiny":
            return model.weights
        return "random: the paper's backbone starts from ImageNet's (set model.weights)"

    def _info(self, step: int, order: BatchOrder, method: Method) -> ModelInfo:
        classes = self.prepared.scenario.classes
        return ModelInfo(
            classes=list(classes.names(step)),
            colors=list(classes.colors(step)),
            labels=[classes.space.background, *classes.known(step)],
            steps=[1 + len(classes.new(0)), *(len(one) for one in classes.steps[1 : step + 1])],
            history=[self._history(classes, at) for at in range(step + 1)],
            model=self.config.model.model_dump(mode="json"),
            crop=self.config.pictures.crop,
            config=self.config.plain(),
        )

    def _history(self, classes: ClassTable, step: int) -> dict[str, Any]:
        return {
            "step": step,
            "classes": [classes.space.names[label] for label in classes.new(step)],
            "images": len(self.prepared.images[step]),
        }

    def _check_base(self) -> None:
        """Refuse a base whose step 0 is not what this run would learn."""
        if self.base is None:
            return
        theirs = read_plain_config(self.base)
        source = RunFolder(self.base)
        if not source.step_metrics(0).exists() or not source.facts.exists():
            raise NacreError(f"--base {self.base}: its step 0 is not finished")
        changed = differences(decides_step_0(theirs), decides_step_0(self.config.plain()))
        method = theirs.get("method") or {}
        changed += self._learnt_otherwise(find_method(str(method.get("name"))))
        changed += _other_step_0(load_json(source.facts), self.prepared.fingerprint())
        if changed:
            raise NacreError(f"--base {self.base} learnt step 0 differently ({'; '.join(changed)})")

    def _take_base(self) -> None:
        """Begin with the step 0 of another run instead of learning it again."""
        if self.base is None or self.folder.model(0).exists():
            return
        # Renamed when whole: a copy cut short must not look like a finished step.
        copy_of_step = self.folder.path / ".step-0"
        source = RunFolder(self.base)
        shutil.copytree(source.model(0).parent, copy_of_step, dirs_exist_ok=True)
        copy_of_step.replace(self.folder.model(0).parent)

    def _learnt_otherwise(self, base: type[Method]) -> list[str]:
        """Say what a method would lack in a step 0 that another method learnt."""
        changed = []
        if base.step_0 != self.Method.step_0:
            changed.append(f"its loss: {base.step_0} -> {self.Method.step_0}")
        lacking = sorted(self.Method.collects - base.collects)
        if lacking:
            changed.append(
                f"{self.Method.name} needs what {base.name} did not collect: {', '.join(lacking)}"
            )
        return changed


def _other_step_0(theirs: dict[str, Any], mine: dict[str, Any]) -> list[str]:
    """Say where two runs' step 0 differ in classes, images or what counts in testing."""
    have, want = theirs["steps"][0], mine["steps"][0]
    if have["classes"] != want["classes"]:
        names = [", ".join(step["classes"].values()) for step in (have, want)]
        return [f"classes of step 0: {names[0]} -> {names[1]}"]
    if have["sha256"] != want["sha256"]:
        return [f"images of step 0: {have['images']} -> {want['images']}, other ones"]
    # A class that no step learns is background in tests, so step 0's figures depend on all steps.
    if classes_ever(theirs) != classes_ever(mine):
        return ["the classes of all steps together"]
    return []


def classes_ever(facts: dict[str, Any]) -> list[str]:
    """Return the labels of all steps together."""
    return sorted(label for step in facts["steps"] for label in step["classes"])


def decides_step_0(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a plain config that decides what step 0 is."""
    shared = {key: config.get(key) for key in SHARED_BY_BASE}
    train = {key: value for key, value in (shared["train"] or {}).items() if key not in LATER}
    return {**shared, "train": train}


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
    return run()
