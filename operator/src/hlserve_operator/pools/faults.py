"""Why engines do not run: from what kubelet, scheduler and API server say of pods to one reason that people can act on."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from hlserve_api.conditions import ConditionReason
from hlserve_operator.pools.observed import ChildView, PodView

MESSAGE_CHARACTERS: Final = 600
"""Longest part of somebody else's message that we repeat: a condition's message ends at 1,024."""
CRASHES = 2
"""Ends of a container from which on it counts as a crash loop, while the kubelet's own word for it comes later."""

_IMAGE: Final = frozenset({"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "RegistryUnavailable"})  # fmt: skip
_QUOTA: Final = re.compile(r"exceeded quota|must specify|LimitRange|maximum .* usage per|minimum .* usage per", re.IGNORECASE)  # fmt: skip
_PLUGIN: Final = re.compile(
    r"hlserve_engine|hlserve plugin|unrecognized arguments: .*--(enable-throughput-mode|throughput-memfloor)", re.IGNORECASE
)  # fmt: skip
_SECRET: Final = re.compile(r'secret "?[^ ]+"? not found|couldn\'t find key .* in Secret', re.IGNORECASE)
_DISK: Final = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_REVISION: Final = re.compile(r"RevisionNotFoundError|revision not found|is not a valid git identifier", re.IGNORECASE)
_DOWNLOAD: Final = re.compile(
    r"RepositoryNotFoundError|GatedRepoError|LocalEntryNotFoundError|HfHubHTTPError|401 Client Error|403 Client Error|"
    r"couldn't connect to .*huggingface|OfflineModeIsEnabled",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One reason with the words that go into the condition."""

    reason: ConditionReason
    message: str


def engine_fault(
    children: Iterable[ChildView], pods: Sequence[PodView], startup_seconds: float, now: datetime
) -> Fault | None:
    """What keeps engines from running, the most certain cause first; None: nothing is known to be wrong."""
    for child in children:
        if child.create_failure and child.replicas:
            return _refused(child)
    found = [fault for pod in pods if not pod.terminating for fault in [_pod_fault(pod, startup_seconds, now)] if fault]
    return min(found, key=lambda fault: _ORDER.index(fault.reason), default=None)


def model_fault(pods: Iterable[PodView]) -> Fault | None:
    """What keeps the model from being loaded, from the last words of engines that ended; None: nothing is known to be wrong."""
    for pod in pods:
        if pod.last_exit is None or pod.started:
            continue
        words = pod.last_exit.message
        for pattern, reason, advice in (
            (_DISK, ConditionReason.DISK_FULL, "The cache volume is full: enlarge it, or choose another model.cache."),
            (_REVISION, ConditionReason.REVISION_NOT_FOUND, "Correct model.source.revision."),
            (_DOWNLOAD, ConditionReason.DOWNLOAD_FAILED, "Check model.source.uri and its token."),
        ):
            if pattern.search(words):
                return Fault(reason=reason, message=f"{advice} Pod {pod.name}: {shortened(words)}")
    return None


_ORDER: Final = (
    ConditionReason.SECRET_MISSING,
    ConditionReason.IMAGE_PULL_FAILED,
    ConditionReason.PLUGIN_MISSING,
    ConditionReason.STARTUP_TIMEOUT,
    ConditionReason.CRASH_LOOP,
    ConditionReason.INSUFFICIENT_GPU,
    ConditionReason.STARTING,
)


def shortened(text: str) -> str:
    """Somebody else's message on one line, its end kept, where errors are."""
    line = " ".join(text.split())
    return line if len(line) <= MESSAGE_CHARACTERS else "… " + line[-MESSAGE_CHARACTERS:]


def _refused(child: ChildView) -> Fault:
    words = shortened(child.create_failure)
    if _QUOTA.search(child.create_failure):
        return Fault(
            reason=ConditionReason.QUOTA_EXCEEDED,
            message=f"The namespace's quota or limits refuse pods of {child.ref.name}: raise them, or ask for less. {words}",
        )
    return Fault(
        reason=ConditionReason.STARTING,
        message=f"The API server refuses pods of {child.ref.name}; it tries again by itself. {words}",
    )


def _pod_fault(pod: PodView, startup_seconds: float, now: datetime) -> Fault | None:
    reason, words = pod.waiting_reason, shortened(pod.waiting_message)
    if reason == "CreateContainerConfigError" and _SECRET.search(pod.waiting_message):
        return Fault(
            reason=ConditionReason.SECRET_MISSING,
            message=f"Pod {pod.name} needs a Secret that is not there: create it. {words}",
        )
    if reason in _IMAGE:
        return Fault(
            reason=ConditionReason.IMAGE_PULL_FAILED,
            message=f"Pod {pod.name}: {reason}: check engine.image and imagePullSecrets. {words}",
        )
    if pod.unschedulable_since is not None:
        return Fault(
            reason=ConditionReason.INSUFFICIENT_GPU,
            message=f"Pod {pod.name} finds no node: add nodes, or lower replicas or parallelism. {shortened(pod.unschedulable_message)}",
        )
    if pod.started or pod.ready:
        return None
    return _start_fault(pod, startup_seconds, now)


def _start_fault(pod: PodView, startup_seconds: float, now: datetime) -> Fault | None:
    last = pod.last_exit
    ended = last is not None and (pod.restarts > 0 or pod.running_since is None)
    if last is not None and ended and _PLUGIN.search(last.message):
        return Fault(
            reason=ConditionReason.PLUGIN_MISSING,
            message=f"Pod {pod.name}: the image lacks the hlserve_engine plugin, or a hook of it is not live: use the engine "
            f"image of this release. {shortened(last.message)}",
        )
    running = (now - pod.running_since).total_seconds() if pod.running_since is not None else 0.0
    if max(running, last.ran_seconds if last is not None and ended else 0.0) >= startup_seconds:
        return Fault(
            reason=ConditionReason.STARTUP_TIMEOUT,
            message=f"Pod {pod.name} was not ready within startup.timeoutSeconds ({startup_seconds:.0f} s): raise it, or look at "
            f"its log: kubectl logs --previous {pod.name}",
        )
    if last is not None and ended and (pod.waiting_reason == "CrashLoopBackOff" or pod.restarts >= CRASHES):
        how = f"exit code {last.exit_code}" + (f", {last.reason}" if last.reason not in ("", "Error") else "")
        hint = " It ran out of memory: raise resources.memory." if last.reason == "OOMKilled" else ""
        return Fault(
            reason=ConditionReason.CRASH_LOOP,
            message=f"Pod {pod.name} ended {pod.restarts} times ({how}).{hint} Its last words: {shortened(last.message) or 'none'}",
        )
    if pod.waiting_reason in ("CreateContainerConfigError", "CreateContainerError", "RunContainerError"):
        return Fault(
            reason=ConditionReason.STARTING,
            message=f"Pod {pod.name}: {pod.waiting_reason}. {shortened(pod.waiting_message)}",
        )
    return None
