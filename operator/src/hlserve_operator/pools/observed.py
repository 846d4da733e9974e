"""What `plan_pool` looks at: one frozen value, read fresh for every reconcile. Pods and children are parsed in `views`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_status import SloStatus
from hlserve_capacity.calibration import Calibration
from hlserve_operator.refs import Ref
from hlserve_operator.state import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionalApis:
    """Which APIs that are no part of Kubernetes itself the cluster serves at the moment."""

    leader_worker_set: bool = False
    keda: bool = False
    pod_monitor: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineExit:
    """How an engine container ended the last time."""

    exit_code: int = 0
    reason: str = ""
    """The kubelet's word, such as `Error` or `OOMKilled`."""
    message: str = ""
    """The termination message, else the end of the log (`FallbackToLogsOnError`)."""
    ran_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodView:
    """What the plan needs to know of one pod."""

    name: str
    uid: str
    revision: str
    """From the revision label: the child that the pod belongs to."""
    created_at: datetime
    group: int = 0
    """Index of the replica in a LeaderWorkerSet; 0 in a Deployment."""
    worker: int = 0
    """Index of the pod within its replica; only worker 0 serves requests."""
    ready: bool = False
    ready_since: datetime | None = None
    started: bool = False
    """The engine container runs and has passed its startup probe."""
    running_since: datetime | None = None
    """When the engine container was started; None: it does not run."""
    terminating: bool = False
    finished: bool = False
    """The pod succeeded or failed (was evicted, say): it holds no replica any more."""
    unschedulable_since: datetime | None = None
    unschedulable_message: str = ""
    waiting_reason: str = ""
    """Why the engine container waits, such as `ImagePullBackOff`; empty if it does not."""
    waiting_message: str = ""
    restarts: int = 0
    last_exit: EngineExit | None = None
    image_id: str = ""
    draining_since: datetime | None = None
    """When the pod was marked as draining (annotation); None: it is not."""
    released: bool = False
    """Its deletion cost says that it is the next to go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """One revision's Deployment or LeaderWorkerSet, ours by owner reference."""

    ref: Ref
    revision: str
    replicas: int
    """`spec.replicas`: engines that are wanted of this revision."""
    created_at: datetime
    template: Manifest | None
    """The spec as it was rendered when the child was made, from its annotation; None if the annotation is gone."""
    caps: str = ""
    """What a replica of it may have in flight, from its annotation; empty if that is not there."""
    nodes: int = 1
    """Pods of one replica."""
    create_failure: str = ""
    """Why the API server refuses its pods (condition ReplicaFailure, event FailedCreate); empty if it does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainAnswer:
    """What a draining engine said when asked just now (`POST /hlserve/drain`)."""

    running: int
    queued: int
    draining: bool = True
    """It refuses its readiness on purpose; False: it has no drain call, so that only routers can keep requests away."""

    @property
    def idle(self) -> bool:
        """Nothing runs or waits in the engine."""
        return self.running + self.queued == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterView:
    """What the routers said in their last reports."""

    routers: int = 0
    """Router pods that exist."""
    answering: int = 0
    """Routers that answered lately."""
    synced: int = 0
    """Routers that serve the routing table as it is stored."""
    in_flight: Mapping[str, int] = field(default_factory=dict)
    """Requests on draining engines by pod UID, over all routers."""
    acknowledged: frozenset[str] = frozenset()
    """UIDs of draining engines to which no router sends anything new: each router said so in its last report."""
    slo: SloStatus | None = None
    """Attainment of this pool over the last window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerView:
    """An autoscaler (HorizontalPodAutoscaler or ScaledObject) whose target is this pool."""

    ref: Ref
    owned: bool
    """Made by us for this pool, or by KEDA for a ScaledObject of ours."""
    active: bool | None = None
    """Whether it says that it works; None: it has not said yet."""
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolObserved:
    """Everything about one pool at one moment."""

    pool: ServingPool
    objects: Mapping[Ref, Manifest] = field(default_factory=dict)
    """Objects that carry the pool's label, and whatever stands under a name that `owned_refs` wants; pods excluded."""
    pods: tuple[PodView, ...] = ()
    """Every pod with the pool's label."""
    calibration: Calibration | None = None
    calibration_problem: str = ""
    """Why the ConfigMap of `calibrationRef` cannot be used, in one sentence; empty if it can, or none is named."""
    secrets: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Names of the keys in those Secrets of `referenced_secrets` that exist. Never values."""
    optional_apis: OptionalApis = OptionalApis()
    drain_answers: Mapping[str, DrainAnswer] = field(default_factory=dict)
    """By pod UID, of pods that are marked; absent: the engine did not answer."""
    routers: RouterView = RouterView()
    scalers: tuple[ScalerView, ...] = ()
    pruned_fields: tuple[str, ...] = ()
    """Fields that we write and the installed CRD does not know."""
    denied: str = ""
    """The API server's words of the last call for this pool that it refused for lack of rights; empty if none."""
