"""`nacre learn`: one step for a model that exists, or the first one, in a folder of its own.

Calling it again on the same folder goes on where it stopped. Nothing but the start model and the
new data is read: neither an old picture nor an old label.
"""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from nacre.data.dataset import UnionDataset, explain_worker_crash
from nacre.data.learn_data import LearnData
from nacre.evaluation.predictor import Predictor, whole_predictor
from nacre.methods import Judged, find_method
from nacre.models.io import ModelInfo, find_model, load_model, save_model
from nacre.models.network import Network
from nacre.runs.event_file import EventFile, Position
from nacre.runs.folder import with_absolute_paths
from nacre.runs.learn_config import LearnConfig
from nacre.runs.learn_data import batch_shares, open_learn_data
from nacre.runs.learn_folder import LearnFolder
from nacre.runs.learn_tests import (
    Compared,
    Tester,
    class_ious,
    mean_ious,
    open_maps,
    save_maps,
)
from nacre.runs.records import LearnMetrics, read_record
from nacre.runs.scenario_data import step_sampler
from nacre.runs.shared_folder import check_shared
from nacre.runs.verdicts import judge
from nacre.training.events import (
    ImagesTested,
    Observer,
    Recorder,
    RunBegan,
    StepTested,
    StepUsable,
)
from nacre.training.resume import Checkpoint, load_resume
from nacre.training.step import Learned, Session, StepSpec, learn_step
from nacre.utils.device import set_precision
from nacre.utils.distributed import explain_lost_process, init_distributed
from nacre.utils.io import save_json
from nacre.version import __version__

Metrics = dict[str, Any]


@dataclass(frozen=True)
class Start:
    """The model that a step continues.

    Attributes:
        path: Its file.
        info: What the file says about it.
        network: What it was learned from, if the file alone cannot build it.
        has_backbone: Whether its backbone can be told apart, and so frozen.
    """

    path: Path
    info: ModelInfo
    network: nn.Module | None = None
    has_backbone: bool = True

    def fingerprint(self) -> str:
        """Return the digest of the model file."""
        return hashlib.sha256(self.path.read_bytes()).hexdigest()


def find_start(path: Path | None, network: nn.Module | None = None) -> Start | None:
    """Find the model that a user means: a model file, a step's or a run's folder.

    Args:
        path: Where it is; None if nothing is continued.
        network: What it was learned from, if its file alone cannot build it.
    """
    if path is None:
        return None
    file = find_model(path)
    loaded, info, _ = load_model(file, network=network)
    return Start(file, info, network, "backbone" in loaded.gives)


