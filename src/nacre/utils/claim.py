"""A claim on a piece of work in a shared folder: one process of one machine does it, and lives.

A claim is a file ``NAME.claim-N`` beside the work. A hard link makes it, which only one process
can, on network file systems too. The highest number counts; it only grows, so that nobody who
looked late can take away a claim that was made meanwhile. Its holder touches the file every few
seconds. A holder of this machine is dead when its process is gone; one of another machine when the
file has not changed for a while by the watcher's own clock, since clocks of machines differ. Who
finds a claim free, or its holder dead, makes the next number.
"""

import contextlib
import glob
import json
import os
import secrets
import socket
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter, ValidationError

from nacre.errors import NacreError
from nacre.utils.io import replacing

BEAT_SECONDS = 5.0
PATIENCE_SECONDS = 60.0
"""After so long without a beat a holder on another machine is taken for dead."""

_LARGEST = 10_000
State = Literal["held", "free", "failed"]


@dataclass(frozen=True)
class Note:
    """What stands in a claim.

    Attributes:
        host: The machine's name, for people.
        machine: What tells the machine from all others.
        process: The holder's number there.
        began: When the holder began, as its system counts: numbers are used again.
        token: What tells this claim from all others.
        state: Whether the work is being done, is free, or failed.
        problem: Why it failed.
    """

    host: str
    machine: str
    process: int
    began: str
    token: str
    state: State = "held"
    problem: str | None = None


@dataclass(frozen=True)
class Seen:
    """A claim as it was seen: its number, what stands in it, and when it was touched."""

    number: int
    note: Note
    touched: int


@dataclass
class Claim:
    """A claim that this process holds."""

    place: Path
    number: int
    note: Note
    beaten: float = field(default_factory=time.monotonic)

    @property
    def path(self) -> Path:
        """The claim's file."""
        return _path(self.place, self.number)

    def beat(self) -> None:
        """Show that the holder lives, if it is time to."""
        if time.monotonic() - self.beaten >= BEAT_SECONDS:
            self.beaten = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self.path)

    @property
    def is_lost(self) -> bool:
        """Whether somebody took this holder for dead and took the work over."""
        return _path(self.place, self.number + 1).exists()

    def release(self, state: State = "free", problem: str | None = None) -> None:
        """Let others have the work, or tell them that it failed."""
        note = Note(**{**asdict(self.note), "state": state, "problem": problem})
        with contextlib.suppress(OSError), replacing(self.path) as temporary:
            temporary.write_text(json.dumps(asdict(note)))


class Watch:
    """Tells which holders are alive."""

    def __init__(self) -> None:
        self.seen: dict[str, tuple[int, float]] = {}

    def is_alive(self, seen: Seen, patience: float | None = None) -> bool:
        """Whether a claim's holder still works, as far as can be known by now."""
        note = seen.note
        if note.state != "held":
            return False
        if note.machine == _machine() and sys.platform == "linux":
            return _began(note.process) == note.began
        now = time.monotonic()
        touched, since = self.seen.get(note.token, (None, now))
        if touched != seen.touched:
            self.seen[note.token] = seen.touched, now
            return True
        return now - since < (PATIENCE_SECONDS if patience is None else patience)


def list_claims(folder: Path) -> dict[str, int]:
    """Return the number of the latest claim on each piece of work in a folder, by its name."""
    latest: dict[str, int] = {}
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            name, found, number = entry.name.rpartition(".claim-")
            if found and number.isdecimal() and not name.startswith("."):
                latest[name] = max(latest.get(name, 0), min(int(number), _LARGEST))
    return latest


def read_claim(place: Path, number: int | None = None) -> Seen | None:
    """Read the latest claim on a piece of work, or the one of a number; None if there is none."""
    if number is None:
        number = list_claims(place.parent).get(place.name)
    if not number:
        return None
    try:
        # Opened, not only looked at: a network file system then asks its server.
        with _path(place, number).open("rb") as file:
            content, touched = file.read(1 << 16), os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None
    try:
        return Seen(number, _NOTE.validate_json(content), touched)
    except ValidationError:  # a power cut may have left half of it
        return Seen(number, Note("", "", 0, "", "", "free"), touched)


def take(place: Path, after: int = 0) -> Claim | None:
    """Claim a piece of work; None if somebody else did.

    Args:
        place: The work: claims lie beside it.
        after: The number of the claim that was found free or dead; 0 if there was none.
    """
    note = Note(
        host=socket.gethostname(),
        machine=_machine(),
        process=os.getpid(),
        began=_began(os.getpid()) or "",
        token=secrets.token_hex(8),
    )
    path = _path(place, after + 1)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        with os.fdopen(handle, "w") as file:
            file.write(json.dumps(asdict(note)))
        try:
            os.link(name, path)
        finally:
            os.unlink(name)
    except (FileExistsError, FileNotFoundError):
        return None
    except OSError as error:
        raise NacreError(f"could not claim {place}: {error.strerror}") from error
    _path(place, after).unlink(missing_ok=True)
    return Claim(place, after + 1, note)


def remove_claims(place: Path) -> None:
    """Remove the claims on work that is done, and what killed processes left of making them."""
    name = glob.escape(place.name)
    for pattern in (f"{name}.claim-*", f".{name}.claim-*"):
        for path in place.parent.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def _path(place: Path, number: int) -> Path:
    return place.parent / f"{place.name}.claim-{number}"


_NOTE: TypeAdapter[Note] = TypeAdapter(Note)


@lru_cache
def _machine() -> str:
    """Return what tells this machine from others; containers are machines of their own."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _began(process: int) -> str | None:
    """Return when a process of this machine began; None if it is gone."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else fields[19]
