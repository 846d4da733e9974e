"""Conditions of a status out of what was found: a transition has a time only when the status turns. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Final

from hlserve_api.conditions import ConditionReason, ConditionType, reasons_of
from hlserve_api.v1alpha1.meta import Condition, ConditionStatus, Node

MESSAGE_CHARACTERS: Final = 1024
"""What the schema takes; the rest of a longer message is cut off."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One condition as it is found, without its history."""

    type: ConditionType
    status: ConditionStatus
    reason: ConditionReason
    message: str = ""


class UndocumentedReasonError(LookupError):
    """A reason that the conditions reference does not list under the type with this status: a mistake in this program."""


def verdict(kind: str, type_: ConditionType, reason: ConditionReason, message: str = "") -> Verdict:
    """A verdict whose status follows from the reference. Only for reasons that stand there once under the type.

    Raises UndocumentedReasonError.
    """
    return Verdict(type_, _status(kind, type_, reason), reason, message)


@cache
def _status(kind: str, type_: ConditionType, reason: ConditionReason) -> ConditionStatus:
    statuses = [doc.status for doc in reasons_of(kind, type_) if doc.reason is reason]
    if len(statuses) != 1:
        raise UndocumentedReasonError(f"{kind} {type_}: reason {reason} stands there {len(statuses)} times.")
    return statuses[0]


def conditions(
    former: Sequence[Condition], verdicts: Iterable[Verdict], *, generation: int, now: datetime
) -> tuple[Condition, ...]:
    """The verdicts as conditions, in their order. Types that are not among them go away.

    `lastTransitionTime` stays while the status does, whatever becomes of reason and message.
    """
    before = {condition.type: condition for condition in former}
    return tuple(_condition(before.get(each.type), each, generation, now) for each in verdicts)


def _condition(former: Condition | None, found: Verdict, generation: int, now: datetime) -> Condition:
    message = _shortened(found.message)
    if former is not None and former.status is found.status:
        if (former.reason, former.message, former.observed_generation) == (found.reason, message, generation):
            return former
        since = former.last_transition_time
    else:
        since = now.replace(microsecond=0)
    return Condition(
        type=found.type,
        status=found.status,
        reason=found.reason,
        message=message,
        last_transition_time=since,
        observed_generation=generation,
    )


def _shortened(message: str) -> str:
    return message if len(message) <= MESSAGE_CHARACTERS else message[: MESSAGE_CHARACTERS - 1] + "…"


def changed_conditions(former: Sequence[Condition], wanted: Sequence[Condition]) -> dict[str, str]:
    """Type to `status/reason` of the conditions that turned or have another reason, for events."""
    before = {condition.type: (condition.status, condition.reason) for condition in former}
    return {
        each.type: f"{each.status}/{each.reason}"
        for each in wanted
        if before.get(each.type) != (each.status, each.reason)
    }


def status_document(status: Node) -> dict[str, Any]:
    """A status as it is stored: camelCase, without what is unset."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


def merge_patch(former: Node, wanted: Node) -> dict[str, Any] | None:
    """The JSON merge patch that turns one status into the other; None: they are equal. Lists are replaced as a whole."""
    if former == wanted:
        return None
    patch = _difference(status_document(former), status_document(wanted))
    return patch or None


def _difference(former: Mapping[str, Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
    patch: dict[str, Any] = {name: None for name in former if name not in wanted}
    for name, value in wanted.items():
        before = former.get(name)
        if name in former and before == value:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping):
            patch[name] = _difference(before, value)
        else:
            patch[name] = value
    return patch
