"""kopf, embedded, as a source of events about our kinds. Its handlers only say what to look at; nothing of kopf's is stored anywhere.

Only `on.event` handlers: with those kopf writes no annotation, no finalizer and no status. After a 410 it lists again, but never
tells of a deletion that it missed, and any other error in a stream ends it: so every object is also looked at again from time to
time, and when kopf ends, this process does. If it cannot even find out which kinds there are, it goes on and watches nothing: that
is noticed by what it does not tell of (`Sight`).
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import kopf

from hlserve_api.v1alpha1 import GROUP, VERSION, ClientKey, ServingPool, WorkloadClass
from hlserve_operator.keys import ACCESS, Key, pool_key

Login = Callable[[], Awaitable[kopf.ConnectionInfo]]
STOP_SECONDS: Final = 5.0
"""Longest wait for kopf to end; its thread does not keep the process."""
_QUIET: Final = ("kopf", "aiohttp.access")
_SIGNALS_LOGGER: Final = "kopf._core.reactor.running"
_SIGNALS: Final = "OS signals are ignored"
"""kopf warns of this at each start; this process has handlers of its own, which end kopf too."""


@dataclass(slots=True, eq=False)
class Sight:
    """Which pools and classes kopf has told of: a kopf that watches tells of everything that is there, soon after it begins."""

    _seen: set[str] = field(default_factory=set)
    _unseen: set[str] = field(default_factory=set)

    def saw(self, uid: str) -> None:
        """kopf told of this object."""
        self._seen.add(uid)

    def knows(self, uid: str) -> bool:
        """Whether kopf told of this object."""
        return uid in self._seen

    def is_blind(self, existing: Iterable[str]) -> bool:
        """Whether an object, by UID, that was there at the last look too has not been told of since."""
        uids = set(existing)
        self._seen &= uids
        unseen = uids - self._seen
        blind = bool(unseen & self._unseen)
        self._unseen = unseen
        return blind


def registry(add: Callable[[Key], None], login: Login, saw: Callable[[str], None]) -> kopf.OperatorRegistry:
    """The handlers: `add` is told which key an event is about, `saw` the UID of its object."""
    handlers = kopf.OperatorRegistry()

    async def log_in(**_: Any) -> kopf.ConnectionInfo:
        return await login()

    async def pool_changed(name: str, uid: str, **_: Any) -> None:
        saw(uid)
        add(pool_key(name))
        add(ACCESS)

    async def access_changed(uid: str, **_: Any) -> None:
        saw(uid)
        add(ACCESS)

    kopf.on.login(registry=handlers)(log_in)
    kopf.on.event(GROUP, VERSION, ServingPool.names.plural, registry=handlers)(pool_changed)
    for kind in (WorkloadClass, ClientKey):
        kopf.on.event(GROUP, VERSION, kind.names.plural, registry=handlers)(access_changed)
    return handlers


def settings() -> kopf.OperatorSettings:
    """kopf's settings: short time-outs, no events of its own, no look at the cluster's other namespaces."""
    chosen = kopf.OperatorSettings()
    chosen.posting.enabled = False
    chosen.scanning.disabled = True
    chosen.networking.request_timeout = 30
    chosen.watching.server_timeout = 300
    chosen.watching.client_timeout = 360
    chosen.watching.inactivity_timeout = 70
    # It would end the whole process with SIGKILL while another leads on.
    chosen.process.ultimate_exiting_timeout = None
    return chosen


def _says_more_than_signals(record: logging.LogRecord) -> bool:
    return _SIGNALS not in record.getMessage()


async def run(namespace: str, add: Callable[[Key], None], login: Login, sight: Sight) -> None:
    """Runs kopf until it is cancelled. Returns or raises before that only if a stream of it broke.

    It gets a thread and an event loop of its own: when it ends, it cancels every task that began after it, whosever that is.
    """
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger(_SIGNALS_LOGGER).addFilter(_says_more_than_signals)
    loop = asyncio.get_running_loop()
    ended, ending = loop.create_future(), _Ending()

    def told(call: Callable[..., None], *arguments: object) -> None:
        # Nobody listens any more while the process ends.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(call, *arguments)

    async def watch() -> None:
        handlers = registry(partial(told, add), login, partial(told, sight.saw))
        with ending.of_this_task():
            await kopf.operator(registry=handlers, settings=settings(), namespaces=[namespace], standalone=True)

    def watch_apart() -> None:
        error: Exception | None = None
        try:
            asyncio.run(watch())
        except asyncio.CancelledError:
            pass
        except Exception as raised:
            error = raised
        told(_settle, ended, error)

    thread = threading.Thread(target=watch_apart, name="kopf", daemon=True)
    thread.start()
    try:
        await asyncio.shield(ended)
    finally:
        ending.ask()
        await asyncio.wait([ended], timeout=STOP_SECONDS)


@dataclass(slots=True, eq=False)
class _Ending:
    """Cancels a task of another thread's loop, also one that has not begun yet.

    kopf's own flag for it keeps a thread waiting, and kopf waits for that thread for five seconds when a stream of it broke.
    """

    _lock: threading.Lock = field(default_factory=threading.Lock)
    _asked: bool = False
    _cancel: Callable[[], object] | None = None

    @contextlib.contextmanager
    def of_this_task(self) -> Iterator[None]:
        """Within the block the running task can be ended. Raises CancelledError if that was asked for already."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        with self._lock:
            if self._asked or task is None:
                raise asyncio.CancelledError
            self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        try:
            yield
        finally:
            with self._lock:
                self._cancel = None

    def ask(self) -> None:
        """Ends the task. Harmless when repeated, and after its end."""
        with self._lock:
            self._asked = True
            if self._cancel is not None:
                self._cancel()


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
