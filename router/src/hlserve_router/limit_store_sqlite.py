"""The store in a file of this machine: several workers, and what was used survives a restart."""

import asyncio
import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex

import msgspec

from hlserve_router.limit_book import Answer, Ask, Document, settle_ask
from hlserve_router.limit_store import FORGET_BUDGET_SECONDS, FORGET_SECONDS, MEMBER_SECONDS, Reply, StoreError

_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_PRIMARY_CODE = 0xFF
"""SQLite says more of why something is locked (recovery, a snapshot) in the higher bits."""
_LOCKED_SECONDS = 0.002
_SWEEP_SECONDS = 60.0
"""How often clients are forgotten: that looks at all of them."""
_TABLES = """
CREATE TABLE IF NOT EXISTS clients (name TEXT PRIMARY KEY, document TEXT NOT NULL, forget_at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS members (name TEXT PRIMARY KEY, seen REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epoch (only INTEGER PRIMARY KEY CHECK (only = 1), value TEXT NOT NULL);
"""


@dataclass(eq=False)
class SqliteStore:
    """One file. Its work runs on a thread of its own, so that a slow disk holds up nobody but who asks for a lease."""

    path: str
    timeout_seconds: float
    wall: Callable[[], float] = time.time
    _database: sqlite3.Connection | None = None
    _swept: float = float("-inf")
    _thread: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "limits"))

    async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        """See `LimitStore`."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._exchange, holder, asks)
        except (sqlite3.Error, msgspec.MsgspecError) as error:
            raise StoreError(f"the limits file {self.path} cannot be used: {error}") from error

    def check(self) -> None:
        """Does once, and undoes, what an exchange does; to be called before the first. Waits up to the time limit.

        Raises StoreError if the file cannot be used. One that others keep busy can be.
        """
        try:
            database = self._open()
            self._when_free(partial(database.execute, "BEGIN IMMEDIATE"))
            database.execute("SELECT name, document, forget_at FROM clients LIMIT 0")
            self._apply(database, "", [])
            database.execute("ROLLBACK")
        except sqlite3.Error as error:
            if not _is_locked(error):
                raise StoreError(f"it cannot be used ({error})") from error
        finally:
            self._close()
            self._swept = float("-inf")

    async def close(self) -> None:
        """See `LimitStore`."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> sqlite3.Connection:
        database = self._database
        if database is None:
            database = sqlite3.connect(self.path, timeout=0, isolation_level=None)
            self._database = database
            self._when_free(partial(self._prepare, database))
        return database

    @staticmethod
    def _prepare(database: sqlite3.Connection) -> None:
        # After a crash of the machine the last moments may be missing, after one of the process nothing is.
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA synchronous=NORMAL")
        database.executescript(_TABLES)

    def _when_free(self, work: Callable[[], object]) -> None:
        """Does `work` as soon as nobody else has the file. SQLite's own wait doubles, and some steps do not wait at all."""
        give_up_at = time.monotonic() + self.timeout_seconds
        while True:
            try:
                work()
            except sqlite3.OperationalError as error:
                if not _is_locked(error) or time.monotonic() >= give_up_at:
                    raise
                time.sleep(_LOCKED_SECONDS)
            else:
                return

    def _exchange(self, holder: str, asks: list[Ask]) -> Reply:
        try:
            database = self._open()
            self._when_free(partial(database.execute, "BEGIN IMMEDIATE"))
            try:
                reply = self._apply(database, holder, asks)
            except BaseException:
                database.execute("ROLLBACK")
                raise
            database.execute("COMMIT")
        except sqlite3.Error:
            self._close()  # the file may have been replaced: the next try opens it anew
            raise
        return reply

    def _apply(self, database: sqlite3.Connection, holder: str, asks: list[Ask]) -> Reply:
        now = self.wall()
        database.execute("INSERT OR IGNORE INTO epoch VALUES (1, ?)", (token_hex(8),))
        (epoch,) = database.execute("SELECT value FROM epoch").fetchone()
        database.execute("INSERT OR REPLACE INTO members VALUES (?, ?)", (holder, now))
        database.execute("DELETE FROM members WHERE seen < ?", (now - MEMBER_SECONDS,))
        if abs(now - self._swept) > _SWEEP_SECONDS:  # the clock may have been set back
            self._swept = now
            database.execute("DELETE FROM clients WHERE forget_at < ?", (now,))
        (members,) = database.execute("SELECT count(*) FROM members").fetchone()
        return Reply([self._settle(database, ask, now) for ask in asks], members, epoch)

    @staticmethod
    def _settle(database: sqlite3.Connection, ask: Ask, now: float) -> Answer:
        found = database.execute("SELECT document FROM clients WHERE name = ?", (ask.client,)).fetchone()
        book: Document = msgspec.json.decode(found[0], type=dict) if found is not None else {}
        answer = settle_ask(book, ask, now)
        keep = FORGET_BUDGET_SECONDS if ask.caps.budget is not None else FORGET_SECONDS
        row = (ask.client, msgspec.json.encode(book).decode(), now + keep)
        database.execute("INSERT OR REPLACE INTO clients VALUES (?, ?, ?)", row)
        return answer


def _is_locked(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE in _LOCKED
