"""Who may use the admin port, and what a call of /hlserve/drain asks for."""

import secrets
from collections.abc import Callable
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from fastapi import Header, HTTPException, Request

from hlserve_router.errors import StartError


class AdminToken:
    """The token that guards the admin port, read again when its file changes: a mounted Secret is renewed in place."""

    def __init__(self, file: Path | None) -> None:
        """Raises StartError if there should be a token and none can be read."""
        self._file = file
        self._stamp = 0
        self._token: str | None = None
        if file is not None:
            try:
                self._read(file)
            except OSError as error:
                raise StartError(
                    f"--admin-token-file {file} cannot be read: {error.strerror or error}: name a file with a token."
                ) from error
            except UnicodeDecodeError as error:
                raise StartError(f"--admin-token-file {file} is no text: write a token of printable ASCII.") from error
            if not self._token:
                raise StartError(f"--admin-token-file {file} is empty: write a token into it.")

    def allows(self, authorization: str) -> bool:
        """True if the header shows the token, or if none is asked for. The last token that could be read counts."""
        if self._file is None:
            return True
        with suppress(OSError, UnicodeDecodeError):
            self._read(self._file)
        return bool(self._token) and secrets.compare_digest(authorization.encode(), f"Bearer {self._token}".encode())

    @property
    def headers(self) -> dict[str, str]:
        """What shows the token, for processes of the same router."""
        return {"authorization": f"Bearer {self._token}"} if self._token else {}

    @property
    def is_set(self) -> bool:
        """True if a token is asked for."""
        return self._file is not None

    def _read(self, file: Path) -> None:
        stamp = file.stat().st_mtime_ns
        if stamp != self._stamp:
            self._token, self._stamp = file.read_text().strip(), stamp


def guard(token: AdminToken) -> Callable[..., None]:
    """A dependency that lets in who shows `token`. Raises HTTPException (401)."""

    def allowed(authorization: Annotated[str, Header()] = "") -> None:
        if not token.allows(authorization):
            raise HTTPException(
                401, "Send the admin token as `Authorization: Bearer TOKEN`.", {"www-authenticate": "Bearer"}
            )

    return allowed


def guard_changes(token: AdminToken) -> Callable[..., None]:
    """As `guard`, for what changes something: without a token, only callers of the same machine. Raises HTTPException."""
    allowed = guard(token)

    def may_change(request: Request, authorization: Annotated[str, Header()] = "") -> None:
        allowed(authorization)
        caller = request.client.host if request.client is not None else ""
        if not token.is_set and not _is_loopback(caller):
            raise HTTPException(403, "Set --admin-token-file, or call this from the router's own machine or pod.")

    return may_change


def _is_loopback(host: str) -> bool:
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


async def wants_drain(request: Request) -> bool:
    """What a call of /hlserve/drain asks for: DELETE, `?cancel` and the body `{"drain": false}` end a drain. Raises HTTPException."""
    if request.method == "DELETE" or request.query_params.get("cancel", "false").lower() not in ("false", "0"):
        return False
    if not await request.body():
        return True
    try:
        body = await request.json()
    except ValueError:
        body = None
    drain = body.get("drain", True) if isinstance(body, dict) else None
    if not isinstance(drain, bool):
        raise HTTPException(400, 'Send no body, or {"drain": true} or {"drain": false}.')
    return drain
