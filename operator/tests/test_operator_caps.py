"""Caps of a replica stay those of its revision: a new spec's caps are for the engines that run with its settings."""

from dataclasses import replace
from typing import Any

import pytest

from hlserve_api.routing import RoutingTable
from hlserve_api.testing.manifests import a_human_less_pool, changed
from hlserve_api.v1alpha1 import ServingPool
from hlserve_capacity.derive import derive
from hlserve_operator.caps import Caps
from hlserve_operator.pools.views import child_view
from hlserve_operator.refs import Ref
from hlserve_operator.render.metadata import CAPS_ANNOTATION, POOL_LABEL, REVISION_LABEL
from hlserve_operator.resources import CUSTOM_API
from hlserve_operator.state import Manifest, Release
from hlserve_operator.testing.access import a_pool, observed, plan, table_of
from hlserve_operator.testing.api_server import Simulated, simulated
from hlserve_operator.testing.cluster import Cluster
from hlserve_operator.testing.running import POOL, manifest, operator_on, until

IMAGE = "registry.example/engine@sha256:" + "a" * 64
OLD = Caps(max_in_flight=7, in_flight_tokens=700)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(OLD.text, OLD, id="as it was written"),
        pytest.param("{}", Caps(), id="no bound at all"),
        pytest.param("", None, id="no annotation, as an older operator left it"),
        pytest.param("{", None, id="no JSON"),
        pytest.param("[1]", None, id="no object"),
        pytest.param('{"max_in_flight": 0}', None, id="no cap"),
        pytest.param('{"max_in_flight": true}', None, id="no number"),
    ],
)
def test_operator_caps_are_read_from_an_annotation(text: str, want: Caps | None) -> None:
    assert Caps.parsed(text) == want


def test_operator_table_names_the_caps_that_are_not_the_newest_and_their_pods() -> None:
    pool = a_pool()
    newest = Caps.of(pool.derived)
    pods = {"b": OLD, "a": OLD, "new": newest, "older": Caps(max_in_flight=3)}
    (route,) = table_of(plan(observed(pools=(replace(pool, caps=pods),)))).pools
    assert route.max_in_flight == newest.max_in_flight
    assert [(each.endpoints, each.max_in_flight, each.in_flight_tokens) for each in route.replica_caps] == [
        (("a", "b"), 7, 700),
        (("older",), 3, None),
    ]
    (without,) = table_of(plan(observed(pools=(replace(pool, caps={"new": newest}),)))).pools
    assert without.replica_caps == ()


def caps_in(cluster: Cluster) -> dict[str, Caps | None]:
    """By revision."""
    return {
        view.revision: Caps.parsed(view.caps)
        for view in (child_view(found) for ref, found in cluster.objects.items() if ref.kind == "Deployment")
    }


def a_cluster() -> Cluster:
    document = changed(a_human_less_pool(), "metadata.uid", "pool-uid")
    document["metadata"]["generation"] = 1
    engine = {"maxRunningRequests": 8, "inFlightTokensPerReplica": 1000}
    spec = {**document["spec"], "replicas": 1, "engine": engine, "rollout": {"paused": True}}
    cluster = Cluster(ServingPool.model_validate({**document, "spec": spec}), Release(default_image=IMAGE), places=5)
    for _ in range(10):
        cluster.reconcile()
        cluster.tick()
    return cluster


def edited(cluster: Cluster, **engine: Any) -> dict[str, Caps | None]:
    cluster.edit(engine={"maxRunningRequests": 8, "inFlightTokensPerReplica": 1000, **engine}, rollout={})
    cluster.reconcile()
    return caps_in(cluster)


def test_operator_revision_keeps_its_caps_when_the_spec_makes_a_new_one() -> None:
    cluster = a_cluster()
    (old,) = caps_in(cluster)
    assert caps_in(cluster)[old] == Caps.of(derive(cluster.pool))
    before = caps_in(cluster)[old]
    after = edited(cluster, maxRunningRequests=16)
    assert len(after) == 2
    assert after[old] == before
    (new,) = after.keys() - {old}
    assert after[new] == Caps.of(derive(cluster.pool)) != before


def test_operator_caps_that_need_no_new_pods_are_in_force_at_once() -> None:
    cluster = a_cluster()
    (revision,) = caps_in(cluster)
    after = edited(cluster, inFlightTokensPerReplica=2000)
    assert list(after) == [revision]
    found = after[revision]
    assert found is not None
    assert found.in_flight_tokens == 2000


def test_operator_caps_that_somebody_changed_are_set_right_in_a_pool_at_rest() -> None:
    cluster = a_cluster()
    before = caps_in(cluster)
    (child,) = (found for ref, found in cluster.objects.items() if ref.kind == "Deployment")
    child["metadata"]["annotations"][CAPS_ANNOTATION] = '{"max_in_flight":1}'
    assert caps_in(cluster) != before
    cluster.reconcile()
    assert caps_in(cluster) == before


def a_pod(name: str, revision: str) -> Manifest:
    labels = {POOL_LABEL: "chat", REVISION_LABEL: revision}
    status = {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"name": name, "uid": name, "labels": labels}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": status}


def table_in(server: Simulated) -> RoutingTable | None:
    found = server.objects.get(Ref("v1", "ConfigMap", "hlserve-routing-table"))
    return None if found is None else RoutingTable.model_validate_json(found["data"]["table.json"])


async def test_operator_table_keeps_old_caps_for_old_pods_through_a_change_of_the_spec() -> None:
    def deployments() -> list[Manifest]:
        return [found for ref, found in server.objects.items() if ref.kind == "Deployment"]

    def told() -> dict[str, int | None]:
        table = table_in(server)
        if table is None:
            return {}
        return {pod: caps.max_in_flight for caps in table.pools[0].replica_caps for pod in caps.endpoints}

    async with simulated() as server:
        pool = manifest(POOL)
        pool["spec"]["mode"] = "HumanLess"
        del pool["spec"]["slo"]
        pool["spec"]["engine"]["maxRunningRequests"] = 8
        server.put(pool)
        async with operator_on(server):
            await until(deployments, "the first revision")
            (first,) = deployments()
            server.put(a_pod("old", first["metadata"]["labels"][REVISION_LABEL]))
            server.change(Ref(CUSTOM_API, "ServingPool", "chat"), {"spec": {"engine": {"maxRunningRequests": 16}}})
            former = derive(ServingPool.model_validate(pool)).max_in_flight
            await until(lambda: told() == {"old": former}, "caps of the old pod")
            table = table_in(server)
            assert table is not None
            assert table.pools[0].max_in_flight not in (None, former)
