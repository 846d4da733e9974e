"""Faults that a test switches on: what an engine in trouble does to its clients and its operator."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from hlserve_sim.errors import ApiError
from hlserve_sim.fields import Fields

MAX_FAULTS = 64
MAX_DELAY_MS = 3_600_000


class FaultKind(StrEnum):
    """What goes wrong."""

    DELAY = "delay"
    """Wait `delay_ms` before the engine sees the request."""
    SLOW_FIRST_BYTE = "slow_first_byte"
    """A stream's status goes out at once, its first byte `delay_ms` after the first token is made."""
    ERROR_FIRST = "error_first"
    """Status 200, then after `delay_ms` an error event with `status` and `message` as the first one."""
    STATUS = "status"
    """Answer with `status` (and `retry_after_seconds`) instead of serving."""
    RESET = "reset"
    """Reset the connection (RST) after `after_chunks` chunks."""
    CUT = "cut"
    """Close the connection after `after_chunks` chunks, without the final HTTP chunk."""
    TRUNCATE = "truncate"
    """End the stream cleanly after `after_chunks` chunks, without finish reason or terminal event."""
    HANG = "hang"
    """Send nothing more after `after_chunks` chunks and keep the connection open."""
    IGNORE_ABORT = "ignore_abort"
    """Abort calls answer 200 and a closed connection is not noticed: the request runs to its end."""
    PREFIX_ABORT = "prefix_abort"
    """`/abort_request` ends every request whose id begins with the given one, as upstream does."""
    STALE_METRICS = "stale_metrics"
    """`/metrics` repeats the page as it was when the fault came."""


GENERATION_FAULTS = frozenset(
    {
        FaultKind.DELAY,
        FaultKind.SLOW_FIRST_BYTE,
        FaultKind.ERROR_FIRST,
        FaultKind.STATUS,
        FaultKind.RESET,
        FaultKind.CUT,
        FaultKind.TRUNCATE,
        FaultKind.HANG,
    }
)


@dataclass(frozen=True, slots=True)
class FaultSpec:
    """One fault as asked for. `path` None: every generation route; `count` None: until it is removed."""

    kind: FaultKind
    path: str | None = None
    count: int | None = None
    after_chunks: int = 0
    delay_ms: int = 0
    status: int = 503
    message: str = "A fault of the simulator."
    retry_after_seconds: int | None = None


@dataclass(slots=True)
class _Armed:
    spec: FaultSpec
    left: int | None


class Faults:
    """The faults that are switched on, oldest first."""

    def __init__(self) -> None:
        self._armed: list[_Armed] = []

    def add(self, spec: FaultSpec) -> None:
        """Switch one on. Raises ApiError above 64."""
        if len(self._armed) >= MAX_FAULTS:
            raise ApiError(f"{MAX_FAULTS} faults are on already: DELETE /sim/faults first", kind="Bad Request")
        self._armed.append(_Armed(spec, spec.count))

    def clear(self) -> None:
        """Switch all off."""
        self._armed.clear()

    def active(self) -> list[tuple[FaultSpec, int | None]]:
        """Each fault and how often it will still strike."""
        return [(armed.spec, armed.left) for armed in self._armed]

    def strike(self, path: str, kinds: frozenset[FaultKind]) -> FaultSpec | None:
        """The oldest fault of `kinds` for `path`; it counts as having struck once."""
        for armed in self._armed:
            if armed.spec.kind not in kinds or (armed.spec.path is not None and armed.spec.path != path):
                continue
            if armed.left is not None:
                armed.left -= 1
                if armed.left <= 0:
                    self._armed.remove(armed)
            return armed.spec
        return None


def read(fields: Fields) -> FaultSpec:
    """The fault that a body asks for. Raises ApiError."""
    name = fields.need_text("kind")
    if name not in set(FaultKind):
        raise ApiError(f"kind: must be one of {', '.join(FaultKind)}", kind="Bad Request", param="kind")
    known = {"kind", "path", "count", "after_chunks", "delay_ms", "status", "message", "retry_after_seconds"}
    if unknown := sorted(set(fields.raw) - known):
        raise ApiError(f"{unknown[0]}: a fault has only {', '.join(sorted(known))}", kind="Bad Request")
    return FaultSpec(
        kind=FaultKind(name),
        path=fields.text("path"),
        count=_bounded(fields, "count", 1, 1_000_000),
        after_chunks=_bounded(fields, "after_chunks", 0, 1_000_000) or 0,
        delay_ms=_bounded(fields, "delay_ms", 0, MAX_DELAY_MS) or 0,
        status=_bounded(fields, "status", 400, 599) or 503,
        message=fields.text("message") or "A fault of the simulator.",
        retry_after_seconds=_bounded(fields, "retry_after_seconds", 0, 86_400),
    )


def _bounded(fields: Fields, name: str, least: int, most: int) -> int | None:
    value = fields.integer(name)
    if value is not None and not least <= value <= most:
        raise ApiError(f"{name}: must be from {least} to {most}, not {value}", kind="Bad Request", param=name)
    return value


def describe(active: Sequence[tuple[FaultSpec, int | None]]) -> list[dict[str, object]]:
    """The active faults as JSON builtins."""
    return [
        {
            "kind": spec.kind.value,
            "path": spec.path,
            "left": left,
            "after_chunks": spec.after_chunks,
            "delay_ms": spec.delay_ms,
        }
        for spec, left in active
    ]
