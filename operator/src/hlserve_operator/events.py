"""Events that people see in `kubectl describe`: each thing told once, and no more than ten an hour about one object."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final
from uuid import uuid4

from hlserve_operator.api import Api
from hlserve_operator.errors import ApiError
from hlserve_operator.refs import Ref

_log = logging.getLogger("hlserve_operator.events")
EVENTS_PER_HOUR: Final = 10
_HOUR_SECONDS: Final = 3600.0
_OBJECTS: Final = 10_000
_MESSAGE_CHARACTERS: Final = 1000


@dataclass(slots=True)
class Budget:
    """The events of one object: tokens that come back over the hour, and what was said lately."""

    tokens: float
    since: float
    said: dict[tuple[str, str], float] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class EventLimiter:
    """Decides which events are sent. Times are monotonic seconds that the caller gives. Pure."""

    per_hour: int = EVENTS_PER_HOUR
    _budgets: OrderedDict[str, Budget] = field(default_factory=OrderedDict)

    def allows(self, object_id: str, reason: str, message: str, now: float) -> bool:
        """True if this may be said of the object; it counts then. The same words are said once an hour."""
        budget = self._budgets.pop(object_id, None) or Budget(float(self.per_hour), now)
        self._budgets[object_id] = budget
        if len(self._budgets) > _OBJECTS:
            self._budgets.popitem(last=False)
        budget.tokens = min(self.per_hour, budget.tokens + (now - budget.since) * self.per_hour / _HOUR_SECONDS)
        budget.since = now
        budget.said = {words: at for words, at in budget.said.items() if now - at < _HOUR_SECONDS}
        if (reason, message) in budget.said or budget.tokens < 1:
            return False
        budget.tokens -= 1
        budget.said[reason, message] = now
        return True


@dataclass(slots=True, eq=False)
class EventRecorder:
    """Sends events. One that cannot be sent is logged and forgotten: nothing depends on events."""

    api: Api
    reporter: str
    """Name of the pod."""
    limiter: EventLimiter = field(default_factory=EventLimiter)
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    sent: int = 0

    async def record(self, ref: Ref, uid: str, reason: str, message: str, *, warning: bool) -> None:
        """Tells something about an object, unless it has been told or too much has been."""
        if not self.limiter.allows(uid or str(ref), reason, message, asyncio.get_running_loop().time()):
            return
        now = self.clock().strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{ref.name[:200]}.{uuid4().hex[:16]}", "namespace": self.api.namespace},
            "involvedObject": {
                "apiVersion": ref.api_version, "kind": ref.kind, "name": ref.name, "namespace": self.api.namespace, "uid": uid,
            },
            "reason": reason,
            "message": message[:_MESSAGE_CHARACTERS],
            "type": "Warning" if warning else "Normal",
            "source": {"component": "hlserve-operator"},
            "reportingComponent": "hlserve-operator",
            "reportingInstance": self.reporter[:128],
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }  # fmt: skip
        try:
            await self.api.create(event)
            self.sent += 1
        except ApiError as error:
            _log.info("an event was not sent", extra={"fields": {"object": str(ref), "error": str(error)}})
