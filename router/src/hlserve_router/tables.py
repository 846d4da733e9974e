"""Watches the routing table and keyring files and puts them in force when their content changes. The last good one stays."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from pydantic import ValidationError

from hlserve_api.routing import UnsupportedSchemaVersionError, parse_keyring, parse_table
from hlserve_router.errors import TableError
from hlserve_router.proxy import Proxy

_log = logging.getLogger("hlserve_router.tables")


@dataclass(slots=True)
class _Seen:
    stamp: tuple[int, int, int] | None = None
    digest: str = ""


@dataclass(slots=True, eq=False)
class Tables:
    """The files behind a proxy's table and keyrings."""

    proxy: Proxy
    table: Path
    keyrings: tuple[Path, ...] = ()
    applied_at: float = 0.0
    """Unix seconds of the last table put in force."""
    problems: dict[str, str] = field(default_factory=dict)
    """File name -> why its newest content is not in force."""
    _seen: dict[Path, _Seen] = field(default_factory=dict)

    def load(self) -> None:
        """Reads everything once. A bad or missing file is a problem, not an exception."""
        for path in self.keyrings:
            self._check(path, "keyring", self._apply_keyring)
        self._check(self.table, "table", self._apply_table)

    @property
    def ready(self) -> bool:
        """True once a table and every keyring shard have been in force."""
        return self.proxy.pools.table is not None and len(self.proxy.keyrings.generations) == len(self.keyrings)

    async def watch(self, every_seconds: float) -> None:
        """Looks at the files for ever."""
        while True:
            await asyncio.sleep(every_seconds)
            self.load()

    def _check(self, path: Path, kind: str, apply: Callable[[Path, bytes], None]) -> None:
        seen = self._seen.setdefault(path, _Seen())
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
            if stamp == seen.stamp:
                return
            data = path.read_bytes()
        except OSError as error:
            self._problem(path, kind, f"{path} cannot be read: {error.strerror or error}.")
            return
        seen.stamp = stamp
        digest = sha256(data).hexdigest()
        if digest == seen.digest:
            return
        seen.digest = digest
        try:
            apply(path, data)
        except (ValidationError, UnsupportedSchemaVersionError, TableError) as error:
            self._problem(path, kind, f"{path} is not in force: {_sentence(error)}")
            return
        self.problems.pop(str(path), None)
        _log.info("document applied", extra={"fields": {"document": kind, "file": str(path)}})

    def _problem(self, path: Path, kind: str, sentence: str) -> None:
        if self.problems.get(str(path)) == sentence:
            return
        self.problems[str(path)] = sentence
        self.proxy.metrics.count("hlserve_router_document_errors_total", (kind,))
        _log.warning("document refused", extra={"fields": {"document": kind, "why": sentence}})

    def _apply_table(self, path: Path, data: bytes) -> None:
        self.proxy.pools.apply(parse_table(data), self.proxy.now())
        self.applied_at = self.proxy.clocks.wall()
        self.proxy.admission.pump(self.proxy.now())

    def _apply_keyring(self, path: Path, data: bytes) -> None:
        self.proxy.keyrings.apply(str(path), parse_keyring(data))
        self.proxy.limits.keep_only(self.proxy.keyrings.clients())


def _sentence(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
        return f"{where}: {first['msg']}{more}."
    return str(error)
