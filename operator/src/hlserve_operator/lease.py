"""One operator writes: the Lease that decides which, and the guard that every write passes.

Only durations of this process's own monotonic clock count: how long ago our last renewal was *sent*, and how long another
holder's record has not changed since we first saw it so. Clocks of machines may differ by any amount. A holder stops writing
`renew_deadline_seconds` after its last renewal, and another takes over `duration_seconds` after it at the earliest.
"""

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from hlserve_operator.api import Api
from hlserve_operator.errors import ApiError, ConflictError, NotLeaderError
from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest

_log = logging.getLogger("hlserve_operator.lease")
LEASE_NAME: Final = "hlserve-operator"
"""One per namespace, whatever the release is called: a second release in a namespace must yield."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """In seconds. `renew_deadline` plus the time of one write must stay below `duration`."""

    duration_seconds: float = 15.0
    renew_deadline_seconds: float = 10.0
    retry_seconds: float = 2.0


@dataclass(slots=True, eq=False)
class LeaseGuard:
    """Holds the Lease, or waits for it. `api` must be one whose writes are not guarded by this very guard."""

    api: Api
    identity: str
    """Unique among processes: `<release>/<pod>_<random>`."""
    times: LeaseTimes = LeaseTimes()
    _renewed: float | None = None
    """When the last renewal that succeeded was sent; None if we do not hold the Lease."""
    _seen: tuple[str, float] = ("", 0.0)
    """Version of another holder's record, and since when we have seen it so."""
    _told: str = ""

    @property
    def leads(self) -> bool:
        """Whether this process may write at this moment."""
        return self._renewed is not None and self._now() - self._renewed < self.times.renew_deadline_seconds

    def check(self) -> None:
        """Raises NotLeaderError unless this process may write at this moment."""
        if not self.leads:
            raise NotLeaderError("This operator does not hold the Lease, so it writes nothing.")

    async def acquire(self) -> None:
        """Returns once the Lease is ours."""
        taken = await self._try()
        while not taken:
            await asyncio.sleep(self.times.retry_seconds)
            taken = await self._try()
        _log.info("leading", extra={"fields": {"identity": self.identity}})

    async def hold(self) -> None:
        """Renews the Lease until it is lost, then returns. It is lost when another holds it or no renewal came through in time."""
        while self._renewed is not None:
            await asyncio.sleep(self.times.retry_seconds)
            await self._try()
            if self._renewed is not None and not self.leads:
                _log.warning("lost the Lease: no renewal came through in time")
                self._renewed = None

    async def release(self) -> None:
        """Gives the Lease away at once, so that the standby need not wait. Says nothing if that fails: it will run out."""
        if self._renewed is None:
            return
        self._renewed = None
        try:
            lease = await self.api.get(_REF)
            if lease["spec"].get("holderIdentity") == self.identity:
                lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _timestamp()}
                await self.api.replace(lease)
        except ApiError as error:
            _log.debug("the Lease was not released", extra={"fields": {"error": str(error)}})

    async def _try(self) -> bool:
        """Takes or renews the Lease if we may. True if it is ours."""
        sent = self._now()
        try:
            async with asyncio.timeout(self.times.renew_deadline_seconds / 2):
                lease = await self.api.find(_REF)
                if lease is None:
                    await self.api.create(self._manifest({}, transitions=0))
                elif self._may_take(lease):
                    spec = lease["spec"]
                    ours = spec.get("holderIdentity") == self.identity
                    changes = int(spec.get("leaseTransitions") or 0) + (0 if ours else 1)
                    await self.api.replace({**lease, **self._manifest(lease, transitions=changes)})
                else:
                    self._renewed = None
                    return False
        except ConflictError:
            # Somebody else wrote first: the next try sees what.
            return False
        except (ApiError, TimeoutError) as error:
            _log.warning("the Lease cannot be renewed", extra={"fields": {"error": str(error) or "no answer in time"}})
            return False
        self._renewed = sent
        self._told = ""
        return True

    def _may_take(self, lease: Manifest) -> bool:
        spec = lease.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self.identity):
            return True
        version = lease["metadata"]["resourceVersion"]
        now = self._now()
        if version != self._seen[0]:
            self._seen = (version, now)
        if holder != self._told:
            self._told = holder
            self._say(holder)
        # Its holder's own duration counts: releases may be set differently.
        return now - self._seen[1] > max(float(spec.get("leaseDurationSeconds") or 0), self.times.duration_seconds)

    def _say(self, holder: str) -> None:
        release, ours = holder.partition("/")[0], self.identity.partition("/")[0]
        if release == ours:
            _log.info("standing by", extra={"fields": {"leader": holder}})
        else:
            _log.error(
                f"the release {release} has an operator in namespace {self.api.namespace} already, so this one of {ours} does "
                "nothing: install a release into a namespace of its own"
            )

    def _manifest(self, lease: Manifest, *, transitions: int) -> Manifest:
        spec: dict[str, Any] = dict(lease.get("spec") or {})
        if spec.get("holderIdentity") != self.identity:
            spec["acquireTime"] = _timestamp()
        spec |= {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": max(1, round(self.times.duration_seconds)),
            "renewTime": _timestamp(),
            "leaseTransitions": transitions,
        }
        metadata = lease.get("metadata") or {"name": LEASE_NAME, "namespace": self.api.namespace}
        return {"apiVersion": _REF.api_version, "kind": _REF.kind, "metadata": metadata, "spec": spec}

    @staticmethod
    def _now() -> float:
        return time.monotonic()


_REF: Final = Ref("coordination.k8s.io/v1", "Lease", LEASE_NAME)


def _timestamp() -> str:
    """For people who look at the Lease; nothing is decided by it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
