"""The documents as files: looks at them again and again and offers what changed."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from hlserve_router.tables import Kind, Tables


@dataclass(slots=True, eq=False)
class Files:
    """The files behind the tables, in the order in which they are read: keys and credentials before the table that needs them."""

    tables: Tables
    documents: tuple[tuple[Kind, Path], ...]
    _stamps: dict[Path, tuple[int, int, int]] = field(default_factory=dict)

    def load(self) -> None:
        """Reads what changed. A bad or missing file is a problem, not an exception."""
        for kind, path in self.documents:
            self._check(kind, path)

    async def watch(self, every_seconds: float) -> None:
        """Looks at the files for ever."""
        while True:
            await asyncio.sleep(every_seconds)
            self.load()

    def await_all(self) -> None:
        """The first readiness waits for every file."""
        for kind, path in self.documents:
            self.tables.await_source(kind, str(path))

    def _check(self, kind: Kind, path: Path) -> None:
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == self._stamps.get(path):
                self.tables.heard(kind, str(path))
                return
            data = path.read_bytes()
        except OSError as error:
            self._stamps.pop(path, None)
            self.tables.refuse(kind, str(path), f"{path} cannot be read: {error.strerror or error}.")
            return
        self._stamps[path] = stamp
        self.tables.offer(kind, str(path), data)
