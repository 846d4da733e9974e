"""The router's own certificate for clients: read at start, and again when its files change. A bad renewal changes nothing."""

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hlserve_router.errors import StartError

_log = logging.getLogger("hlserve_router.certificate")
_Stamp = tuple[int, int, int]


@dataclass(slots=True, eq=False)
class Certificate:
    """A certificate chain and its key, as PEM files, in the context that new connections use."""

    chain: Path
    key: Path
    told: Callable[[str | None], object]
    """Told why a renewal is not used, and None when one is."""
    context: ssl.SSLContext = field(init=False)
    _stamps: tuple[_Stamp, _Stamp] = field(init=False)

    def __post_init__(self) -> None:
        self.context = _context()
        try:
            self._stamps = _stamp(self.chain), _stamp(self.key)
            self._load(self.context)
        except (OSError, ValueError) as error:
            raise StartError(self._sentence(error)) from error

    async def watch(self, every_seconds: float) -> None:
        """Looks at the files for ever."""
        while True:
            await asyncio.sleep(every_seconds)
            self.look()

    def look(self) -> None:
        """Takes over a renewed pair. Connections that are open keep what they began with."""
        try:
            stamps = _stamp(self.chain), _stamp(self.key)
            if stamps == self._stamps:
                return
            self._load(_context())  # a pair that does not fit must not get half into the one in use
            self._load(self.context)
        except (OSError, ValueError) as error:
            self.told(self._sentence(error))
            return
        self._stamps = stamps
        self.told(None)
        _log.info("certificate applied", extra={"fields": {"file": str(self.chain)}})

    def _load(self, context: ssl.SSLContext) -> None:
        context.load_cert_chain(self.chain, self.key, password=_no_password)

    def _sentence(self, error: Exception) -> str:
        if isinstance(error, ssl.SSLError):
            reason = error.reason or "no PEM"
            if reason == "KEY_VALUES_MISMATCH":
                return f"The key {self.key} does not belong to the certificate {self.chain}: give the two that were made together."
            return f"The certificate {self.chain} and its key {self.key} cannot be read as PEM ({reason})."
        if isinstance(error, OSError):
            return f"{error.filename or self.chain} cannot be read: {error.strerror}."
        return f"The key {self.key} is encrypted: give one without a password."


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _no_password() -> str:
    # Without this, OpenSSL would ask at the terminal.
    raise ValueError


def _stamp(file: Path) -> _Stamp:
    status = file.stat()
    return status.st_mtime_ns, status.st_size, status.st_ino
