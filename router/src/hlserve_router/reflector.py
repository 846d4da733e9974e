"""Keeps a copy of some objects of the cluster: list, then watch from there, and list again whenever a watch ends.

A watch that was closed may have missed a deletion, and one that is silent may be dead, so neither is trusted: every end of a
watch, and every `relist_seconds`, is followed by a full list. While the API server is away the copy stays as it was.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Final

import httpx
import msgspec

from hlserve_router.errors import RouterError
from hlserve_router.kubernetes_api import ApiError, GoneError, KubernetesApi, Parameters

_log = logging.getLogger("hlserve_router.reflector")
FIRST_PAUSE_SECONDS: Final = 0.1
Objects = Mapping[str, bytes]
"""Objects by name, as JSON."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What is kept a copy of. `title`: its name in sentences."""

    path: str
    selector: Parameters
    title: str


@dataclass(frozen=True, slots=True)
class Rhythm:
    """How often and how long, in seconds."""

    relist_seconds: float = 60.0
    silence_seconds: float = 90.0
    retry_max_seconds: float = 4.0
    answer_seconds: float = 10.0
    """For everything but the wait for a watch's next event."""


@dataclass(frozen=True, slots=True)
class Listener:
    """What a reflector tells. All are called on the event loop."""

    changed: Callable[[Objects], None]
    """All objects, after a list and after each event."""
    heard: Callable[[], None]
    """A sign of life without news."""
    lost: Callable[[str], object]
    """The API server cannot be asked, in a sentence."""
    restarted: Callable[[str], None]
    """A list failed, or a watch ended before its time: closed, gone, silent or failed."""


class _Meta(msgspec.Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta = msgspec.field(default_factory=_Meta)
    code: int = 0


class _List(msgspec.Struct):
    metadata: _Meta
    items: list[msgspec.Raw] = []


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


_read_object: Final = msgspec.json.Decoder(_Object).decode
_read_list: Final = msgspec.json.Decoder(_List).decode
_read_event: Final = msgspec.json.Decoder(_Event).decode
_FAILURES: Final = (ApiError, httpx.HTTPError, OSError, msgspec.DecodeError, httpx.InvalidURL)


class WatchEndedError(RouterError):
    """A watch ended before its time: closed or silent."""


@dataclass(slots=True, eq=False)
class Reflector:
    """The copy of what `watched` selects."""

    api: KubernetesApi
    client: httpx.AsyncClient
    watched: Watched
    listener: Listener
    rhythm: Rhythm = Rhythm()
    random: Random = field(default_factory=Random)
    _objects: dict[str, bytes] = field(default_factory=dict)

    async def run(self) -> None:
        """Keeps the copy for ever."""
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            try:
                version = await self._list()
                await self._watch(version)
                failures = 0
                continue
            except GoneError:
                self._restarted("gone")
            except WatchEndedError as error:
                self._restarted(str(error))
            except _FAILURES as error:
                self._restarted("failed")
                self.listener.lost(self.api.describe(error, self.watched.title))
            # A watch that held for a while was good: the next list follows at once.
            held = asyncio.get_running_loop().time() - began > self.rhythm.retry_max_seconds
            failures = 0 if held else failures + 1
            await asyncio.sleep(self._pause(failures))

    def _restarted(self, cause: str) -> None:
        self.listener.restarted(cause)
        _log.debug("watch ended", extra={"fields": {"watched": self.watched.title, "cause": cause}})

    def _pause(self, failures: int) -> float:
        """Doubles with each failure, with jitter, so that routers do not come back together."""
        longest = min(FIRST_PAUSE_SECONDS * float(2 ** min(failures, 16)), self.rhythm.retry_max_seconds)
        part: float = 0.5 + self.random.random() / 2
        return longest * part

    async def _list(self) -> str:
        answer = await self.client.get(
            self.watched.path,
            params=self.watched.selector,
            headers=self.api.headers(),
            timeout=self.rhythm.answer_seconds,
        )
        self.api.check(answer.status_code, self.watched.title)
        found = _read_list(answer.content)
        self._objects = {_read_object(item).metadata.name: bytes(item) for item in found.items}
        self.listener.changed(self._objects)
        return found.metadata.resource_version

    async def _watch(self, version: str) -> None:
        """Follows the events until it is time to list again. Raises what ended the watch before."""
        loop = asyncio.get_running_loop()
        lasts = self.rhythm.relist_seconds * (0.9 + self.random.random() / 10)
        until = loop.time() + lasts
        parameters: Parameters = {
            **self.watched.selector, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(lasts) + 10),
        }  # fmt: skip
        request = self.client.build_request(
            "GET",
            self.watched.path,
            params=parameters,
            headers=self.api.headers(),
            timeout=httpx.Timeout(self.rhythm.answer_seconds, read=None),
        )
        async with asyncio.timeout(self.rhythm.answer_seconds):
            answer = await self.client.send(request, stream=True)
        try:
            self.api.check(answer.status_code, self.watched.title)
            await self._follow(answer.aiter_lines(), until)
        finally:
            await answer.aclose()

    async def _follow(self, lines: AsyncIterator[str], until: float) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(min(until, loop.time() + self.rhythm.silence_seconds)):
                    line = await anext(lines, None)
            except TimeoutError:
                if loop.time() >= until:
                    return
                raise WatchEndedError("silent") from None
            except httpx.HTTPError:
                raise WatchEndedError("closed") from None
            if line is None:
                raise WatchEndedError("closed")
            if line:
                self._event(_read_event(line))

    def _event(self, event: _Event) -> None:
        found = _read_object(event.object)
        if event.type == "BOOKMARK":
            self.listener.heard()
            return
        if event.type == "ERROR":
            self.api.check(found.code or 500, self.watched.title)
        if event.type == "DELETED":
            self._objects.pop(found.metadata.name, None)
        else:
            self._objects[found.metadata.name] = bytes(event.object)
        self.listener.changed(self._objects)
