"""Builders for tests of the choice: endpoints in a state, offered by pools."""

from typing import Any

from hlserve_api.routing import Intent
from hlserve_router.endpoint import EndpointState
from hlserve_router.policy import Ask
from hlserve_router.pools import Offer, Pool
from hlserve_router.sessions import Session
from hlserve_router.testing.documents import a_pool
from hlserve_router.upstream import link_to


def an_endpoint(id_: str, tokens: int = 0, **changes: Any) -> EndpointState:
    """A seasoned endpoint with so many tokens in flight, all of it work ahead."""
    defaults: dict[str, Any] = {"in_flight_tokens": tokens, "work_tokens": tokens, "in_flight": 1 if tokens else 0}
    state = {**defaults, **changes}
    made = EndpointState(id_, f"http://{id_}", "agents", link_to("http://127.0.0.1:1"), added_at=0.0, seasoned=True)
    for name, value in state.items():
        setattr(made, name, value)
    return made


def an_offer(*endpoints: EndpointState, weight: int = 1, **pool: Any) -> Offer:
    """These endpoints as one pool; `pool` sets its bounds."""
    made = Pool(a_pool("agents"))
    for endpoint in endpoints:
        made.endpoints[endpoint.id] = endpoint
    for name, value in pool.items():
        setattr(made, name, value)
    return Offer(made, weight)


def an_ask(key: str | None = None, session: Session | None = None, **changes: Any) -> Ask:
    """A small request of an agent; `key` names its session."""
    defaults: dict[str, Any] = {
        "class_name": "agent", "intent": Intent.AGENT, "prompt_tokens": 8, "output_tokens": 2, "affinity_key": key,
        "session": session,
    }  # fmt: skip
    return Ask(**{**defaults, **changes})


def a_session(home: EndpointState, key: str = "s", context_tokens: int = 1000, *, active: bool = True) -> Session:
    """A session that is at home there, between two rounds."""
    made = Session(key, home, 0.0)
    made.context_tokens, made.active = context_tokens, active
    return made
