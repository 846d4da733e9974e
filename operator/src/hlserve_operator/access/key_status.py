"""The status of a ClientKey. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from hlserve_api.compile import fingerprint
from hlserve_api.conditions import ConditionReason, ConditionType
from hlserve_api.routing import KeyEntry
from hlserve_api.v1alpha1.client_key import ClientKey, ClientKeyStatus, CredentialStatus
from hlserve_api.v1alpha1.meta import ConditionStatus
from hlserve_operator.access.findings import Finding
from hlserve_operator.access.syncing import NO_ENTRIES, Entries, Sync, sync_of
from hlserve_operator.reported import RouterReport
from hlserve_operator.verdicts import Verdict, conditions, verdict

KIND: Final = "ClientKey"
USE_STEP: Final = timedelta(minutes=10)
"""`lastUsedTime` moves in steps of at least this, so that busy clients cost few writes."""

_R = ConditionReason
_WORST_FIRST: Final = (
    _R.DUPLICATE_KEY,
    _R.SECRET_MISSING,
    _R.MALFORMED_KEY,
    _R.WEAK_KEY,
    _R.KEYRING_FULL,
    _R.EXPIRED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """What a ClientKey's status depends on, beside the key."""

    entries: Entries = NO_ENTRIES
    findings: tuple[Finding, ...] = ()
    class_exists: bool = True
    generations: Mapping[str, str] = field(default_factory=dict)
    """Generation of each newest keyring shard, by name."""
    reports: tuple[RouterReport, ...] = ()
    last_used: datetime | None = None
    """Last request that any router reports."""
    denied: str | None = None
    """Why the keyring could not be made; then what routers have stays in force."""
    taken: str | None = None
    """Why a shard of the keyring that holds the key cannot be written."""
    pruned: str | None = None
    """Why the installed CRD is too old."""
    now: datetime


def key_status(key: ClientKey, facts: KeyFacts) -> ClientKeyStatus:
    """The status that the key should have."""
    former = key.status
    if facts.denied is not None:
        # What could not be read must not look as if it were gone.
        ready = verdict(KIND, ConditionType.READY, _R.PERMISSION_DENIED, facts.denied)
        kept = [_again(each.type, former) for each in former.conditions if each.type != ConditionType.READY]
        return former.model_copy(
            update={
                "observed_generation": key.metadata.generation,
                "conditions": conditions(
                    former.conditions, [ready, *kept], generation=key.metadata.generation, now=facts.now
                ),
            }
        )
    revision = facts.entries.revision
    sync = sync_of(key, facts.entries, revision, facts.generations, facts.reports)
    return ClientKeyStatus(
        observed_generation=key.metadata.generation,
        credentials=tuple(_credentials(key, facts.entries.entries)),
        keyring_revision=revision,
        synced_routers=str(sync),
        last_used_time=_last_used(former.last_used_time, facts.last_used),
        conditions=conditions(
            former.conditions,
            [_ready(key, facts, sync), _resolved(facts.findings)],
            generation=key.metadata.generation,
            now=facts.now,
        ),
    )


def _again(type_: str, former: ClientKeyStatus) -> Verdict:
    condition = next(each for each in former.conditions if each.type == type_)
    return Verdict(ConditionType(type_), condition.status, ConditionReason(condition.reason), condition.message)


def _credentials(key: ClientKey, entries: Sequence[KeyEntry]) -> Iterable[CredentialStatus]:
    """Every credential of the spec. A fingerprint outlives its Secret: it tells that there was a key, so that none is made anew."""
    known = {entry.credential: fingerprint(entry.digest) for entry in entries}
    former = {each.id: each.fingerprint for each in key.status.credentials}
    for credential in key.spec.credentials:
        yield CredentialStatus(
            id=credential.id,
            fingerprint=known.get(credential.id) or former.get(credential.id),
            not_after=credential.not_after,
        )


def _last_used(former: datetime | None, reported: datetime | None) -> datetime | None:
    if reported is None or (former is not None and reported - former < USE_STEP):
        return former
    return reported.replace(microsecond=0)


def _text(findings: Iterable[Finding]) -> str:
    return "; ".join(f"credential {each.credential}: {each.message}" for each in findings)


def _worst(findings: Sequence[Finding]) -> ConditionReason:
    return min((each.reason for each in findings), key=_WORST_FIRST.index)


def _resolved(findings: Sequence[Finding]) -> Verdict:
    bad = [each for each in findings if each.refused or each.reason is _R.EXPIRED]
    if bad:
        return Verdict(ConditionType.CREDENTIALS_RESOLVED, ConditionStatus.FALSE, _worst(bad), _text(findings))
    if findings:
        return Verdict(ConditionType.CREDENTIALS_RESOLVED, ConditionStatus.TRUE, _worst(findings), _text(findings))
    return verdict(KIND, ConditionType.CREDENTIALS_RESOLVED, _R.RESOLVED, "Every credential is in the keyring.")


def _ready(key: ClientKey, facts: KeyFacts, sync: Sync) -> Verdict:
    reason, message = _readiness(key, facts, sync)
    return verdict(KIND, ConditionType.READY, reason, message)


def _readiness(key: ClientKey, facts: KeyFacts, sync: Sync) -> tuple[ConditionReason, str]:
    now, entries = facts.now, facts.entries.entries
    if key.spec.suspended:
        return _R.SUSPENDED, "spec.suspended is set: requests get 403 key_suspended."
    if not facts.class_exists:
        name = key.spec.workload_class_ref.name
        return _R.CLASS_NOT_FOUND, (
            f"There is no WorkloadClass {name}, so requests get 503 class_missing: create it, or correct "
            "spec.workloadClassRef.name."
        )
    if facts.taken is not None:
        return _R.NAME_TAKEN, facts.taken
    unexpired = [entry for entry in entries if entry.not_after is None or entry.not_after > now]
    if not unexpired:
        bad = [each for each in facts.findings if each.refused or each.reason is _R.EXPIRED]
        return (_worst(bad), _text(bad)) if bad else (_R.SECRET_MISSING, "No credential has a Secret yet.")
    starts = [entry.not_before for entry in unexpired if entry.not_before is not None and entry.not_before > now]
    if len(starts) == len(unexpired):
        return _R.NOT_YET_VALID, f"The first credential becomes valid at {min(starts).isoformat()}."
    if not sync.complete:
        if not facts.reports:
            return (
                _R.ROUTER_SYNCING,
                "No router is ready, so nobody takes the key: look at the release's router Deployment.",
            )
        silent = sorted(report.pod for report in facts.reports if not report.answered)
        tail = f" No answer from {', '.join(silent[:3])}." if silent else ""
        return _R.ROUTER_SYNCING, f"{sync} routers know the newest credentials.{tail}"
    if facts.pruned is not None:
        return _R.PRUNED_FIELD, facts.pruned
    return _R.READY, "The client can call."


def next_turn(keys: Iterable[ClientKey], now: datetime) -> datetime | None:
    """When the next credential starts or ends; None: never."""
    times = (
        time
        for key in keys
        for credential in key.spec.credentials
        for time in (credential.not_before, credential.not_after)
        if time is not None and time > now
    )
    return min(times, default=None)
