"""What a shared store of limits is to the router, and which one a setting names."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from hlserve_router.errors import RouterError, StartError
from hlserve_router.limit_book import Answer, Ask

MEMORY: Final = "memory"
MEMBER_SECONDS: Final = 15.0
"""A process that says nothing for so long no longer counts when limits are divided."""
FORGET_SECONDS: Final = 600
"""How long a client without a budget is remembered after its last request."""
FORGET_BUDGET_SECONDS: Final = 40 * 86_400
"""How long one with a budget is: longer than any period."""


class StoreError(RouterError):
    """The store could not be asked, in one sentence. Nothing is known of what it did."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a store says to one message."""

    answers: list[Answer]
    members: int
    """Processes that share the limits."""
    epoch: str
    """Changes when the store has lost its data."""


class LimitStore(Protocol):
    """Keeps the clients' documents and applies `limit_book.settle_ask` to them, one ask after the other."""

    async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        """Applies `asks`, which may be none, and tells that `holder` is there. Raises StoreError."""

    async def close(self) -> None:
        """Ends the connection."""


@dataclass(frozen=True, slots=True)
class StoreAddress:
    """A checked `limits_store` setting."""

    kind: str
    """memory, sqlite or valkey."""
    target: str
    """Path or address; empty for memory."""

    def __str__(self) -> str:
        """For logs and answers: without a password."""
        if self.kind != "valkey":
            return self.kind + (f":{self.target}" if self.target else "")
        parts = urlsplit(self.target)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def store_address(setting: str) -> StoreAddress:
    """Reads `memory`, `sqlite:PATH` or `valkey://HOST:PORT/DB`. Raises StartError, which never repeats a password."""
    if setting == MEMORY:
        return StoreAddress(MEMORY, "")
    kind, colon, target = setting.partition(":")
    if kind == "sqlite" and colon:
        path = Path(target.removeprefix("//") if target.startswith("///") else target)
        if not target or path.is_dir():
            raise StartError(f"--limits-store {setting}: name a file, like sqlite:/var/lib/hlserve/limits.db.")
        if not path.parent.is_dir():
            raise StartError(f"--limits-store {setting}: the folder of the file must be there; create it first.")
        return StoreAddress("sqlite", str(path))
    if kind in ("valkey", "valkeys", "unix") and target.startswith("//"):
        try:
            parts = urlsplit(setting)
            number = parts.path.removeprefix("/")
            reachable = (
                bool(number)
                if kind == "unix"
                else bool(parts.hostname) and (parts.port or 1) > 0 and (not number or number.isdecimal())
            )
        except ValueError:
            reachable = False
        if reachable:
            return StoreAddress("valkey", setting)
    raise StartError(
        "--limits-store (or HLSERVE_ROUTER_LIMITS_STORE): write memory, valkey://HOST:PORT/DB, valkeys:// for TLS, "
        "unix://PATH, or sqlite:PATH."
    )
