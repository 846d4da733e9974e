"""The work queue: which objects are to be reconciled, and when.

A key is in the queue at most once, and is worked on by at most one worker at a time. What is added while it is worked on is
remembered and comes again afterwards: the latest state wins, in-between states are skipped. So the queue never grows beyond the
number of objects, however many events there are.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from hlserve_operator.keys import Key

FIRST_RETRY_SECONDS: Final = 0.2
LONGEST_RETRY_SECONDS: Final = 60.0
CHANGED_RETRY_SECONDS: Final = 1.0
"""Longest pause before a key is tried again that changed while it failed."""


@dataclass(slots=True, eq=False)
class WorkQueue:
    """Keys that wait for a worker. To be used from one event loop."""

    first_retry_seconds: float = FIRST_RETRY_SECONDS
    longest_retry_seconds: float = LONGEST_RETRY_SECONDS
    random: Random = field(default_factory=Random)
    now: Callable[[], float] = field(default_factory=lambda: asyncio.get_running_loop().time)
    """Monotonic, in seconds, of the event loop."""
    _ready: deque[Key] = field(default_factory=deque)
    _waiting: set[Key] = field(default_factory=set)
    _working: set[Key] = field(default_factory=set)
    _again: set[Key] = field(default_factory=set)
    _timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)
    _failures: dict[Key, int] = field(default_factory=dict)
    _not_before: dict[Key, float] = field(default_factory=dict)
    """Until when the API server asked for peace about a key; no event shortens that."""
    _wakened: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Keys that are due and that nobody works on yet."""
        return len(self._ready) + len(self._again)

    def add(self, key: Key) -> None:
        """Makes a key due. A pending retry or timer of it is then no longer needed, unless the API server asked for that pause."""
        pause = self._not_before.get(key, 0.0) - self.now()
        if pause > 0:
            self.add_after(key, pause)
            return
        self._not_before.pop(key, None)
        self._drop_timer(key)
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.append(key)
            self._wakened.set()

    def add_after(self, key: Key, seconds: float) -> None:
        """Makes a key due later, or earlier than a timer that it has already; never later than that."""
        if seconds <= 0:
            self.add(key)
            return
        if key in self._waiting or key in self._again:
            return
        timer = self._timers.get(key)
        due = self.now() + seconds
        if timer is not None and timer.when() <= due:
            return
        self._drop_timer(key)
        self._timers[key] = asyncio.get_running_loop().call_at(due, self.add, key)

    async def get(self) -> Key:
        """The next key that is due. Its worker must call `done` or `failed` afterwards."""
        while not self._ready:
            self._wakened.clear()
            await self._wakened.wait()
        key = self._ready.popleft()
        self._waiting.discard(key)
        self._working.add(key)
        return key

    def done(self, key: Key, *, again_after_seconds: float | None = None) -> None:
        """The key was worked on with success; optionally it is due again later."""
        self._failures.pop(key, None)
        self._finish(key)
        if again_after_seconds is not None:
            self.add_after(key, again_after_seconds)

    def failed(self, key: Key, *, at_least_seconds: float = 0.0) -> float:
        """The key must be tried again: later each time, with jitter, not before `at_least_seconds`. Returns in how many seconds."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        longest = min(self.first_retry_seconds * float(2 ** min(failures - 1, 20)), self.longest_retry_seconds)
        pause = max(longest * (0.5 + self.random.random() / 2), at_least_seconds)
        if key in self._again:
            # It changed meanwhile, perhaps for the better: soon, but not at once, for the change may be our own doing.
            self._again.discard(key)
            pause = max(min(pause, CHANGED_RETRY_SECONDS), at_least_seconds)
        if at_least_seconds > 0:
            self._not_before[key] = self.now() + at_least_seconds
        self._finish(key)
        self.add_after(key, pause)
        return pause

    def failures(self, key: Key) -> int:
        """How often in a row the key failed."""
        return self._failures.get(key, 0)

    def close(self) -> None:
        """Cancels every timer and forgets every key."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        self._ready.clear()
        self._waiting.clear()
        self._again.clear()

    def _finish(self, key: Key) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _drop_timer(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
