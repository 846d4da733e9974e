"""The router's own pipeline in virtual time: clients, `Proxy` and simulated engines on one agenda, without a socket or a clock.

Everything that decides is the router's: bodies are read, classes queue, endpoints are picked, sessions admitted. Only time is simulated.
With a `peer`, that policy decides instead: it passes every request on at once, as a router without a queue does.
"""

import heapq
import json
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from random import Random

from hlserve_api.routing import Endpoint, KeyEntry, Keyring, RoutingTable
from hlserve_capacity.engine.scheduler import Scheduler
from hlserve_capacity.engine.types import EngineRequest, Finished, FinishReason, Refused, Token
from hlserve_capacity.virtual.arms import PoolConfig
from hlserve_capacity.virtual.records import Outcome, RequestRecord, Traffic
from hlserve_local.policy.cache_aware import CacheAware
from hlserve_router.endpoint import EngineGauges
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.outcome import passed, refused
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.state import ROUTES, Pace

BYTES_PER_TOKEN = 5
"""Of the prompts as text. The router starts with another guess and learns."""
TICK_US = 100_000
PROBE_US = 1_000_000
WALL_SECONDS = 1_790_000_000.0
ROUTE = ROUTES["/v1/chat/completions"]


@dataclass(slots=True, eq=False)
class Replica:
    """One engine."""

    id: str
    pool: str
    engine: Scheduler
    in_step: bool = False
    wakeup_us: int | None = None


@dataclass(slots=True, eq=False)
class Call:
    """One request of a client."""

    record: RequestRecord
    key: bytes
    prompt: "array[int]"
    max_tokens: int
    """What the client asks for at most. Agents send a ceiling that almost no reply reaches."""
    session_header: str | None
    first_turn: str
    """Names the session in the text, as the first turn of a real one does."""
    ended: Callable[["Call"], None]
    exchange: Exchange | None = None
    tried: int = 0


