"""One simulated engine server: its parts put together, and its life: serving, draining, shutting down."""

import asyncio
from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from time import time
from uuid import uuid4

from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_sim import errors
from hlserve_sim.bundle import Bundle
from hlserve_sim.clock import Clock
from hlserve_sim.driver import Driver, DuplicateRequestError
from hlserve_sim.engine_setup import EngineSetup
from hlserve_sim.engine_view import EngineView
from hlserve_sim.errors import ApiError
from hlserve_sim.faults import Faults
from hlserve_sim.flags import Flags
from hlserve_sim.live import Live
from hlserve_sim.metrics import EngineMetrics, Static, Throughput
from hlserve_sim.orders import Order, Reader
from hlserve_sim.own_metrics import OwnMetrics
from hlserve_sim.replies import Reply
from hlserve_sim.response_store import ResponseStore
from hlserve_sim.tokens import Vocabulary

KEPT_RECORDS = 20_000
NO_REPLY = Reply((), (), "length")
"""What a request says that only reads its prompt."""


class Phase(StrEnum):
    """Where the server is in its life."""

    SERVING = "serving"
    DRAINING = "draining"
    """Not ready, so that nobody sends more; what comes all the same is served."""
    ENDING = "ending"
    """After SIGTERM: new work is refused, running work finishes, then the process ends."""


@dataclass(frozen=True, slots=True)
class Record:
    """What became of one request. Times are engine microseconds."""

    rid: str
    arrived_us: int
    first_token_us: int | None
    finished_us: int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish: str


