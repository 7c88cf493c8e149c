"""Files of published addresses, fetched by torch's client and kept only if they are the ones."""

from __future__ import annotations

import hashlib
import http.client
import sys
import urllib.request
from pathlib import Path

import torch

from nacre.errors import NacreError


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, path: Path, sha256: str) -> Path:
    """Fetch a file unless it is there.

    Args:
        url: Its address.
        path: Where to put it.
        sha256: Its checksum, as much of it as is published.

    Raises:
        NacreError: the file cannot be fetched, or is not the published one.
    """
    if path.is_file():
        return path
    try:
        urllib.request.Request(url)  # of what is no address torch's client leaves a part behind
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), sha256, progress=sys.stderr.isatty())
    except (OSError, ValueError, RuntimeError, http.client.HTTPException) as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise NacreError(
            f"could not download {url} ({reason}): fetch it by hand and put it at {path}"
        ) from error
    return path
