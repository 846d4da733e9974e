"""Condition types and their reasons: part of the API, because people alert on them and programs match them.

Every type is followed by its reasons, split by status. A reason may stand under several types and means the same there. All types are
of positive polarity (True is good) but `Progressing`, which is True while something moves. Conditions of latency targets are absent
in HumanLess pools, not False. Messages add the numbers and the next step; programs must not read them.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hlserve_api.v1alpha1.meta import ConditionStatus


class ConditionType(StrEnum):
    """Types of conditions on all our kinds."""

    READY = "Ready"
    MODEL_AVAILABLE = "ModelAvailable"
    CONFIG_DERIVED = "ConfigDerived"
    ENGINE_READY = "EngineReady"
    ROUTABLE = "Routable"
    PROGRESSING = "Progressing"
    SLO_ATTAINABLE = "SLOAttainable"
    SLO_MET = "SLOMet"
    AUTOSCALER_ACTIVE = "AutoscalerActive"
    TARGETS_RESOLVED = "TargetsResolved"
    CREDENTIALS_RESOLVED = "CredentialsResolved"


class ConditionReason(StrEnum):
    """Reasons of all condition types; `CONDITIONS` says which stands where."""

    ACTIVE = "Active"
    ARG_REJECTED = "ArgRejected"
    ATTAINABLE = "Attainable"
    AVAILABLE = "Available"
    BLOCKED = "Blocked"
    CLASS_NOT_FOUND = "ClassNotFound"
    CONFLICTING_SCALER = "ConflictingScaler"
    CRASH_LOOP = "CrashLoop"
    CRD_MISSING = "CRDMissing"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    DERIVED = "Derived"
    DISK_FULL = "DiskFull"
    DOWNLOADING = "Downloading"
    DOWNLOAD_FAILED = "DownloadFailed"
    DRAINING = "Draining"
    DUPLICATE_KEY = "DuplicateKey"
    EXPIRED = "Expired"
    EXTERNAL = "External"
    FLOATING_IMAGE_TAG = "FloatingImageTag"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    INSUFFICIENT_GPU = "InsufficientGPU"
    KEYRING_FULL = "KeyringFull"
    LEADER_WORKER_SET_MISSING = "LeaderWorkerSetMissing"
    MALFORMED_KEY = "MalformedKey"
    MET = "Met"
    MISSED = "Missed"
    MODE_MISMATCH = "ModeMismatch"
    NAME_TAKEN = "NameTaken"
    NOT_CALIBRATED = "NotCalibrated"
    NOT_YET_VALID = "NotYetValid"
    NO_ROUTER = "NoRouter"
    NO_TRAFFIC = "NoTraffic"
    OVERCOMMITTED = "Overcommitted"
    PATCH_REJECTED = "PatchRejected"
    PAUSED = "Paused"
    PERMISSION_DENIED = "PermissionDenied"
    PLUGIN_MISSING = "PluginMissing"
    POOL_NOT_FOUND = "PoolNotFound"
    POOL_NOT_READY = "PoolNotReady"
    PRUNED_FIELD = "PrunedField"
    QUOTA_EXCEEDED = "QuotaExceeded"
    READY = "Ready"
    REDUCED_CAPACITY = "ReducedCapacity"
    RESOLVED = "Resolved"
    REVISION_NOT_FOUND = "RevisionNotFound"
    ROLLING_OUT = "RollingOut"
    ROUTER_SYNCED = "RouterSynced"
    ROUTER_SYNCING = "RouterSyncing"
    SCALED_TO_ZERO = "ScaledToZero"
    SECRET_MISSING = "SecretMissing"
    STABLE = "Stable"
    STARTING = "Starting"
    STARTUP_TIMEOUT = "StartupTimeout"
    SUSPENDED = "Suspended"
    TPOT_INFEASIBLE = "TPOTInfeasible"
    TTFT_INFEASIBLE = "TTFTInfeasible"
    UNKNOWN = "Unknown"
    WEAK_KEY = "WeakKey"


@dataclass(frozen=True, slots=True)
class ReasonDoc:
    """One reason of one condition type: with which status, and what it tells the user."""

    reason: ConditionReason
    status: ConditionStatus
    meaning: str


@dataclass(frozen=True, slots=True)
class ConditionDoc:
    """One condition type of one kind, and its reasons, True ones first."""

    kind: str
    type: ConditionType
    meaning: str
    reasons: tuple[ReasonDoc, ...]


_R = ConditionReason
_T = ConditionType


def _true(reason: ConditionReason, meaning: str) -> ReasonDoc:
    return ReasonDoc(reason, ConditionStatus.TRUE, meaning)


def _false(reason: ConditionReason, meaning: str) -> ReasonDoc:
    return ReasonDoc(reason, ConditionStatus.FALSE, meaning)


def _unknown(reason: ConditionReason, meaning: str) -> ReasonDoc:
    return ReasonDoc(reason, ConditionStatus.UNKNOWN, meaning)


_SECRET_MISSING: Final = _false(
    _R.SECRET_MISSING,
    "A Secret that the spec names, or the key in it, does not exist: create it. It heals by itself then.",
)
_PERMISSION_DENIED: Final = _false(
    _R.PERMISSION_DENIED, "The API server refused the operator a call, which the message names: restore its Role."
)
_NAME_TAKEN: Final = _false(
    _R.NAME_TAKEN,
    "An object that the pool needs exists already and is not ours: rename it or the pool. Nothing is taken over.",
)
_DOCUMENT_TAKEN: Final = _false(
    _R.NAME_TAKEN,
    "An object under the name of a document that routers read is not the operator's, and is left alone: the message names it.",
)
_PRUNED_FIELD: Final = _false(
    _R.PRUNED_FIELD,
    "The installed CRD is older than the operator and dropped a field: upgrade the hlserve-crds release.",
)
_KEYRING_FULL: Final = _false(
    _R.KEYRING_FULL,
    "The shard of the keyring that the key belongs to is full: raise the chart's keyring.shards. The newest clients are left out.",
)

_SERVING_POOL: Final = (
    ConditionDoc(
        "ServingPool", _T.READY, "The pool serves: ModelAvailable, EngineReady and Routable are True.",
        (
            _true(_R.READY, "Every wanted replica serves."),
            _true(_R.REDUCED_CAPACITY, "The pool serves with fewer replicas than wanted; EngineReady or Progressing says why."),
            _false(_R.STARTING, "No replica serves yet; ModelAvailable and EngineReady say how far it is."),
            _false(_R.SCALED_TO_ZERO, "The pool has no replicas, as its autoscaling allows; the next request starts one."),
            _NAME_TAKEN, _PERMISSION_DENIED, _PRUNED_FIELD,
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.MODEL_AVAILABLE, "The model's files can be loaded.",
        (
            _true(_R.AVAILABLE, "At least one replica has loaded the model."),
            _false(_R.DOWNLOADING, "The files are on their way; the message says how far."),
            _false(_R.DOWNLOAD_FAILED, "The download ended with an error, given in the message: check the source and the token."),
            _false(_R.REVISION_NOT_FOUND, "The repository has no such revision: correct model.source.revision."),
            _SECRET_MISSING,
            _false(_R.DISK_FULL, "The cache volume is full: enlarge it, or choose another model.cache."),
            _unknown(_R.UNKNOWN, "No engine has said yet what became of its model."),
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.CONFIG_DERIVED, "Engine settings follow from the spec; status.derived lists them with their source.",
        (
            _true(_R.DERIVED, "Every setting has a source: the user, a calibration or an estimate."),
            _true(_R.FLOATING_IMAGE_TAG, "Derived, but the image is named by a tag, which may move: use a digest."),
            _false(
                _R.NOT_CALIBRATED,
                "There is neither a calibration nor hardware.accelerator and model.shape: settings are engine defaults. The pool serves.",
            ),
            _false(_R.PATCH_REJECTED, "podPatch touches what belongs to the operator, or is above 16 KB: the message names it."),
            _false(_R.ARG_REJECTED, "extraArgs holds a flag of the operator, or an abbreviation of one: use the field."),
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.ENGINE_READY, "Engines run and answer.",
        (
            _true(_R.READY, "Every wanted replica answers its probes."),
            _true(_R.REDUCED_CAPACITY, "Some replicas answer, not all."),
            _false(_R.STARTING, "Engines are loading within startup.timeoutSeconds."),
            _false(_R.INSUFFICIENT_GPU, "No node has free GPUs for a replica: add nodes, or lower replicas or parallelism."),
            _false(_R.QUOTA_EXCEEDED, "A ResourceQuota or LimitRange of the namespace refuses the pods: raise it, or ask for less."),
            _false(_R.IMAGE_PULL_FAILED, "The node cannot pull the image: check engine.image and imagePullSecrets."),
            _false(_R.CRASH_LOOP, "Engines end soon after they start; the message holds their last words."),
            _false(_R.STARTUP_TIMEOUT, "An engine was not ready within startup.timeoutSeconds: raise it, or look at its log."),
            _false(_R.PLUGIN_MISSING, "The image lacks the hlserve_engine plugin, or a hook of it is not live: use the engine image."),
            _false(_R.LEADER_WORKER_SET_MISSING, "parallelism.nodes is above 1, and LeaderWorkerSet is not installed: install it."),
            _SECRET_MISSING,
            _unknown(_R.UNKNOWN, "The pods' state cannot be read at the moment."),
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.ROUTABLE, "Routers know the pool.",
        (
            _true(_R.ROUTER_SYNCED, "Every router has the routing table with this pool."),
            _false(_R.ROUTER_SYNCING, "Some routers have not applied the table yet; the message counts them."),
            _false(_R.NO_ROUTER, "No router is running: look at the release's router Deployment."),
            _unknown(_R.UNKNOWN, "No router answers the operator; they go on with the last table they have."),
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.PROGRESSING, "Replicas are on their way from one state to another.",
        (
            _true(_R.ROLLING_OUT, "Replicas move to a new revision."),
            _true(_R.DRAINING, "Replicas finish their requests before they go."),
            _false(_R.STABLE, "Nothing moves: all replicas are of the current revision."),
            _false(_R.BLOCKED, "The rollout waits for something, such as a free GPU; the message says for what. What is there serves."),
            _false(_R.PAUSED, "rollout.paused is set."),
            _false(_R.DEADLINE_EXCEEDED, "No progress within rollout.progressDeadlineSeconds; the old revision serves. Correct the spec."),
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.SLO_ATTAINABLE, "Replicas of this hardware can meet the SLO. Absent in HumanLess.",
        (
            _true(_R.ATTAINABLE, "A batch of at least one request meets every target."),
            _false(_R.TTFT_INFEASIBLE, "Prefill alone takes longer than ttftMilliseconds: relax it, or use faster hardware."),
            _false(_R.TPOT_INFEASIBLE, "A lone request decodes slower than tpotMilliseconds: relax it, or use faster hardware."),
            _unknown(_R.UNKNOWN, "Without calibration or an estimate it cannot be said."),
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.SLO_MET, "Requests of the last window met the SLO. Absent in HumanLess.",
        (
            _true(_R.MET, "The share of requests within the targets is at least slo.percentile."),
            _false(_R.MISSED, "It is below; the message has the numbers."),
            _unknown(_R.NO_TRAFFIC, "No request ended in the window."),
        ),
    ),
    ConditionDoc(
        "ServingPool", _T.AUTOSCALER_ACTIVE, "The autoscaler of the spec works on the pool. Absent without autoscaling.",
        (
            _true(_R.ACTIVE, "The scaler reads its signal and may change the replicas."),
            _true(_R.EXTERNAL, "Something of yours writes the scale subresource; the operator makes no scaler."),
            _false(_R.CRD_MISSING, "KEDA is not installed: install it, or choose another provider."),
            _false(_R.CONFLICTING_SCALER, "Another autoscaler targets the pool: remove one of the two."),
            _unknown(_R.UNKNOWN, "The scaler has not reported yet."),
        ),
    ),
)  # fmt: skip

_WORKLOAD_CLASS: Final = (
    ConditionDoc(
        "WorkloadClass", _T.READY, "Requests of the class are served.",
        (
            _true(_R.READY, "At least one primary pool serves."),
            _false(_R.POOL_NOT_READY, "No primary pool serves at the moment."),
            _false(_R.POOL_NOT_FOUND, "No primary target stands for a pool."),
            _DOCUMENT_TAKEN,
            _PERMISSION_DENIED, _PRUNED_FIELD,
        ),
    ),
    ConditionDoc(
        "WorkloadClass", _T.TARGETS_RESOLVED, "Every target stands for a pool, and they fit together.",
        (
            _true(_R.RESOLVED, "Every target stands for at least one pool."),
            _false(_R.POOL_NOT_FOUND, "A target names a pool, or labels, that do not exist: create it, or correct the target."),
            _false(
                _R.MODE_MISMATCH,
                "A Batch class may fill an Interactive pool that it spills into: set share.maxPercent below 100.",
            ),
            _false(_R.OVERCOMMITTED, "The share.minPercent of a pool's classes add up to more than 100: lower them."),
        ),
    ),
)  # fmt: skip

_CLIENT_KEY: Final = (
    ConditionDoc(
        "ClientKey", _T.READY, "The client can call.",
        (
            _true(_R.READY, "At least one credential is valid, and every router knows it."),
            _false(_R.ROUTER_SYNCING, "Some routers do not know the newest credentials yet; status.syncedRouters counts them."),
            _false(_R.CLASS_NOT_FOUND, "The WorkloadClass does not exist, requests get 503 class_missing: create it, or name another."),
            _false(_R.SUSPENDED, "spec.suspended is set: requests get 403 key_suspended."),
            _SECRET_MISSING,
            _false(_R.DUPLICATE_KEY, "No credential is left, because others hold the same keys."),
            _false(_R.WEAK_KEY, "No credential is left, because the keys are too weak."),
            _false(_R.MALFORMED_KEY, "No credential is left, because no client could send the keys."),
            _false(_R.EXPIRED, "Every credential has expired."),
            _false(_R.NOT_YET_VALID, "No credential is valid yet; the message says when the first one starts."),
            _KEYRING_FULL,
            _DOCUMENT_TAKEN,
            _PERMISSION_DENIED, _PRUNED_FIELD,
        ),
    ),
    ConditionDoc(
        "ClientKey", _T.CREDENTIALS_RESOLVED, "Every credential is in the keyring.",
        (
            _true(_R.RESOLVED, "Every credential is in the keyring."),
            _true(_R.WEAK_KEY, "A key works but could be guessed: make a new one with `hlserve keys new`."),
            _SECRET_MISSING,
            _false(_R.DUPLICATE_KEY, "Two credentials hold the same key; both are refused: give each its own."),
            _false(_R.WEAK_KEY, "A key has fewer than 16 characters and is refused: make a new one with `hlserve keys new`."),
            _false(_R.MALFORMED_KEY, "A key or digest has characters that no client can send: make a new one with `hlserve keys new`."),
            _false(_R.EXPIRED, "A credential is past its notAfter: remove it, or make a new one."),
            _KEYRING_FULL,
        ),
    ),
)  # fmt: skip

CONDITIONS: Final = (*_SERVING_POOL, *_WORKLOAD_CLASS, *_CLIENT_KEY)


def reasons_of(kind: str, condition: ConditionType) -> tuple[ReasonDoc, ...]:
    """The documented reasons of a condition type of a kind; empty if the kind does not have it."""
    return tuple(reason for doc in CONDITIONS if doc.kind == kind and doc.type is condition for reason in doc.reasons)
