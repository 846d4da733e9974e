"""The private folder that a stack and its router share: routing table, keyrings, token, logs."""

import os
import tempfile
from pathlib import Path


def make_runtime_dir() -> Path:
    """A new folder that only this user can enter: in `$XDG_RUNTIME_DIR` if set, else where temporary files go."""
    parent = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(tempfile.mkdtemp(prefix="hlserve-", dir=parent if os.path.isdir(parent) else None))


def write_private(file: Path, text: str) -> None:
    """Write `file` with mode 0600 so that a reader sees the whole old or the whole new content."""
    new = file.with_name(f".{file.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(file)