class Server:
    """State and operations of a server; the HTTP surface is a layer above."""

    def __init__(self, flags: Flags, setup: EngineSetup) -> None:
        self.flags = flags
        self.setup = setup
        self.started_at = time()
        self.phase = Phase.SERVING
        self.vocabulary = Vocabulary()
        self.reader = Reader(self.vocabulary, flags.seed, flags.stream_response_default_include_usage)
        self.faults = Faults()
        self.store = ResponseStore()
        self.records: deque[Record] = deque(maxlen=KEPT_RECORDS)
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.open_answers = 0
        """Answers on their way out: the process outlives them."""
        engine = Scheduler(setup.config, setup.cost)
        self._metrics = EngineMetrics(
            Static(
                model_name=flags.served_model_name,
                pool_tokens=setup.config.pool_tokens,
                context_length=setup.config.context_length,
                max_running_requests=setup.config.max_running_requests,
                priority_labels=flags.enable_priority_scheduling,
            )
        )
        self.driver = Driver(engine, Clock(flags.time_scale), self, self._broken)
        self.view = EngineView(engine, self.driver)
        self._own = OwnMetrics(self._metrics.registry, setup.config, self.view)
        self._throughput = Throughput(self.driver, self.driver.clock.now_us)
        self._metrics.watch(self.driver, self._throughput)
        self._bundles: dict[str, Bundle] = {}
        """Requests for several choices, by their own id and by those of their engine requests."""
        self._quiet: asyncio.Event = asyncio.Event()

    # -- requests ----------------------------------------------------------------------------------------------------

    def admit(self, order: Order, path_prefix: str = "") -> Live:
        """Start a request. Raises ApiError if it cannot be served; a full queue may also show later, in `live.refused`."""
        self._may_enter(order)
        live = self._live(order, order.rid or f"{path_prefix}{uuid4().hex}")
        if live.rid in self._bundles:
            raise _duplicate(live.rid)
        try:
            self.driver.submit(live)
        except DuplicateRequestError as error:
            raise ApiError(str(error)) from error
        return live

    def bundle(self, order: Order, path_prefix: str = "") -> Bundle:
        """A request for several choices, not started yet; `release` it in the end. Raises ApiError as `admit` does."""
        self._may_enter(order)
        rid = order.rid or f"{path_prefix}{uuid4().hex}"
        choices = [self._live(single, f"{rid}_{number}") for number, single in enumerate(order.singles())]
        readers = []
        if order.choices > 1:
            readers = [self._live(one, f"{rid}_prompt{number}", NO_REPLY) for number, one in enumerate(order.prompts())]
        bundle = Bundle(rid, readers, choices, self.driver)
        for taken in bundle.rids:
            if taken in self._bundles or self.driver.find(taken) is not None:
                raise _duplicate(taken)
        self._bundles.update(dict.fromkeys(bundle.rids, bundle))
        return bundle

    def release(self, bundle: Bundle) -> None:
        """The answer is given or given up."""
        for rid in bundle.rids:
            del self._bundles[rid]

    def _may_enter(self, order: Order) -> None:
        if self.phase is Phase.ENDING:
            raise errors.unavailable(errors.SHUTTING_DOWN)
        flags = self.flags
        if (
            order.priority is not None
            and not flags.enable_priority_scheduling
            and flags.abort_on_priority_when_disabled
        ):
            raise errors.unavailable(errors.PRIORITY_DISABLED)

    def _live(self, order: Order, rid: str, reply: Reply | None = None) -> Live:
        config = self.setup.config
        return Live(
            rid=rid,
            prompt=order.prompt,
            reply=reply or order.reply(self.vocabulary, config.context_length, config.pool_tokens),
            priority=self.flags.default_priority_value if order.priority is None else order.priority,
            streamed=order.stream,
            digest=order.digest,
        )

    def abort(self, rid: str, *, by_prefix: bool) -> int:
        """End a request by its exact id, or all whose id begins with `rid`. How many there were.

        The id of a request for several choices ends all of them, the id of one choice that one.
        """
        known = {**dict.fromkeys(self._bundles), **dict.fromkeys(self.driver.rids())} if by_prefix else {rid: None}
        ended = 0
        for one in [one for one in known if one.startswith(rid)]:
            bundle = self._bundles.get(one)
            ended += bundle.abort() if bundle is not None and bundle.rid == one else self.driver.abort(one)
        return ended

    def abort_all(self) -> int:
        """End every request."""
        return self.abort("", by_prefix=True)

    # -- life --------------------------------------------------------------------------------------------------------

    def drain(self, draining: bool) -> None:
        """Turn readiness off or on again. Without effect once the server is ending."""
        if self.phase is not Phase.ENDING:
            self.phase = Phase.DRAINING if draining else Phase.SERVING
            self._own.draining(draining)

    @property
    def ending(self) -> bool:
        """Whether the process is on its way out."""
        return self.phase is Phase.ENDING

    def end(self) -> None:
        """Refuse new work from now on; `ended` returns when the running work is done."""
        self.phase = Phase.ENDING
        self._own.draining(True)
        self._look_quiet()

    async def ended(self) -> None:
        """Wait until `end` was called and nothing runs any more."""
        await self._quiet.wait()

    def answer_opened(self) -> None:
        """An answer to a generation request is being made."""
        self.open_answers += 1

    def answer_closed(self) -> None:
        """An answer has been written to its end, or given up."""
        self.open_answers -= 1
        self._look_quiet()

    def _look_quiet(self) -> None:
        if self.phase is Phase.ENDING and not self.driver.in_flight and not self.open_answers:
            self._quiet.set()

    def _broken(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    # -- what the driver tells ---------------------------------------------------------------------------------------

    def first_token(self, live: Live) -> None:
        """Observer."""
        self._metrics.first_token(live)

    def next_token(self, live: Live, gap_us: int) -> None:
        """Observer."""
        self._metrics.next_token(live, gap_us)

    def stepped(self, duration_us: int) -> None:
        """Observer."""
        self._own.step(duration_us)

    def ended_one(self, live: Live) -> None:
        """Observer."""
        self._metrics.ended(live)
        self._own.ended(live)
        self.records.append(
            Record(
                rid=live.rid,
                arrived_us=live.arrived_us,
                first_token_us=live.first_token_us,
                finished_us=live.finished_us,
                prompt_tokens=live.prompt_tokens,
                cached_tokens=live.cached_tokens,
                output_tokens=live.made,
                finish=live.finish,
            )
        )
        self._look_quiet()

    def generation_rate(self) -> float:
        """Output tokens per engine second over the last seconds."""
        return self._throughput.rate()

    def metrics_page(self) -> bytes:
        """The exposition page as of now."""
        return self._metrics.page()


def _duplicate(rid: str) -> ApiError:
    return ApiError(f"Duplicate request ID detected: {rid}")
