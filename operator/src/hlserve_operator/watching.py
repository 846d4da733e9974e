"""Keeps a copy of some objects of the namespace: list, then watch from there, and list again whenever a watch ends.

A watch that was closed may have missed a deletion, and one that is silent may be dead, so neither is trusted: every end of a
watch, and every `relist_seconds`, is followed by a full list that is compared with what was known. While the API server is away
the copy stays as it was.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Generic, TypeVar

import aiohttp

from hlserve_operator.api import Api
from hlserve_operator.errors import ApiError, GoneError, NotFoundError, UnavailableError
from hlserve_operator.state import Manifest

_log = logging.getLogger("hlserve_operator.watching")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Watched:
    """Which objects are kept a copy of."""

    api_version: str
    kind: str
    labels: str = ""
    fields: str = ""


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often and how long, in seconds."""

    relist_seconds: float = 300.0
    silence_seconds: float = 80.0
    """Without an event or a bookmark; the API server sends a bookmark about once a minute."""
    retry_first_seconds: float = 0.2
    retry_max_seconds: float = 10.0
    absent_seconds: float = 30.0
    """Until a kind that the cluster does not serve is looked for again."""


@dataclass(frozen=True, slots=True)
class Change(Generic[T]):
    """One object that came, changed or went: what was kept of it before and after; None: it was or is not there."""

    name: str
    before: T | None
    after: T | None


@dataclass(slots=True, eq=False)
class Reflector(Generic[T]):
    """The copy. `keep` makes what is kept of an object (None: nothing); `changed` is told only when that differs from before."""

    api: Api
    watched: Watched
    keep: Callable[[Manifest], T | None]
    changed: Callable[[Change[T]], None]
    rhythm: Rhythm = Rhythm()
    random: Random = field(default_factory=Random)
    objects: dict[str, T] = field(default_factory=dict)
    """By name. Not to be changed by others."""
    absent: bool = False
    """The cluster does not serve the kind."""
    denied: str = ""
    """Why the API server refused the last list or watch; empty if it did not."""
    restarts: int = 0
    """Watches that ended before their time, and lists that failed."""
    _heard: float | None = None
    _tried: float | None = None
    _synced: asyncio.Event = field(default_factory=asyncio.Event)

    async def synced(self) -> None:
        """Returns once a first list was taken in, or the kind is known to be absent or refused."""
        await self._synced.wait()

    def silent_seconds(self) -> float:
        """How long ago the API server was last heard of; 0 before the first list, and while the kind is absent."""
        return 0.0 if self._heard is None or self.absent else asyncio.get_running_loop().time() - self._heard

    def tried_seconds(self) -> float:
        """How long ago it last began a list or a watch: a copy that goes on trying is alive, whether or not it gets an answer."""
        return 0.0 if self._tried is None else asyncio.get_running_loop().time() - self._tried

    async def run(self) -> None:
        """Keeps the copy until it is cancelled."""
        failures = 0
        while True:
            pause = 0.0
            began = self._tried = asyncio.get_running_loop().time()
            try:
                await self._watch(await self._list())
                failures = 0
                continue
            except NotFoundError:
                self._forget_kind()
                pause = self.rhythm.absent_seconds
            except (ApiError, TimeoutError, aiohttp.ClientError, ValueError) as error:
                self.restarts += 1
                self.denied = str(error) if isinstance(error, ApiError) and error.status == 403 else ""
                if self.denied:
                    self._synced.set()
                held = asyncio.get_running_loop().time() - began > self.rhythm.retry_max_seconds
                # A version that is too old needs a new list, and nothing else.
                failures = 0 if held or isinstance(error, GoneError) else failures + 1
                _log.info(
                    "watch ended",
                    extra={"fields": {"kind": self.watched.kind, "error": str(error) or type(error).__name__}},
                )
                if failures:
                    pause = self._pause(failures)
            await asyncio.sleep(pause)

    def _pause(self, failures: int) -> float:
        """Doubles with each failure, with jitter, so that watches do not come back together."""
        rhythm = self.rhythm
        longest = min(rhythm.retry_first_seconds * float(2 ** min(failures - 1, 16)), rhythm.retry_max_seconds)
        return longest * (0.5 + self.random.random() / 2)

    async def _list(self) -> str:
        listing = await self.api.list(
            self.watched.api_version, self.watched.kind, labels=self.watched.labels, fields=self.watched.fields
        )
        self._hear()
        self.absent, self.denied = False, ""
        found = {item["metadata"]["name"]: self.keep(item) for item in listing.items}
        for name in [name for name in self.objects if name not in found]:
            self._take(name, None)
        for name, kept in found.items():
            self._take(name, kept)
        self._synced.set()
        return listing.resource_version

    async def _watch(self, version: str) -> None:
        """Follows the events until it is time to list again. Raises what ended the watch before."""
        until = asyncio.get_running_loop().time() + self.rhythm.relist_seconds * (0.9 + self.random.random() / 10)
        watched = self.watched
        async with self.api.watch(
            watched.api_version,
            watched.kind,
            version,
            int(self.rhythm.relist_seconds) + 10,
            labels=watched.labels,
            fields=watched.fields,
        ) as lines:
            await self._follow(lines, until)

    async def _follow(self, lines: AsyncIterator[bytes], until: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(min(until, loop.time() + self.rhythm.silence_seconds)):
                    line = await anext(lines, None)
            except TimeoutError:
                if loop.time() >= until:
                    return
                raise UnavailableError(f"The watch of {self.watched.kind}s has gone silent.") from None
            if line is None:
                raise UnavailableError(f"The watch of {self.watched.kind}s was closed.")
            if line.strip():
                self._hear()
                self._event(json.loads(line))

    def _event(self, event: Mapping[str, Any]) -> None:
        kind, found = event["type"], event["object"]
        if kind == "BOOKMARK":
            return
        if kind == "ERROR":
            code, message = found.get("code"), found.get("message") or "The watch failed."
            raise GoneError(message, 410) if code == 410 else UnavailableError(message, code or 500)
        self._take(found["metadata"]["name"], None if kind == "DELETED" else self.keep(found))

    def _take(self, name: str, kept: T | None) -> None:
        before = self.objects.get(name)
        if kept is None:
            self.objects.pop(name, None)
        else:
            self.objects[name] = kept
        if before != kept:
            self.changed(Change(name, before, kept))

    def _forget_kind(self) -> None:
        self.absent = True
        for name in list(self.objects):
            self._take(name, None)
        self._synced.set()

    def _hear(self) -> None:
        self._heard = asyncio.get_running_loop().time()
