"""The pipeline under a clock that the test moves: no socket, no event loop."""

import json
from dataclasses import dataclass, field
from logging import getLogger
from random import Random
from typing import Any

from hlserve_api.routing import RoutingTable
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.outcome import passed
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.state import ROUTES, Pace
from hlserve_router.testing.documents import a_keyring


@dataclass(slots=True, eq=False)
class Asked:
    """One request: whether it got an endpoint, or why not."""

    exchange: Exchange
    placed: bool = False
    refusal: Refusal | None = None

    def granted(self) -> None:
        """It has an endpoint."""
        self.placed = True

    def refused(self, refusal: Refusal) -> None:
        """It will get none."""
        self.refusal = refusal


@dataclass(slots=True, eq=False)
class SteppedRouter:
    """A pipeline with the usual three keys. `now`: monotonic seconds."""

    table: RoutingTable
    pace: Pace = field(default_factory=Pace)
    now: float = 1000.0
    proxy: Proxy = field(init=False)

    def __post_init__(self) -> None:
        self.proxy = Proxy(Clocks(lambda: self.now, lambda: 1.8e9 + self.now), Random(0), pace=self.pace)
        self.proxy.log = getLogger("stepped")  # one of its own: the level of the shared one would stay lowered
        self.proxy.log.setLevel("WARNING")
        self.proxy.keyrings.apply("keys", a_keyring())
        self.proxy.pools.apply(self.table, self.now)

    def ask(self, key: str, body: dict[str, Any], path: str = "/v1/chat/completions", **headers: str) -> Asked:
        """A client's request; it may be placed before this returns."""
        sent = [(b"authorization", b"Bearer " + key.encode())]
        sent.extend((name.replace("_", "-").encode(), value.encode()) for name, value in headers.items())
        asked = Asked(self.proxy.open(ROUTES[path], sent))
        self.proxy.submit(asked.exchange, json.dumps(body).encode(), asked)
        return asked

    def end(self, asked: Asked, prompt_tokens: int | None = None, completion_tokens: int | None = None) -> None:
        """Its reply ended, with this usage."""
        usage = asked.exchange.usage
        usage.prompt_tokens, usage.completion_tokens = prompt_tokens, completion_tokens
        self.proxy.settle(asked.exchange, passed(200))

    def wait(self, seconds: float) -> None:
        """Time passes, and what the router does by itself happens."""
        self.now += seconds
        self.proxy.admission.sweep(self.now)
        self.proxy.pools.sweep(self.now)
        self.proxy.admission.pump(self.now)
