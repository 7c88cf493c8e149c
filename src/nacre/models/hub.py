"""Files of the Hugging Face hub, without its client: found in its cache, or downloaded and checked.

The hub says of each file what its content hashes to: the sha256 of a large file, in a header of the
redirection to where it is stored; of a small one, git's name for it.
"""

from __future__ import annotations

import os
import re
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from nacre.errors import NacreError
from nacre.models.download import TIMEOUT, Checksum, cache_folder, download

_REDIRECTIONS = (301, 302, 303, 307, 308)


def hub_file(repository: str, file: str, *, revision: str = "main") -> Path:
    """Return a file of a repository of the Hugging Face hub, checked by what the hub says of it.

    Raises:
        NacreError: it is not here and cannot be had.
    """
    own = cache_folder() / "hub" / repository / revision / file
    for path in (own, _in_its_cache(repository, file, revision)):
        if path.is_file():
            return path
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    url = f"{endpoint}/{repository}/resolve/{revision}/{file}"
    return download(url, own, _ask_checksum(url))


def _in_its_cache(repository: str, file: str, revision: str) -> Path:
    """Return where the hub's own client keeps a file."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    cache = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")).expanduser()
    folder = cache / f"models--{repository.replace('/', '--')}"
    reference = folder / "refs" / revision
    commit = reference.read_text().strip() if reference.is_file() else revision
    return folder / "snapshots" / commit / file


class _Stay(urllib.request.HTTPRedirectHandler):
    """Leaves redirections alone: what the hub says of a file stands in front of them."""

    def redirect_request(self, *args: object, **kwargs: object) -> None:
        return None


def _ask_checksum(url: str) -> Checksum | None:
    """Ask the hub for a file's checksum: sha256 of a large file, git's of a small one."""
    opener = urllib.request.build_opener(_Stay)
    for _ in range(5):
        request = urllib.request.Request(url, headers={"User-Agent": "nacre"}, method="HEAD")
        try:
            headers = opener.open(request, timeout=TIMEOUT).headers
            target = None
        except urllib.error.HTTPError as error:
            if error.code not in _REDIRECTIONS:
                return None  # the download itself says what is wrong
            headers, target = error.headers, error.headers.get("Location")
        except (urllib.error.URLError, OSError):
            return None
        linked, plain = headers.get("X-Linked-ETag"), headers.get("ETag")
        if linked or target is None:
            return _checksum(linked or plain)
        url = urllib.parse.urljoin(url, target)
    return None


def _checksum(tag: str | None) -> Checksum | None:
    digest = (tag or "").removeprefix("W/").strip('"').lower()
    if re.fullmatch(r"[0-9a-f]{64}", digest):
        return Checksum(digest)
    return Checksum(digest, "git") if re.fullmatch(r"[0-9a-f]{40}", digest) else None


ADDRESS = "hf:/"
"""What the address of a model on the hub begins with; a path has lost the second slash."""


def hub_model(address: str) -> Path:
    """Return the model file of an address such as ``hf://organisation/name@revision``.

    Raises:
        NacreError: it is no such address, or the file cannot be had.
    """
    repository, _, revision = address.removeprefix(ADDRESS).lstrip("/").partition("@")
    parts = repository.split("/")
    if len(parts) != 2 or not all(re.fullmatch(r"[\w.-]*\w[\w.-]*", part) for part in parts):
        raise NacreError(
            f"{address} is no model of the hub: give hf://organisation/name, with @revision if "
            "another than main is meant"
        )
    if not re.fullmatch(r"[\w.-]*", revision):
        raise NacreError(f"{address}: {revision!r} is no revision")
    return hub_file(repository, "model.safetensors", revision=revision or "main")