class Learning:
    """One step while it is being carried out.

    Args:
        config: What is learnt, and how.
        out: The folder of the step.
        start: The model that is continued, if there is one.
        observers: Receive the events.
        should_stop: Whether the user wants to stop.
    """

    def __init__(
        self,
        config: LearnConfig,
        out: Path,
        start: Start | None,
        *,
        observers: Iterable[Observer] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self.config, self.folder, self.start = config, LearnFolder(out), start
        self.dist = init_distributed(config.train.device)
        self.precision = set_precision(config.train.precision, self.dist.device)
        self.observers, self.should_stop = list(observers), should_stop
        self.recorder = Recorder()
        self._began = time.monotonic()
        self.checkpoint = Checkpoint(self.folder.resume, self.dist)
        # A merged model was made by more steps than have channels of their own.
        self.index = max(len(start.info.steps), len(start.info.lineage)) if start else 0
        self.data = self._open()
        self.spec = self._spec()

    def __call__(self) -> Metrics:
        """Learn the step and test it, each unless that was done; return its metrics."""
        with contextlib.ExitStack() as while_running:
            while_running.enter_context(explain_lost_process(self.dist))
            fingerprint = self._fingerprint()
            self.dist.on_main(lambda: self._open_folder(fingerprint, while_running))
            check_shared(self.folder, fingerprint, self.dist)
            while_running.enter_context(explain_worker_crash())
            if not self.dist.from_main(self.folder.metrics.exists()):
                self._store_before()
                network = self._learn_or_load()
                self._test(network)
            metrics: Metrics = self.dist.on_main(
                lambda: read_record(LearnMetrics, self.folder.metrics)
            )
        return metrics

    def _open(self) -> LearnData:
        """Open the data; the main process reads the index first, the others then find it."""
        before = self.start.info.channels if self.start else None
        self.dist.on_main(lambda: bool(open_learn_data(self.config, before)))
        return open_learn_data(self.config, before)

    def _spec(self) -> StepSpec:
        dataset, dist = self.data.train_dataset(), self.dist
        shares = batch_shares(self.config, self.data)
        return StepSpec(
            index=self.index,
            channels=self.data.channels,
            growth=self.data.growth,
            dataset=dataset,
            sampler=step_sampler(
                self.config, len(dataset), self.index, dist.rank, dist.world_size, shares
            ),
        )

    def _fingerprint(self) -> dict[str, Any]:
        start = self.start.fingerprint() if self.start else None
        return {"start": start, **self.data.fingerprint()}

    def _load_start(self) -> Learned | None:
        if self.start is None:
            return None
        network, _, state = load_model(self.start.path, self.dist.device, self.start.network)
        own = find_method(self.config.method.name).persistent_state
        return Learned(network, {k: v for k, v in state.items() if k.partition(".")[0] in own})

    def _store_before(self) -> None:
        """Store what the start model says of the test images, unless that was done before."""
        if self.start is None or self.dist.from_main(self.folder.before.exists()):
            return
        learned, info, images = self._load_start(), self.start.info, self.config.images
        assert learned is not None
        predictor = Predictor(
            learned.network, info.predict_mode, info.crop, mirror=images.mirror, edges=images.edges
        )
        maps = self._tester(only_tests=False).class_maps(predictor)
        self.dist.on_main(lambda: save_maps(self.folder.before, maps))

    def _learn_or_load(self) -> Network:
        """Return the network of the step, learnt now unless that was done before."""
        path = self.folder.model(self.index)
        if self.dist.from_main(path.exists()):
            given = self.start.network if self.start else None
            return load_model(path, self.dist.device, given)[0]
        session = Session(
            self.dist,
            self.precision,
            self.checkpoint,
            self.recorder,
            self.should_stop,
            self._save_first,
        )
        learned = learn_step(self.spec, self._load_start(), self.config, session)

        def save() -> None:
            save_model(path, learned.network, self._info(learned.judged), learned.method_state)
            self.checkpoint.remove()
            self.folder.remove_first()

        self.dist.on_main(save)
        return learned.network

    def _save_first(self, learned: Learned) -> None:
        """Save a model that is of use before the first update, unless that was done before."""
        path = self.folder.first_model

        def save() -> None:
            save_model(path, learned.network, self._info(None), learned.method_state)
            seconds = round(time.monotonic() - self._began, 1)
            self.recorder(StepUsable(self.index, seconds, str(path)))

        if not self.dist.from_main(path.exists()):
            self.dist.on_main(save)

    def _test(self, network: Network) -> None:
        """Test the network beside what the start model said; write the metrics."""
        before = open_maps(self.folder.before) if self.start else None
        predictor = whole_predictor(network, self.config.images)
        tester = self._tester(only_tests=before is None)
        found = tester.compare(predictor, self.data.channels, before)
        metrics = self._metrics(found, network.stride)

        def write() -> None:
            self.recorder(StepTested(self.index, metrics["mean_iou"]))
            save_json(self.folder.metrics, metrics)

        self.dist.on_main(write)

    def _metrics(self, found: Compared, stride: int) -> Metrics:
        iou, before = class_ious(found.after), class_ious(found.before)
        agreement = found.agreement["iou"] if found.agreement else None
        return {
            "step": self.index,
            "classes": list(self.data.class_names),
            "new": list(self.data.new),
            "images": sum(test["images"] for test in found.after),
            "iou": iou,
            "iou_before": before,
            "verdicts": judge(self.data, stride, iou, before, agreement),
            "mean_iou": mean_ious(iou, self.data.known, self.data.new),
            "agreement": found.agreement,
            "tests": found.after,
            "tests_before": found.before,
            "conventions": self.config.measured_under(),
        }

    def _tester(self, *, only_tests: bool) -> Tester:
        total = Tester(self.data, self.config, self.dist).num_images(only_tests=only_tests)

        def on_images(count: int) -> None:
            self.recorder(ImagesTested(self.index, count, total))

        return Tester(self.data, self.config, self.dist, on_images, self.should_stop)

    def _open_folder(
        self, fingerprint: dict[str, Any], while_running: contextlib.ExitStack
    ) -> None:
        """Make the folder this step's, tidy it, and say what begins to all who are told."""
        while_running.enter_context(self.folder.lock())
        self.folder.tidy()
        self.folder.bind_config(self.config, fingerprint)
        self.recorder.observers = [
            EventFile(self.folder.events, self._position()),
            *self.observers,
        ]
        began = RunBegan(
            scenario=", ".join(one.name for one in self.data.sets),
            method=self.config.method.name,
            seed=self.config.seed,
            device=str(self.dist.device),
            processes=self.dist.world_size,
            precision=self.precision.reason,
            weights=str(self.start.path) if self.start else self.config.model.weights,
            iterations=[self.spec.sampler.iterations],
        )
        self.folder.append_start(began.to_dict())
        self.recorder(began)

    def _position(self) -> Position:
        """Return how far the folder is."""
        if self.folder.metrics.exists():
            return Position(self.index + 1)
        if self.folder.model(self.index).exists():
            return Position(self.index, is_learned=True)
        if self.folder.resume.exists():
            _, content = load_resume(self.folder.resume, self.dist.device)
            return Position(self.index, content["iteration"])
        return Position(self.index)

    def _info(self, judged: Judged | None) -> ModelInfo:
        channels, before = self.data.channels, self.start.info.lineage if self.start else ()
        return ModelInfo(
            classes=list(channels.names),
            colors=list(channels.colors),
            labels=list(range(len(channels))),
            steps=channels.per_step,
            lineage=[*before, self._lineage_entry(judged)],
            model=self.config.model.model_dump(mode="json"),
            crop=self.config.images.crop_size,
            predict_mode=self.config.images.predict_mode,
            config=with_absolute_paths(self.config),
        )

    def _lineage_entry(self, judged: Judged | None) -> dict[str, Any]:
        dataset = self.spec.dataset
        parts = dataset.parts if isinstance(dataset, UnionDataset) else [dataset]
        return {
            "step": self.index,
            "classes": list(self.data.new),
            "images": len(self.spec.dataset),
            "data": [one.name for one in self.data.sets],
            "folder_images": [len(part) for part in parts],
            "hidden": {one.name: self.data.training_mapping(one).hidden for one in self.data.sets},
            "method": self.config.method.name,
            "iterations": self.spec.sampler.iterations,
            **({"judged": asdict(judged)} if judged else {}),
            "when": self.folder.first_start(),
            "nacre": __version__,
        }
