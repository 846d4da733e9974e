"""Who hears of an engine's answer while it comes in."""

from typing import Protocol

from hlserve_router.state import Failure


class Receiver(Protocol):
    """Who gets an engine's answer. Calls come in this order: head, data…, then end or failed, exactly once."""

    def upstream_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Status and end-to-end headers (names in lower case)."""

    def upstream_data(self, data: bytes) -> None:
        """Body bytes, unframed, as they came."""

    def upstream_end(self) -> None:
        """The message is complete."""

    def upstream_failed(self, failure: Failure, detail: str) -> None:
        """It broke. `detail` is for logs."""

    def fault(self, error: Exception) -> None:
        """One of the other calls raised this: a fault of the router itself. Never raises."""


class Discard:
    """A receiver for calls whose answer does not matter (an abort)."""

    __slots__ = ()

    def upstream_head(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Ignored."""

    def upstream_data(self, data: bytes) -> None:
        """Ignored."""

    def upstream_end(self) -> None:
        """Ignored."""

    def upstream_failed(self, failure: Failure, detail: str) -> None:
        """Ignored."""

    def fault(self, error: Exception) -> None:
        """Ignored: nothing here can raise."""
