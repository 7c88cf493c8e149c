"""Fake processes of runs for tests of grids."""


class Process:
    """A run that ends with a code at the second poll, or runs until it is terminated.

    Attributes:
        started: All processes of a test, in order.
        codes: Their exit codes; None runs on.
        usual: The exit code of all further processes.
    """

    started: list = []
    codes: list = []
    usual: int | None = None

    def __init__(self, task=None):
        self.task, self.looks, self.code = task, 0, None
        self.end = self.codes.pop(0) if self.codes else self.usual
        self.started.append(self)

    def poll(self):
        self.looks += 1
        if self.code is None and self.looks > 1:
            self.code = self.end
            if self.code == 0:
                self.task.folder.mkdir(parents=True, exist_ok=True)
                (self.task.folder / "metrics.json").write_text("{}")
        return self.code

    def terminate(self):
        self.code = 130 if self.code is None else self.code

    def wait(self):
        return self.code


def stand_in(monkeypatch, usual=None):
    """Replace processes by fakes; return the list of those that will be started."""
    monkeypatch.setattr("nacre.sweeps.engines.start", Process)
    for name, value in (("started", []), ("codes", []), ("usual", usual)):
        monkeypatch.setattr(Process, name, value)
    return Process.started
