"""Files of the Hugging Face hub: found in its cache, or fetched by its own client and checked.

Names come from model files and from strangers' addresses, so that each is checked here, whoever
calls: none of them can leave the cache. What the hub answers becomes names in the cache, too.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from nacre.errors import NacreError, shown
from nacre.models.download import sha256_of
from nacre.utils.system import import_extra

ADDRESS = "hf:/"
"""What the address of a model on the hub begins with; a path has lost the second slash."""

_NAME = re.compile(r"(?!.*\.\.)[A-Za-z0-9_]([A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?")
_REPOSITORY = re.compile(rf"{_NAME.pattern}/{_NAME.pattern}")


def hub_model(address: str) -> Path:
    """Return the model file of an address such as ``hf://organization/name@revision``.

    Raises:
        NacreError: it is no such address, or the file cannot be fetched.
    """
    repository, at, revision = address.removeprefix(ADDRESS).lstrip("/").partition("@")
    return hub_file(repository, "model.safetensors", revision=revision if at else "main")


def hub_file(repository: str, file: str, *, revision: str = "main") -> Path:
    """Return a file of a repository of the hub; what is in the hub's cache is not asked for.

    Raises:
        NacreError: a name is none, or the file is not here and cannot be fetched.
    """
    _check(_REPOSITORY, repository, "repository of the hub", "organization/name")
    _check(_NAME, file, "file of a repository", "its name alone, such as model.safetensors")
    _check(_NAME, revision, "revision of a repository", "a branch, a tag or a commit")
    endpoint = _endpoint()
    hub = import_extra("huggingface_hub", "hub")
    try:
        found = hub.try_to_load_from_cache(repository, file, revision=revision)
        path = Path(found) if isinstance(found, str) else None
        path = path or _fetch(hub, repository, file, revision, endpoint)
    except Exception as error:  # the client's own, those of its HTTP library, and any of Python's
        raise NacreError(
            f"could not get {file} of {repository}, revision {revision}, from {endpoint} "
            f"({_reason(error)}): check the name and the network, or fetch it by hand and give the "
            "path of the file"
        ) from error
    if not path.resolve().is_relative_to(Path(hub.constants.HF_HUB_CACHE).resolve()):
        raise NacreError(f"{path} lies outside the hub's cache {hub.constants.HF_HUB_CACHE}")
    return path


def _check(pattern: re.Pattern[str], name: str, what: str, wanted: str) -> None:
    if not pattern.fullmatch(name):
        raise NacreError(f"{shown(name)} is no {what}: give {wanted}")


def _endpoint() -> str:
    """Return the address of the hub; a variable that is set and empty counts as not set."""
    endpoint = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    try:
        url = urlsplit(endpoint)
        is_address = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        is_address = False
    if not is_address:
        raise NacreError(
            f"HF_ENDPOINT={endpoint!r} is no address of a hub: unset it, or give one such as "
            "https://huggingface.co"
        )
    return endpoint


def _fetch(hub: Any, repository: str, file: str, revision: str, endpoint: str) -> Path:
    """Fetch a file into the hub's cache, once what the hub says of it was looked at.

    The client names files in its cache by the hub's entity tag and commit, and compares no
    checksum: the entity tag of a large file is its sha256.
    """
    url = hub.hf_hub_url(repository, file, revision=revision, endpoint=endpoint)
    said = hub.get_hf_file_metadata(url, endpoint=endpoint)
    for name in (said.etag, said.commit_hash):
        if name is not None and not _NAME.fullmatch(name):
            raise ValueError(f"the hub's answer holds {name[:80]!r}, which is no checksum")
    path = Path(hub.hf_hub_download(repository, file, revision=revision, endpoint=endpoint))
    if re.fullmatch(r"[0-9a-f]{64}", said.etag or "") and sha256_of(path) != said.etag:
        path.resolve().unlink()
        path.unlink(missing_ok=True)
        raise ValueError(f"what came is not the published file: its sha256 is not {said.etag[:8]}…")
    return path


def _reason(error: Exception) -> str:
    cause = error.__cause__ or error  # the client says of most problems that there was one
    status = getattr(getattr(cause, "response", None), "status_code", None)
    if status in (401, 403):
        return f"the hub answers {status}: not there, or for members only: `hf auth login`"
    if status is not None:
        return f"the hub answers {status}"
    return " ".join(str(cause).split())[:200] or type(cause).__name__
