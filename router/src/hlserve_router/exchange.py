"""One request on its way through the steps: what is known of it so far. Written by the steps and the relay only."""

from dataclasses import dataclass
from typing import Final, TypeVar

from hlserve_api.routing import ClassRoute, KeyEntry
from hlserve_router.admission import Entry, Lane
from hlserve_router.endpoint import EndpointState
from hlserve_router.errors import StepOrderError
from hlserve_router.limit_account import Reservation
from hlserve_router.outcome import Ending
from hlserve_router.plans import Plan, PoolPlan
from hlserve_router.pools import Pool
from hlserve_router.sessions import Session, Trail
from hlserve_router.state import AffinityResult, BodyFacts, Route, Shape, SpillReason, Usage

T = TypeVar("T")


def known(value: T | None) -> T:
    """What an earlier step has set. Raises StepOrderError where that step was not taken: a fault of the router itself."""
    if value is None:
        raise StepOrderError
    return value


NO_FACTS = BodyFacts(None)
"""Of a request whose body was not read."""
_NO_AFFINITY: Final = AffinityResult.NONE
_NOBODY: Final[frozenset[str]] = frozenset()


@dataclass(slots=True, eq=False, init=False)
class RequestHead:
    """What the steps need of a request's headers; everything else stays behind."""

    request_id: str
    shape: Shape
    forwarded: list[tuple[bytes, bytes]]
    """What may pass to an engine, as it came."""
    asked_class: str | None
    session: str | None
    session_explicit: bool
    agent: str | None
    """Sub-agent of the session, where the client names it."""
    user_agent: str
    read_timeout_seconds: float | None

    def __init__(self, request_id: str, shape: Shape, forwarded: list[tuple[bytes, bytes]]) -> None:
        self.request_id = request_id
        self.shape = shape
        self.forwarded = forwarded
        self.asked_class = self.session = self.agent = self.read_timeout_seconds = None
        self.session_explicit = False
        self.user_agent = ""


@dataclass(slots=True, eq=False, init=False)
class Exchange:
    """One request. Times are monotonic seconds; 0 = not yet."""

    route: Route
    head: RequestHead
    key: KeyEntry
    rid: str
    arrived: float
    method: str
    path: str
    """Path at the engine; empty: the route's."""
    body: bytes
    facts: BodyFacts
    plan: Plan | None
    class_route: ClassRoute | None
    class_name: str
    """Name of its class; empty before it is known."""
    model: str
    prompt_tokens: int
    output_tokens: int
    tokens: int
    """Estimated tokens, prompt and reply."""
    affinity_key: str | None
    reservation: Reservation | None
    lane: Lane | None
    entry: Entry | None
    """Its place in the lane, while and after it had to wait."""
    pool: Pool | None
    pool_plan: PoolPlan | None
    """That pool as its class uses it."""
    endpoint: EndpointState | None
    pinned: EndpointState | None
    """The one engine that may serve it (stored responses)."""
    spill: SpillReason | None
    affinity: AffinityResult
    trail: Trail | None
    """The pace of its session's rounds, if that is followed."""
    session: Session | None
    """The session that it counts for while it is at its home."""
    held_tokens: int
    """KV that it counts for by itself: it belongs to no session, or is away from its session's home."""
    work_tokens: int
    """Tokens that its endpoint has yet to compute for it, as estimated when it was placed."""
    avoid: frozenset[str]
    attempts: int
    submitted: float
    dispatched: float
    first_event: float
    usage: Usage
    events: int
    """Stream events seen: the count of reply tokens where the engine reports none."""
    metered_tokens: int
    """Reply tokens already put into the counter while they flowed."""
    ending: Ending | None

    def __init__(self, route: Route, head: RequestHead, key: KeyEntry, rid: str, arrived: float) -> None:
        self.route = route
        self.head = head
        self.key = key
        self.rid = rid
        self.arrived = arrived
        self.method = "POST"
        self.path = self.class_name = self.model = ""
        self.body = b""
        self.facts = NO_FACTS
        self.plan = self.class_route = self.affinity_key = self.reservation = self.lane = self.entry = None
        self.pool = self.pool_plan = self.endpoint = self.pinned = self.spill = self.trail = self.session = None
        self.ending = None
        self.prompt_tokens = self.output_tokens = self.tokens = self.held_tokens = self.work_tokens = 0
        self.attempts = self.events = self.metered_tokens = 0
        self.submitted = self.dispatched = self.first_event = 0.0
        self.affinity = _NO_AFFINITY
        self.avoid = _NOBODY
        self.usage = Usage()

    def forget_body(self) -> None:
        """Lets the body go: no try can follow any more."""
        self.body = b""
        self.facts.prompt = None

    @property
    def pool_name(self) -> str:
        """Name of the pool it went to; empty if it went to none."""
        return self.pool.route.name if self.pool is not None else ""

    @property
    def streams(self) -> bool:
        """True if the client asked for a stream."""
        return self.facts.stream and self.route.generates