@dataclass(slots=True, eq=False)
class Cluster:
    """Router and engines. `send` a call; its `ended` is called once."""

    table: RoutingTable
    keys: tuple[KeyEntry, ...]
    engines: tuple[PoolConfig, ...]
    pace: Pace
    seed: int
    peer_pool: str | None = None
    """The pool whose engines sglang-router's `cache_aware` stands before; None: our router decides."""
    now_us: int = 0
    proxy: Proxy = field(init=False)
    replicas: dict[str, Replica] = field(init=False, default_factory=dict)
    _agenda: list[tuple[int, int, Callable[[], None]]] = field(default_factory=list)
    _ticket: "count[int]" = field(default_factory=count)
    _running: dict[str, Call] = field(default_factory=dict)
    _peer: CacheAware = field(init=False)

    def __post_init__(self) -> None:
        clocks = Clocks(lambda: self.now_us / 1e6, lambda: WALL_SECONDS + self.now_us / 1e6)
        self.proxy = Proxy(clocks, Random(self.seed), pace=self.pace)
        self.proxy.log.disabled = True
        self.proxy.keyrings.apply("keys", Keyring(generation="virtual", keys=self.keys))
        for pool in self.engines:
            for index in range(pool.replicas):
                if pool.cost is None:
                    raise ValueError(f"pool {pool.name} has no step cost")
                id_ = f"{pool.name}-{index}"
                self.replicas[id_] = Replica(id_, pool.name, Scheduler(pool.engine, pool.cost))
        self._peer = CacheAware(sum(replica.pool == self.peer_pool for replica in self.replicas.values()))
        self.proxy.pools.apply(self._with_endpoints(), 0.0)
        self.at(TICK_US, self._tick)
        self.at(PROBE_US, self._probe)

    def _with_endpoints(self) -> RoutingTable:
        pools = tuple(
            route.model_copy(
                update={
                    "endpoints": tuple(
                        Endpoint(url="http://127.0.0.1:9", id=replica.id)
                        for replica in self.replicas.values()
                        if replica.pool == route.name
                    )
                }
            )
            for route in self.table.pools
        )
        return self.table.model_copy(update={"pools": pools})

    def at(self, at_us: int, action: Callable[[], None]) -> None:
        """Does something at a time."""
        heapq.heappush(self._agenda, (at_us, next(self._ticket), action))

    def run(self, end_us: int) -> None:
        """Lets time pass until `end_us`."""
        while self._agenda and self._agenda[0][0] <= end_us:
            self.now_us, _, action = heapq.heappop(self._agenda)
            action()
        self._close()

    def send(self, call: Call) -> None:
        """A client sends its request."""
        if self.peer_pool is not None and call.record.traffic is Traffic.AGENT:
            call.tried += 1
            self._start(call, self.replicas[f"{self.peer_pool}-{self._peer.take(call.prompt)}"])
            return
        headers = [(b"authorization", b"Bearer " + call.key), (b"content-type", b"application/json")]
        if call.session_header is not None:
            headers.append((b"x-session-id", call.session_header.encode()))
        call.tried += 1
        call.record.attempts = call.tried
        try:
            call.exchange = exchange = self.proxy.open(ROUTE, headers)
        except Refusal as refusal:
            self._lost(call, refusal.reason.value)
            return
        waiter = _Waiter(self, call)
        try:
            self.proxy.submit(exchange, _body(call), waiter)
        except Refusal as refusal:
            waiter.refused(refusal)

    # the engines' side ------------------------------------------------------------------------------------------------

    def dispatch(self, call: Call) -> None:
        """The router chose an endpoint."""
        exchange = call.exchange
        if exchange is None or exchange.endpoint is None:
            raise RuntimeError("granted without an endpoint")
        self.proxy.engine_request(exchange)
        self._start(call, self.replicas[exchange.endpoint.id])

    def _start(self, call: Call, replica: Replica) -> None:
        record = call.record
        record.pool, record.replica, record.sent_us = replica.pool, int(replica.id.rpartition("-")[2]), self.now_us
        rid = f"{record.request}.{call.tried}"
        answer = replica.engine.submit(
            EngineRequest(rid=rid, prompt=call.prompt, output_tokens=record.wanted_tokens), self.now_us
        )
        if isinstance(answer, Refused):
            if call.exchange is not None:
                self.proxy.settle(call.exchange, passed(400))
            self._lost(call, answer.reason.value)
            return
        self._running[rid] = call
        self._kick(replica)

    def refuse(self, call: Call, refusal: Refusal) -> None:
        """The router answered itself."""
        if call.exchange is not None:
            self.proxy.settle(call.exchange, refused(refusal.reason))
        self._lost(call, refusal.reason.value)

    def _lost(self, call: Call, reason: str) -> None:
        call.record.outcome, call.record.reason, call.record.end_us = Outcome.SHED, reason, self.now_us
        call.ended(call)

    def _kick(self, replica: Replica) -> None:
        if replica.in_step:
            return
        step = replica.engine.begin_step(self.now_us)
        if step is not None:
            replica.in_step = True
            self.at(self.now_us + step.duration_us, lambda: self._step_ends(replica))
            return
        wakeup_us = replica.engine.next_wakeup_us(self.now_us)
        if wakeup_us is not None and (replica.wakeup_us is None or wakeup_us < replica.wakeup_us):
            replica.wakeup_us = wakeup_us
            self.at(wakeup_us, lambda: self._wake(replica))

    def _wake(self, replica: Replica) -> None:
        replica.wakeup_us = None
        self._kick(replica)

    def _step_ends(self, replica: Replica) -> None:
        replica.in_step = False
        for event in replica.engine.end_step_edges(self.now_us):
            if isinstance(event, Token):
                self._first_token(event)
            elif isinstance(event, Finished) and event.reason is not FinishReason.ABORT:
                self._finished(event.rid)
        self._kick(replica)

    def _first_token(self, event: Token) -> None:
        call = self._running[event.rid]
        record, exchange = call.record, call.exchange
        if record.first_token_us is None:
            record.first_token_us = self.now_us
            record.cached_tokens = event.cached_tokens
            if exchange is not None:
                exchange.first_event = self.now_us / 1e6

    def _finished(self, rid: str) -> None:
        call = self._running.pop(rid)
        record, exchange = call.record, call.exchange
        record.outcome, record.reason, record.end_us = Outcome.OK, None, self.now_us
        record.output_tokens = record.wanted_tokens
        record.last_token_us = self.now_us
        if exchange is not None:
            exchange.usage.prompt_tokens = record.input_tokens
            exchange.usage.completion_tokens = record.wanted_tokens
            exchange.usage.cached_tokens = record.cached_tokens
            if exchange.spill is not None:
                record.reason = exchange.spill.value
            self.proxy.settle(exchange, passed(200))
        elif record.replica is not None:
            self._peer.give_back(record.replica)
        call.ended(call)

    # what runs by itself ----------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.now_us / 1e6
        self.proxy.admission.sweep(now)
        self.proxy.pools.sweep(now)
        self.at(self.now_us + TICK_US, self._tick)

    def _probe(self) -> None:
        pools = self.proxy.pools.pools
        for replica in self.replicas.values():
            seen = replica.engine.gauges()
            endpoint = pools[replica.pool].endpoints[replica.id]
            gauges = EngineGauges(seen.running, seen.queued, seen.token_usage, self.now_us / 1e6)
            self.proxy.pools.heard(endpoint, gauges)
        self.at(self.now_us + PROBE_US, self._probe)

    def _close(self) -> None:
        """The run is over: what is under way keeps the tokens that it has."""
        for rid, call in self._running.items():
            record = call.record
            made = self.replicas[f"{record.pool}-{record.replica}"].engine.made_tokens(rid)
            if made and record.first_token_us is not None:
                record.output_tokens, record.last_token_us = made, self.now_us


@dataclass(slots=True, eq=False)
class _Waiter:
    cluster: Cluster
    call: Call

    def granted(self) -> None:
        self.cluster.dispatch(self.call)

    def refused(self, refusal: Refusal) -> None:
        self.cluster.refuse(self.call, refusal)


def _body(call: Call) -> bytes:
    """The request as a client writes it: the session's first turn, then what has been said since."""
    text = call.record.input_tokens * BYTES_PER_TOKEN
    first = call.first_turn.ljust(min(text, 512), "x")
    messages: list[Mapping[str, str]] = [{"role": "user", "content": first}]
    if text > len(first):
        messages.append({"role": "assistant", "content": "y" * (text - len(first))})
    document = {"model": "m1", "stream": True, "max_tokens": call.max_tokens, "messages": messages}
    return json.dumps(document).encode()
