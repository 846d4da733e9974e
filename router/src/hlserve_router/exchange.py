"""One request on its way through the steps: what is known of it so far. Written by the steps and the relay only."""

from dataclasses import dataclass, field

from hlserve_api.routing import ClassRoute, KeyEntry
from hlserve_router.admission import Entry, Lane
from hlserve_router.endpoint import EndpointState
from hlserve_router.limits import Reservation
from hlserve_router.outcome import Ending
from hlserve_router.pools import Pool
from hlserve_router.state import AffinityResult, BodyFacts, Route, Shape, SpillReason, Usage


@dataclass(frozen=True, slots=True)
class RequestHead:
    """What the steps need of a request's headers; everything else stays behind."""

    request_id: str
    shape: Shape
    asked_class: str | None = None
    session: str | None = None
    session_explicit: bool = False
    user_agent: str = ""
    read_timeout_seconds: float | None = None
    forwarded: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True, eq=False)
class Exchange:
    """One request. Times are monotonic seconds; 0 = not yet."""

    route: Route
    head: RequestHead
    key: KeyEntry
    rid: str
    arrived: float
    method: str = "POST"
    path: str = ""
    """Path at the engine; empty: the route's."""
    body: bytes = b""
    facts: BodyFacts = field(default_factory=lambda: BodyFacts(None))
    class_route: ClassRoute | None = None
    model: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    affinity_key: str | None = None
    reservation: Reservation | None = None
    lane: Lane | None = None
    entry: Entry | None = None
    pool: Pool | None = None
    endpoint: EndpointState | None = None
    pinned: EndpointState | None = None
    """The one engine that may serve it (stored responses)."""
    spill: SpillReason | None = None
    affinity: AffinityResult = AffinityResult.NONE
    avoid: frozenset[str] = frozenset()
    attempts: int = 0
    submitted: float = 0.0
    dispatched: float = 0.0
    first_event: float = 0.0
    usage: Usage = field(default_factory=Usage)
    events: int = 0
    """Stream events seen: the count of reply tokens where the engine reports none."""
    metered_tokens: int = 0
    """Reply tokens already put into the counter while they flowed."""
    ending: Ending | None = None

    @property
    def tokens(self) -> int:
        """Estimated tokens, prompt and reply."""
        return self.prompt_tokens + self.output_tokens

    @property
    def class_name(self) -> str:
        """Name of its class; empty before it is known."""
        return self.class_route.name if self.class_route is not None else ""

    @property
    def pool_name(self) -> str:
        """Name of the pool it went to; empty if it went to none."""
        return self.pool.route.name if self.pool is not None else ""

    @property
    def streams(self) -> bool:
        """True if the client asked for a stream."""
        return self.facts.stream and self.route.generates
