"""Which endpoint a session's prefix is cached on, and how much KV the active ones count for. Bounded, oldest use forgotten first.

A session is active while a request of it is in flight and until it was idle for `Pace.session_idle_seconds`. An active one counts
at its home for its context: the last prompt and reply as the engine reported them, or what is in flight if that is more.
"""

from collections.abc import Collection
from typing import Final

from hlserve_router.endpoint import EndpointState
from hlserve_router.state import Pace

MAX_SESSIONS: Final = 100_000
"""About 30 MB; a forgotten session is placed anew by its rendezvous order, which mostly gives the same endpoint."""
FORGET_SECONDS: Final = 900.0


class Session:
    """One session, at its home."""

    __slots__ = ("active", "context_tokens", "home", "in_flight", "key", "rounds", "used")

    def __init__(self, key: str, home: EndpointState, now: float) -> None:
        self.key = key
        self.home = home
        self.used = now
        self.in_flight = 0
        self.context_tokens = 0
        """Tokens of its last prompt and reply; what it counts for while it is active."""
        self.active = False
        self.rounds = 0
        """Requests since it was admitted."""


class Trail:
    """The pace of one session's rounds."""

    __slots__ = ("ended", "prompt_bytes", "quick", "slow")

    def __init__(self) -> None:
        self.ended = 0.0
        """When its last reply ended; 0 while one is on its way."""
        self.prompt_bytes = 0
        self.quick = 0
        self.slow = 0
        """Rounds in a row at a program's pace, and at a person's."""


class Sessions:
    """Affinity key -> session. Keeps the endpoints' `sessions` and `held_tokens`."""

    def __init__(
        self, limit: int = MAX_SESSIONS, forget_seconds: float = FORGET_SECONDS, pace: Pace | None = None
    ) -> None:
        self._limit = limit
        self._forget_seconds = forget_seconds
        self._idle_seconds = (pace or Pace()).session_idle_seconds
        self._known: dict[str, Session] = {}
        """In order of last use."""
        self._resting: dict[str, Session] = {}
        """Active without a request in flight, in order of last use."""

    def __len__(self) -> int:
        return len(self._known)

    @property
    def resting(self) -> int:
        """Active sessions that have no request in flight."""
        return len(self._resting)

    def find(self, key: str) -> Session | None:
        """The session, if its home is still there."""
        found = self._known.get(key)
        if found is not None and found.home.removed:
            self._drop(found)
            return None
        return found

    def settle(self, key: str, home: EndpointState, now: float) -> Session:
        """The session was placed on `home`: a new one, or one that moves."""
        former = self._known.get(key)
        if former is not None:
            self._drop(former)
        session = self._known[key] = Session(key, home, now)
        home.sessions += 1
        while len(self._known) > self._limit:
            self._drop(next(iter(self._known.values())))
        return session

    def enter(self, session: Session, tokens: int, now: float) -> None:
        """A request of the session goes to its home; it needs `tokens` of KV there."""
        self._used(session, now)
        session.in_flight += 1
        session.rounds += 1
        if session.active:
            self._resting.pop(session.key, None)
            session.home.held_tokens += max(0, tokens - session.context_tokens)
            session.context_tokens = max(tokens, session.context_tokens)
            return
        session.active = True
        session.context_tokens = tokens
        session.home.held_tokens += tokens

    def leave(self, session: Session, context_tokens: int | None, now: float) -> None:
        """That request is over. `context_tokens`: its prompt and reply, if the engine had it to the end."""
        session.in_flight -= 1
        if context_tokens is not None:
            if session.active:
                session.home.held_tokens += context_tokens - session.context_tokens
            session.context_tokens = context_tokens
        if not session.active:
            return
        if self._idle_seconds > 0 and self._known.get(session.key) is session:
            session.used = now
            self._resting[session.key] = session
        else:
            self.retire(session)

    def touch(self, session: Session, now: float) -> None:
        """The session was used; it stays where it is."""
        self._used(session, now)
        if self._resting.get(session.key) is session:
            self._resting[session.key] = self._resting.pop(session.key)

    def _used(self, session: Session, now: float) -> None:
        session.used = now
        if self._known.get(session.key) is session:
            self._known[session.key] = self._known.pop(session.key)

    def retire(self, session: Session) -> None:
        """The session is no longer active: its context may be evicted at its home. Not while a request is in flight."""
        if self._resting.get(session.key) is session:  # not one of the same key that was placed anew meanwhile
            del self._resting[session.key]
        if session.active:
            session.active = False
            session.rounds = 0
            session.home.held_tokens -= session.context_tokens

    def sweep(self, now: float) -> None:
        """Retires sessions that were idle, and forgets those that were idle for long."""
        while self._resting:
            oldest = next(iter(self._resting.values()))
            if now - oldest.used < self._idle_seconds:
                break
            self.retire(oldest)
        while self._known:
            oldest = next(iter(self._known.values()))
            if now - oldest.used < self._forget_seconds:
                return
            if oldest.in_flight:
                self.touch(oldest, now)
            else:
                self._drop(oldest)

    def forget_homes(self, homes: Collection[EndpointState]) -> None:
        """Endpoints are gone, and every session on them with them."""
        gone = set(homes)
        for session in [session for session in self._known.values() if session.home in gone]:
            self._drop(session)

    def _drop(self, session: Session) -> None:
        """Forgets it. What is in flight of it goes on, and counts until it ends."""
        del self._known[session.key]
        session.home.sessions -= 1
        if not session.in_flight:
            self.retire(session)
