"""Which endpoint a session's prefix is cached on: a bounded memory, oldest use forgotten first."""

from collections import OrderedDict
from typing import Final

from hlserve_router.endpoint import EndpointState
from hlserve_router.state import AffinityResult

MAX_SESSIONS: Final = 100_000
"""About 20 MB; a forgotten session is placed anew by its rendezvous order, which mostly gives the same endpoint."""
IDLE_SECONDS: Final = 900.0


class Sessions:
    """Affinity key -> endpoint. Counts live sessions on each endpoint."""

    def __init__(self, limit: int = MAX_SESSIONS, idle_seconds: float = IDLE_SECONDS) -> None:
        self._limit = limit
        self._idle_seconds = idle_seconds
        self._homes: OrderedDict[str, tuple[EndpointState, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._homes)

    def home(self, key: str) -> EndpointState | None:
        """The endpoint that holds the session, if it is still there."""
        found = self._homes.get(key)
        if found is None:
            return None
        if found[0].removed:
            self.forget(key)
            return None
        return found[0]

    def used(self, key: str, endpoint: EndpointState, affinity: AffinityResult, now: float) -> None:
        """A request of the session went to `endpoint`. One that escaped for once, or hit, leaves it where it is."""
        if affinity is AffinityResult.MISS:
            self.settle(key, endpoint, now)
        else:
            self.touch(key, now)

    def settle(self, key: str, endpoint: EndpointState, now: float) -> None:
        """The session was placed on `endpoint`."""
        self.forget(key)
        self._homes[key] = (endpoint, now)
        endpoint.sessions += 1
        while len(self._homes) > self._limit:
            self._drop_oldest()

    def touch(self, key: str, now: float) -> None:
        """The session was used; it stays where it is."""
        found = self._homes.get(key)
        if found is not None:
            self._homes[key] = (found[0], now)
            self._homes.move_to_end(key)

    def forget(self, key: str) -> None:
        """Removes one session."""
        found = self._homes.pop(key, None)
        if found is not None:
            found[0].sessions -= 1

    def sweep(self, now: float) -> None:
        """Forgets sessions that were idle too long."""
        while self._homes:
            _, used = next(iter(self._homes.values()))
            if now - used < self._idle_seconds:
                return
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        _, (endpoint, _) = self._homes.popitem(last=False)
        endpoint.sessions -= 1
