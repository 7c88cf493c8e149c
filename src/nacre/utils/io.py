"""Writing files so that nothing is ever half written: a new file, flushed, then renamed.

If writing fails (a full disk, a quota), the earlier file is untouched and the new one removed.
"""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import yaml

from nacre.errors import NacreError

_ADDED = r"\.[a-z0-9_]{8}"  # to a name, by mkstemp
_SAFETENSORS = r"\.tmp[A-Za-z0-9]{6}"  # which writes beside its file, and renames


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder that takes the place of ``path`` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # mkstemp makes private files; a result should be as readable as any other new file.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path, names: Collection[str]) -> None:
    """Remove what killed processes left of files that they were writing.

    Args:
        folder: Where nobody writes now.
        names: Of the files that might have been written.
    """
    known = [rf"\.{re.escape(name)}{_ADDED}" for name in names]
    if any(name.endswith(".safetensors") for name in names):
        known.append(_SAFETENSORS)
    for left in folder.glob(".*"):
        if re.fullmatch("|".join(known), left.name):
            with contextlib.suppress(OSError):
                left.unlink()


def save(path: Path, write: Callable[[Path], Any]) -> None:
    """Write ``path`` atomically by ``write``, turning a failing disk into one clear sentence."""
    kept = path.exists()
    try:
        with replacing(path) as temporary:
            write(temporary)
    except Exception as error:
        # safetensors reports a full disk by an exception of its own.
        if not (isinstance(error, OSError) or type(error).__name__ == "SafetensorError"):
            raise
        rest = "the earlier file is kept" if kept else "nothing was written"
        raise NacreError(f"could not write {path}: {error}; {rest}") from error


def save_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    save(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def save_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; NaN is not JSON and therefore an error here."""
    save_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


def read_text(path: Path, what: str) -> str:
    """Read a text file, or say in one sentence why that is not possible."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise NacreError(f"could not read {what} {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise NacreError(f"could not read {what} {path}: it is not text in UTF-8") from error


def read_yaml(path: Path, what: str, must_hold: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; ``must_hold`` says of what, for people."""
    try:
        content = yaml.safe_load(read_text(path, what))
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise NacreError(f"{what} {path} is not valid YAML: {reason}") from error
    if not isinstance(content, dict):
        raise NacreError(f"{what} {path} must hold {must_hold}")
    return content


def load_json(path: Path) -> Any:
    """Read a JSON file, or say in one sentence why that is not possible."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NacreError(f"could not read {path}: {error}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
