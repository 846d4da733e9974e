"""How a fault ends a connection."""

import asyncio
import os
import socket
import struct

from starlette.types import Scope

from hlserve_sim import wire
from hlserve_sim.faults import FaultKind, FaultSpec
from hlserve_sim.live import Live

CHUNK_FAULTS = frozenset({FaultKind.RESET, FaultKind.CUT, FaultKind.TRUNCATE, FaultKind.HANG})
"""Faults that strike after some chunks."""
_LINGER_NOT_AT_ALL = struct.pack("ii", 1, 0)


class CutError(Exception):
    """A fault has ended the connection; there is nothing to answer any more."""


async def break_connection(fault: FaultSpec, live: Live, scope: Scope) -> None:
    """Do what the fault does to the connection. Always raises CutError."""
    match fault.kind:
        case FaultKind.HANG:
            await live.lost()
        case FaultKind.RESET:
            reset(scope)
        case _:
            transport = _transport(scope)
            if transport is not None:
                transport.close()
    await asyncio.sleep(0)
    raise CutError


def reset(scope: Scope) -> None:
    """End the client's connection with a TCP reset."""
    transport = _transport(scope)
    if transport is None:
        return
    # A duplicate descriptor shares the socket's options; uvloop's transports offer no setsockopt.
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as duplicate:
        duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT_AT_ALL)
    transport.abort()


def _transport(scope: Scope) -> asyncio.Transport | None:
    transport: asyncio.Transport | None = scope.get(wire.TRANSPORT_EXTENSION)
    return transport
