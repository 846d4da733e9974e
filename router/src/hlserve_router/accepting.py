"""Takes connections from the one listening socket that the workers of a pod share, so that none gets far more than its share.

A worker that has clearly more connections than the one with fewest takes no more until that has changed. The one with
fewest always may, so nobody waits in a queue of a busy worker's own, as with a listening socket for each; and connections
that wait when a worker dies are taken by the others.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from hlserve_router.ledger import Ledger

BATCH: Final = 16
"""Connections taken in one go before other work has its turn."""
SLACK: Final = 1
SLACK_DIVISOR: Final = 8
"""A worker may have this many, and an eighth, more connections than the one with fewest: 53 % of many, of two workers."""
BEAT_SECONDS: Final = 0.1
EXHAUSTED_SECONDS: Final = 1.0
"""How long no connection is taken after the process ran out of descriptors."""
_log = logging.getLogger("hlserve_router.accepting")


def may_take(mine: int, fewest: int | None) -> bool:
    """True if a worker with `mine` connections may take one more; `fewest`: of the others, None: it is alone."""
    return fewest is None or mine < fewest + SLACK + fewest // SLACK_DIVISOR + 1


class Acceptor:
    """The part of a server that takes connections. Quacks like an `asyncio.Server` where uvicorn closes one."""

    def __init__(
        self,
        listener: socket.socket,
        ledger: Ledger,
        make: Callable[[], asyncio.Protocol],
        connections: Callable[[], int],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._listener = listener
        self._ledger = ledger
        self._make = make
        self._connections = connections
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._coming: set[asyncio.Task[None]] = set()
        self._reading = self._closed = False
        self._exhausted_until = 0.0
        self._timer = self._loop.call_soon(self._beat)

    @property
    def count(self) -> int:
        """Connections of this worker, with those whose handshake is not over."""
        return self._connections() + len(self._coming)

    def look(self) -> None:
        """Takes connections again if this worker may: the doorbell was rung, or time has passed."""
        if self._closed or self._reading or self._loop.time() < self._exhausted_until:
            return
        lightest = self._ledger.lightest()
        if may_take(self.count, None if lightest is None else lightest[0]):
            self._loop.add_reader(self._listener, self._ready)
            self._reading = True

    def close(self) -> None:
        """Takes no more."""
        if not self._closed:
            self._closed = True
            self._pause()
            self._timer.cancel()
            self._ledger.beat(None)

    async def wait_closed(self) -> None:
        """Until the handshakes in progress are over."""
        await asyncio.gather(*self._coming, return_exceptions=True)

    def _beat(self) -> None:
        self._ledger.beat(self.count)
        self.look()
        self._timer = self._loop.call_later(BEAT_SECONDS, self._beat)

    def _pause(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._listener)

    def _ready(self) -> None:
        for _ in range(BATCH):
            lightest = self._ledger.lightest()
            if lightest is not None and not may_take(self.count, lightest[0]):
                self._pause()
                self._ledger.wake(lightest[1])
                return
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                _log.error("no connection can be taken", extra={"fields": {"why": error.strerror}})
                self._exhausted_until = self._loop.time() + EXHAUSTED_SECONDS
                self._pause()
                return
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            task = self._loop.create_task(self._serve(connection))
            self._coming.add(task)
            task.add_done_callback(self._coming.discard)
            self._ledger.beat(self.count)

    async def _serve(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make, connection, ssl=self._tls)
        except OSError:  # a handshake that failed, or a client that is gone already
            connection.close()
