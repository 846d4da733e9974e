"""What happened in a running stack, for the live view and for tests."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

KEPT_EVENTS: Final = 200


class EventKind(StrEnum):
    """What an event is about."""

    STARTED = "started"
    RELOADED = "reloaded"
    RELOAD_REFUSED = "reload refused"
    ENGINE_READY = "engine ready"
    ENGINE_LOST = "engine lost"
    ENGINE_DRAINING = "engine draining"
    ENGINE_STOPPED = "engine stopped"
    ROUTER_LOST = "router lost"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the stack's story."""

    at: datetime
    kind: EventKind
    text: str

    def __str__(self) -> str:
        return f"{self.at.astimezone():%H:%M:%S} {self.kind}: {self.text}"


class EventLog:
    """The last events, and whoever wants to hear of new ones."""

    def __init__(self) -> None:
        self.recent: deque[Event] = deque(maxlen=KEPT_EVENTS)
        self._listeners: list[Callable[[Event], None]] = []

    def add(self, kind: EventKind, text: str) -> None:
        """Note that something happened now."""
        event = Event(datetime.now(UTC), kind, text)
        self.recent.append(event)
        for listener in self._listeners:
            listener(event)

    def listen(self, listener: Callable[[Event], None]) -> None:
        """Call `listener` with each event from now on, in the event loop."""
        self._listeners.append(listener)
