"""What stands in for the process of a run in tests of grids."""


class Process:
    """A run that ends with a code at the second look, or goes on until it is told to stop.

    Attributes:
        started: All that a test started, in their order.
        codes: The codes that they end with; None goes on.
        usual: The code of those that come after these.
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
    """Start stand-ins in place of processes; return the list of them, which is empty yet."""
    monkeypatch.setattr("nacre.sweeps.engines.start", Process)
    for name, value in (("started", []), ("codes", []), ("usual", usual)):
        monkeypatch.setattr(Process, name, value)
    return Process.started
