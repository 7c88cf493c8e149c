"""An audit hook that reports actions that opening a file must not cause."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STARTS = {
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "os.system",
    "pty.spawn",
    "subprocess.Popen",
    "webbrowser.open",
}
CHANGES = {
    "os.link": [(1, 3)],
    "os.mkdir": [(0, 2)],
    "os.remove": [(0, 1)],
    "os.rename": [(0, 2), (1, 3)],
    "os.rmdir": [(0, 1)],
    "os.symlink": [(1, 2)],
    "os.truncate": [(0, 2)],
}
"""Positions of the changed path and of its open folder, if any, in the arguments of each event."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_TRUNC
CURIOUS = {"antigravity", "this"}
"""Modules of the standard library with visible effects when imported."""


@dataclass(frozen=True)
class Watch:
    """Reports forbidden actions until the end of the process: a hook cannot be removed.

    Attributes:
        report: Receives a line for each forbidden action.
        code: Folders whose files may be executed and imported: the installed packages, the project.
        writable: Folders that may be written to.
        traps: Folders that must not be read.
        ports: Ports of this machine that may be connected to.
    """

    report: Callable[[str], None]
    code: Sequence[Path]
    writable: Sequence[Path]
    traps: Sequence[Path] = ()
    ports: Sequence[int] = ()

    def begin(self) -> None:
        """Add the hook to this process."""
        sys.addaudithook(self)

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            self._open(*args)
        elif event == "exec":
            self._run("exec", getattr(args[0], "co_filename", ""))
        elif event == "compile":
            self._run("compile", args[1])
        elif event == "import":
            self._import(*args[:2])
        elif event == "ctypes.dlopen":
            self._run("dlopen", args[0])
        elif event in ("socket.connect", "socket.sendto"):
            self._connect(args[1])
        elif event in STARTS:
            self.report(f"process: {event} {args[:2]!r}")
        elif event == "pickle.find_class":
            self.report(f"pickle: {args!r}")
        elif event in CHANGES:
            for path, folder in CHANGES[event]:
                self._change(event, _within(args[path], args[folder : folder + 1]))

    def _open(self, path: Any, mode: Any, flags: Any) -> None:
        if not isinstance(path, str | bytes):
            return
        if (isinstance(mode, str) and set(mode) & set("wax+")) or (flags or 0) & WRITING:
            self._change("open", path)
        elif _is_below(path, self.traps):
            self.report(f"read: {path!r}")

    def _run(self, event: str, file: Any) -> None:
        # Dataclasses and others compile text without a file.
        if isinstance(file, str | bytes) and file and not os.fsdecode(file).startswith("<"):
            named = os.sep in os.fsdecode(file)  # a library by name alone is the system's
            if (named or event != "dlopen") and not _is_below(file, self.code):
                self.report(f"{event}: {file!r}")

    def _import(self, name: str, file: Any) -> None:
        if name.partition(".")[0] in CURIOUS:
            self.report(f"import: {name}")
        self._run("import", file)

    def _connect(self, address: Any) -> None:
        if address[1:2] and (
            address[0] not in ("127.0.0.1", "::1") or address[1] not in self.ports
        ):
            self.report(f"socket: {address!r}")

    def _change(self, event: str, path: Any) -> None:
        if isinstance(path, str | bytes) and not _is_below(path, self.writable):
            self.report(f"write: {event} {path!r}")


def _within(path: Any, folder: tuple[Any, ...]) -> Any:
    """Return the absolute path of one that is relative to an open folder."""
    if isinstance(path, str | bytes) and folder and isinstance(folder[0], int) and folder[0] >= 0:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder[0]}"), os.fsdecode(path))
    return path


def _is_below(path: str | bytes, folders: Sequence[Path]) -> bool:
    whole = os.path.abspath(os.fsdecode(path))
    return any(whole == str(one) or whole.startswith(f"{one}{os.sep}") for one in folders)
