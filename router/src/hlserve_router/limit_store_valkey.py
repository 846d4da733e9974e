"""The store that several routers share: a Valkey server, or any that speaks its protocol (Redis 7)."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from secrets import token_hex
from typing import Any, Final

import msgspec
from valkey.asyncio import Valkey
from valkey.asyncio.retry import Retry
from valkey.backoff import NoBackoff
from valkey.exceptions import AuthenticationError, NoScriptError, ValkeyError

from hlserve_router.limit_book import Answer, Ask
from hlserve_router.limit_script import SCRIPT
from hlserve_router.limit_store import FORGET_BUDGET_SECONDS, FORGET_SECONDS, MEMBER_SECONDS, Reply, StoreError

PREFIX: Final = "hlserve:limits:"
"""Before every key, so that the database may be shared with others."""
_DIGEST: Final = sha1(SCRIPT.encode(), usedforsecurity=False).hexdigest()
"""The name that the server gives the script."""


@dataclass(eq=False)
class ValkeyStore:
    """One connection; one message is one round trip, whatever number of clients it is about."""

    address: str
    timeout_seconds: float
    password: str | None = None
    _client: Valkey | None = None
    _decoder: msgspec.json.Decoder[Answer] = field(default_factory=lambda: msgspec.json.Decoder(Answer))

    async def exchange(self, holder: str, asks: list[Ask]) -> Reply:
        """See `LimitStore`."""
        keys = [f"{PREFIX}members", f"{PREFIX}epoch", *(f"{PREFIX}client:{ask.client}" for ask in asks)]
        settings = (holder, token_hex(8), MEMBER_SECONDS, FORGET_SECONDS, FORGET_BUDGET_SECONDS)
        try:
            members, epoch, answers = await self._run(keys, (*settings, *(msgspec.json.encode(ask) for ask in asks)))
            return Reply([self._decoder.decode(answer) for answer in answers], int(members), epoch.decode())
        except AuthenticationError as error:
            raise StoreError(f"the limits store refuses the password: {error}") from error
        except (ValkeyError, OSError, msgspec.MsgspecError) as error:
            raise StoreError(f"the limits store does not answer: {error or type(error).__name__}") from error

    async def close(self) -> None:
        """See `LimitStore`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose(close_connection_pool=True)

    async def _run(self, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        client = self._client
        if client is None:
            given: dict[str, Any] = {"password": self.password} if self.password is not None else {}
            client = self._client = Valkey.from_url(
                self.address, socket_timeout=self.timeout_seconds, socket_connect_timeout=self.timeout_seconds,
                retry=Retry(NoBackoff(), 0), max_connections=2, **given,
            )  # fmt: skip
        try:
            return await client.execute_command("EVALSHA", _DIGEST, len(keys), *keys, *arguments)
        except NoScriptError:  # it is new, or was restarted
            return await client.execute_command("EVAL", SCRIPT, len(keys), *keys, *arguments)
