"""Carries out what a plan decided: compared with the cluster first, in the order that the plan gives, each step harmless if repeated.

A step that fails does not stop the steps that do not depend on it; the first failure is raised at the end, so that the whole is
tried again from a fresh look.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from hlserve_api.new_key import new_key
from hlserve_operator.access.actions import AccessActions, AccessEvent, NewKeySecret, StatusPatch
from hlserve_operator.access.generated import manifest_with
from hlserve_operator.api import Api
from hlserve_operator.drift import Applied, contains, merged_lists
from hlserve_operator.errors import ApiError, ConflictError, InvalidError, NotFoundError
from hlserve_operator.events import EventRecorder
from hlserve_operator.observe import AccessSnapshot, PoolSnapshot
from hlserve_operator.pools.actions import EventType, PodMark, PoolActions
from hlserve_operator.refs import Ref
from hlserve_operator.reports import Reports
from hlserve_operator.state import Manifest, Release

_log = logging.getLogger("hlserve_operator.execute")
WRITES_AT_ONCE: Final = 16
"""Secrets or statuses of access that are written at the same time."""
PORTION_SECONDS: Final = 1.0
"""How long one run of access writes Secrets and statuses before it looks again: the revocation of a key waits that long."""


@dataclass(slots=True)
class Outcome:
    """What one execution did."""

    writes: int = 0
    errors: list[ApiError] = field(default_factory=list)
    left_over: bool = False
    """Not everything was tried, for lack of time: to be planned again at once."""


@dataclass(slots=True, eq=False)
class Executor:
    """Writes for both plans."""

    api: Api
    applied: Applied
    events: EventRecorder
    reports: Reports
    release: Release

    async def pool(self, snapshot: PoolSnapshot, actions: PoolActions) -> Outcome:
        """Carries out a pool's step. The first ApiError that occurred is in the outcome; NotLeaderError is raised at once."""
        outcome = Outcome()
        pool = snapshot.observed.pool
        ref = Ref(pool.api_version, pool.kind, pool.name)
        if actions.seed_replicas is not None:
            await self._try(outcome, self._seed(ref, actions.seed_replicas))
        # Only its mark makes an engine that still refuses its readiness be told again: it stays until the engine has taken the call.
        deaf = await self._drain(snapshot, actions, drain=False)
        failures = len(outcome.errors)
        for mark in actions.marks:
            if mark.uid not in deaf:
                await self._try(outcome, self._mark(mark))
        await self._drain(snapshot, actions, drain=True)
        # A replica is taken away only after the marks that say which: otherwise the cluster would choose.
        if len(outcome.errors) == failures:
            for deletion in actions.delete:
                await self._try(outcome, self._delete(deletion.ref, deletion.uid))
            for manifest in actions.apply:
                await self._try(outcome, self._apply(manifest, snapshot.observed.objects.get(Ref.of(manifest))))
        if actions.status is not None:
            await self._try(outcome, self._pool_status(ref, pool.metadata.uid, actions))
        for event in actions.events:
            await self.events.record(
                ref, pool.metadata.uid, event.reason, event.message, warning=event.type is EventType.WARNING
            )
        return outcome

    async def access(self, snapshot: AccessSnapshot, actions: AccessActions) -> Outcome:
        """Carries out a step of access. Errors as in `pool`."""
        outcome = Outcome()
        for document in actions.documents:
            await self._try(outcome, self._apply(document, snapshot.documents.get(Ref.of(document))))
        if not outcome.errors:
            for ref in actions.delete:
                await self._try(outcome, self._delete(ref, None))
        told = {patch.ref: [event for event in actions.events if event.ref == patch.ref] for patch in actions.statuses}
        steps = [partial(self._make, wanted) for wanted in actions.new_secrets]
        steps += [partial(self._tell, snapshot, patch, told[patch.ref]) for patch in actions.statuses]
        await self._portion(outcome, steps)
        for event in actions.events:
            if event.ref not in told:
                await self._record(snapshot, event)
        return outcome

    async def _tell(self, snapshot: AccessSnapshot, patch: StatusPatch, events: Sequence[AccessEvent]) -> int:
        """A status and the events that go with it: what is left for later is left with them."""
        written = await self._status(patch)
        for event in events:
            await self._record(snapshot, event)
        return written

    async def _record(self, snapshot: AccessSnapshot, event: AccessEvent) -> None:
        uid = snapshot.uids.get(event.ref, "")
        await self.events.record(event.ref, uid, event.reason, event.message, warning=event.warning)

    async def _portion(self, outcome: Outcome, steps: Sequence[Callable[[], Awaitable[int]]]) -> None:
        """Begins the steps in their order, several at a time, for as long as a portion may last."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PORTION_SECONDS
        gate = asyncio.Semaphore(WRITES_AT_ONCE)

        async def one(step: Callable[[], Awaitable[int]]) -> None:
            async with gate:
                if loop.time() < end:
                    await self._try(outcome, step())
                else:
                    outcome.left_over = True

        await asyncio.gather(*(one(step) for step in steps))

    async def _try(self, outcome: Outcome, step: Awaitable[int]) -> None:
        try:
            outcome.writes += await step
        except ApiError as error:
            _log.info("a write failed", extra={"fields": {"error": str(error), "status": error.status}})
            outcome.errors.append(error)

    async def _seed(self, ref: Ref, replicas: int) -> int:
        await self.api.scale(ref, replicas)
        return 1

    async def _drain(self, snapshot: PoolSnapshot, actions: PoolActions, *, drain: bool) -> frozenset[str]:
        """UIDs of the engines that did not take the call. Whoever does not answer is told again by the next look."""
        told = [
            snapshot.engines[call.uid]
            for call in actions.drains
            if call.drain is drain and call.uid in snapshot.engines
        ]
        answers = await self.reports.drain(told, drain=drain)
        for answer in answers:
            if answer.problem is not None:
                _log.info(
                    "an engine did not take a drain call",
                    extra={"fields": {"pod_uid": answer.pod_uid, "drain": drain, "error": answer.problem}},
                )
        return frozenset(answer.pod_uid for answer in answers if answer.problem is not None)

    async def _mark(self, mark: PodMark) -> int:
        body = {"metadata": {"uid": mark.uid, "annotations": dict(mark.annotations)}}
        return await _unless_gone(lambda: self.api.merge_patch(Ref("v1", "Pod", mark.pod), body))

    async def _apply(self, manifest: Manifest, live: Manifest | None) -> int:
        if self.applied.in_place(manifest, live):
            return 0
        try:
            # What was not there a moment ago may be somebody else's by now.
            stored = await self.api.apply(manifest, force=live is not None)
        except InvalidError:
            lists = merged_lists(manifest)
            if live is None or contains(lists, live):
                raise
            # A port that somebody renumbered is another item of its list: ours would come beside it, under a name that is taken.
            await self.api.merge_patch(Ref.of(manifest), {**lists, "metadata": {"uid": live["metadata"]["uid"]}})
            stored = await self.api.apply(manifest)
        self.applied.remember(manifest, stored)
        if live is not None and live["metadata"]["resourceVersion"] == stored["metadata"]["resourceVersion"]:
            # It was in place, in other words than ours; the next look knows.
            return 0
        return 1

    async def _delete(self, ref: Ref, uid: str | None) -> int:
        self.applied.forget(ref)
        try:
            return int(await self.api.delete(ref, uid=uid))
        except ConflictError:
            # Another object has the name by now.
            return 0

    async def _pool_status(self, ref: Ref, uid: str, actions: PoolActions) -> int:
        return await _unless_gone(lambda: self.api.apply_status(ref, uid, actions.status or {}))

    async def _status(self, patch: StatusPatch) -> int:
        return await _unless_gone(lambda: self.api.merge_patch(patch.ref, {"status": dict(patch.status)}, "status"))

    async def _make(self, wanted: NewKeySecret) -> int:
        """A Secret that exists by then stays: its key may be in use."""
        try:
            await self.api.create(
                manifest_with(wanted, new_key(), namespace=self.api.namespace, release=self.release.name)
            )
        except ConflictError:
            return 0
        return 1


async def _unless_gone(write: Callable[[], Awaitable[object]]) -> int:
    """1, or 0 if the object is gone or is another one by now: then there is nobody to tell."""
    try:
        await write()
    except (NotFoundError, ConflictError):
        return 0
    return 1
