"""Caps of single endpoints, of an older revision of their pool, count in place of the pool's."""

import pytest

from hlserve_api.routing import ReplicaCaps, RoutingTable
from hlserve_router.policy import Pick, pick
from hlserve_router.pools import Pools
from hlserve_router.state import NoPlace
from hlserve_router.testing.choice import an_ask, an_endpoint, an_offer
from hlserve_router.testing.documents import a_class, a_pool, a_table

URLS = ("http://127.0.0.1:1", "http://127.0.0.1:2")


def caps(*endpoints: str, **values: int) -> ReplicaCaps:
    return ReplicaCaps(endpoints=endpoints, **values)


@pytest.mark.parametrize(
    ("own", "in_flight", "tokens", "free"),
    [
        pytest.param(None, 3, 30, True, id="below the pool's cap"),
        pytest.param(None, 4, 40, False, id="at the pool's cap"),
        pytest.param(caps("a", max_in_flight=2), 2, 20, False, id="at its own, smaller cap"),
        pytest.param(caps("a", max_in_flight=9), 4, 40, True, id="below its own, larger cap"),
        pytest.param(caps("a"), 99, 990, True, id="not bounded, although the pool is"),
        pytest.param(caps("a", in_flight_tokens=45), 3, 40, False, id="its own bound on tokens"),
        pytest.param(caps("a", in_flight_tokens=50), 3, 40, True, id="room within it"),
    ],
)
def test_an_endpoints_own_caps_count(own: ReplicaCaps | None, in_flight: int, tokens: int, free: bool) -> None:
    endpoint = an_endpoint("a", tokens, in_flight=in_flight, caps=own)
    found = pick([an_offer(endpoint, max_in_flight=4)], an_ask(), 0.0)
    assert isinstance(found, Pick) is free
    if not free:
        assert found in (NoPlace.FULL, NoPlace.TIGHT)


def test_the_last_resort_keeps_to_an_endpoints_own_cap() -> None:
    for own, want in ((caps("a", max_in_flight=1), False), (caps("a", max_in_flight=2), True)):
        endpoint = an_endpoint("a", 10, opened=True, open_until=60.0, caps=own)
        assert isinstance(pick([an_offer(endpoint, max_in_flight=1)], an_ask(), 0.0), Pick) is want


def test_a_table_gives_caps_and_takes_them_back() -> None:
    pools = Pools()
    own = caps("agents-0", max_in_flight=2, in_flight_tokens=20, kv_tokens=1000)
    route = a_pool("agents", *URLS, max_in_flight=8, kv_tokens=4000, replica_caps=(own,))
    pools.apply(a_table(route, a_class("agent", "agents")), 0.0)
    pool = pools.pools["agents"]
    assert [endpoint.caps for endpoint in pool.endpoints.values()] == [own, None]
    assert pools.capacity(pool) == 10
    small, large = (endpoint.kv_budget or 0 for endpoint in pool.endpoints.values())
    assert 4 * small == pytest.approx(large, abs=4)
    pools.apply(a_table(route.model_copy(update={"replica_caps": ()}), a_class("agent", "agents")), 1.0)
    assert [endpoint.caps for endpoint in pool.endpoints.values()] == [None, None]
    assert pools.capacity(pool) == 16


def test_a_pool_with_one_unbounded_endpoint_has_no_capacity_to_share() -> None:
    pools = Pools()
    pools.apply(a_table(a_pool("agents", *URLS, max_in_flight=8, replica_caps=(caps("agents-0"),))), 0.0)
    assert pools.capacity(pools.pools["agents"]) is None


def test_b46_a_table_of_an_older_operator_has_no_such_caps() -> None:
    document = a_table(a_pool("agents", *URLS)).model_dump(mode="json", by_alias=True)
    for pool in document["pools"]:
        del pool["replicaCaps"]
    assert RoutingTable.model_validate(document).pools[0].replica_caps == ()
