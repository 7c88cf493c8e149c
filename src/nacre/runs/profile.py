"""A profile of a few updates, as an observer: what the processor and the device did, and when."""

from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from nacre.training.events import Event, Iterated, StepLearned
from nacre.utils.io import save_text

_WARM_UP = 3
"""Updates before the first that is recorded: in them kernels are chosen and memory is taken."""


class Profiler:
    """Records updates and writes a trace of them, which any viewer of Chrome's traces shows.

    Args:
        updates: How many to record.
        folder: Where `trace.json` and `kernels.txt` go.
    """

    def __init__(self, updates: int, folder: Path) -> None:
        self.updates, self.folder = updates, folder
        self._seen = 0
        self._recording: profile | None = None

    def __call__(self, event: Event) -> None:
        """Begin to record, or write what was recorded: at the latest when the step is learnt."""
        if isinstance(event, StepLearned):
            self._write()
        elif isinstance(event, Iterated):
            self._seen += 1
            if self._seen == _WARM_UP:
                self._begin()
            elif self._seen == _WARM_UP + self.updates:
                self._write()

    def _begin(self) -> None:
        kinds = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            kinds.append(ProfilerActivity.CUDA)
        self._recording = profile(activities=kinds, record_shapes=True)
        self._recording.start()

    def _write(self) -> None:
        recording, self._recording = self._recording, None
        if recording is None:
            return
        recording.stop()
        self.folder.mkdir(parents=True, exist_ok=True)
        recording.export_chrome_trace(str(self.folder / "trace.json"))
        by_time = "self_cuda_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        table = recording.key_averages().table(sort_by=by_time, row_limit=40)
        save_text(self.folder / "kernels.txt", f"{table}\n")
