"""Noticing that a folder of manifests changed."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path

from hlserve_local.manifests import FolderMissingError, manifest_files


def fingerprint(path: Path) -> str:
    """Digest of the names and contents of all manifest files; empty while the folder cannot be read."""
    digest = hashlib.sha256()
    try:
        for file in manifest_files(path):
            digest.update(file.name.encode() + b"\0")
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    except (FolderMissingError, OSError):
        return ""
    return digest.hexdigest()


async def changes(path: Path, known: str, poll_seconds: float = 0.4) -> AsyncIterator[str]:
    """Yield each new fingerprint that differs from the last, once it stood still for one poll.

    `known` is the fingerprint of what the caller already used. An editor that writes a file in two steps, or a `git checkout`
    of several files, thus gives one change. A folder that is gone is a change too: its fingerprint is empty.
    """
    seen = known
    while True:
        await asyncio.sleep(poll_seconds)
        now = await asyncio.to_thread(fingerprint, path)
        if now != known and now == seen:
            known = now
            yield now
        seen = now
