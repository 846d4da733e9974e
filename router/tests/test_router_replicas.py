"""EndpointSlices to replicas, and what is asked of the API server's surroundings."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_router.errors import StartError
from hlserve_router.kubernetes_api import kubernetes_api
from hlserve_router.replicas import EndpointSlice, as_endpoints, replicas_of
from hlserve_router.settings import Settings
from hlserve_router.testing.certificates import Authority

UID = st.sampled_from(["u1", "u2", "u3", "u4"])
CONDITION = st.sampled_from([None, True, False])


def a_slice(
    *endpoints: dict[str, Any], family: str = "IPv4", ports: Any = ({"name": "http", "port": 30000},)
) -> EndpointSlice:
    document = {
        "addressType": family,
        "endpoints": list(endpoints),
        "ports": list(ports) if ports is not None else None,
    }
    return msgspec.json.decode(msgspec.json.encode(document), type=EndpointSlice)


def listed(uid: str | None, *addresses: str, **conditions: bool | None) -> dict[str, Any]:
    found: dict[str, Any] = {"addresses": list(addresses), "conditions": conditions}
    return found if uid is None else {**found, "targetRef": {"kind": "Pod", "name": f"pod-{uid}", "uid": uid}}


SLICES = st.lists(
    st.tuples(
        st.sampled_from(["IPv4", "IPv6"]),
        st.lists(st.tuples(UID, CONDITION, CONDITION, CONDITION), max_size=4),
    ),
    max_size=4,
)


@given(SLICES, st.randoms(use_true_random=False), st.sets(UID))
def test_one_replica_a_pod_whatever_the_order_and_nothing_new_for_what_is_not_ready(
    drawn: Any, random: Any, known: set[str]
) -> None:
    slices = [
        a_slice(
            *(listed(uid, f"fd00::{uid[1]}" if family == "IPv6" else f"10.0.0.{uid[1]}", ready=ready, serving=serving,
                     terminating=terminating) for uid, ready, serving, terminating in pods), family=family,
        )
        for family, pods in drawn
    ]  # fmt: skip
    replicas = replicas_of(slices)
    shuffled = list(slices)
    random.shuffle(shuffled)
    assert {(each.id, each.ready, each.terminating, frozenset(each.authorities)) for each in replicas_of(shuffled)} == {
        (each.id, each.ready, each.terminating, frozenset(each.authorities)) for each in replicas
    }
    told = {uid: [pod for _, pods in drawn for pod in pods if pod[0] == uid] for uid in ("u1", "u2", "u3", "u4")}
    assert [each.id for each in replicas] == sorted(uid for uid, pods in told.items() if pods)
    found = as_endpoints(replicas, "http", dict.fromkeys(known, ""))
    for endpoint in found.endpoints:
        pods = told[endpoint.id]
        usable = all(ready is not False and not terminating for _, ready, _, terminating in pods)
        assert usable or endpoint.id in known
        assert (endpoint.id not in found.unready | found.terminating) is usable
    usable_ids = {each.id for each in replicas if each.ready}
    assert usable_ids <= {endpoint.id for endpoint in found.endpoints}


@pytest.mark.parametrize(
    ("ports", "port"),
    [
        pytest.param(({"name": "http", "port": 30000},), 30000, id="the only one"),
        pytest.param(({"name": "metrics", "port": 9}, {"name": "http", "port": 30000}), 30000, id="http among others"),
        pytest.param(
            ({"name": "metrics", "port": 9}, {"name": "https", "port": 30001}), 30001, id="https among others"
        ),
        pytest.param(({"name": "", "port": 8000},), 8000, id="without a name"),
        pytest.param(({"name": None, "port": 8000}, {"name": "z", "port": 1}), 8000, id="the first"),
        pytest.param(({"name": "http", "port": None},), None, id="every port"),
        pytest.param(None, None, id="no ports"),
        pytest.param((), None, id="none"),
    ],
)
def test_the_port_of_a_service(ports: Any, port: int | None) -> None:
    replicas = replicas_of([a_slice(listed("u1", "10.0.0.1"), ports=ports)])
    assert [each.authorities for each in replicas] == ([] if port is None else [(f"10.0.0.1:{port}",)])


def test_addresses_of_one_pod_and_the_one_that_is_kept() -> None:
    four, six = a_slice(listed("u1", "10.0.0.1")), a_slice(listed("u1", "fd00::17"), family="IPv6")
    both = replicas_of([six, four])
    assert [each.authorities for each in both] == [("10.0.0.1:30000", "[fd00::17]:30000")]
    assert [e.url for e in as_endpoints(both, "https", {}).endpoints] == ["https://10.0.0.1:30000"]
    kept = as_endpoints(both, "http", {"u1": "http://[fd00::17]:30000"})
    assert [e.url for e in kept.endpoints] == ["http://[fd00::17]:30000"]
    moved = as_endpoints(replicas_of([four]), "http", {"u1": "http://[fd00::17]:30000"})
    assert [e.url for e in moved.endpoints] == ["http://10.0.0.1:30000"]


def test_an_endpoint_without_a_pod_is_known_by_its_address_and_one_without_address_is_none() -> None:
    replicas = replicas_of([a_slice(listed(None, "10.0.0.9"), listed("u2"))])
    assert [(each.id, each.name) for each in replicas] == [("10.0.0.9:30000", "10.0.0.9:30000")]
    assert replicas_of([a_slice(listed("u1", "engine.example"), family="FQDN")])[0].authorities == (
        "engine.example:30000",
    )
    empty = msgspec.json.decode(b'{"addressType":"IPv4","endpoints":null,"ports":null}', type=EndpointSlice)
    assert replicas_of([empty]) == ()


def in_a_pod(folder: Path, **changes: Any) -> Settings:
    (folder / "token").write_text("t")
    given_settings = {"kubernetes": True, "namespace": "serving", "kubernetes_token_file": folder / "token", **changes}
    return Settings(**given_settings)


@pytest.mark.parametrize(
    ("host", "port", "server"),
    [
        ("10.96.0.1", "443", "https://10.96.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
    ],
)
def test_b40_the_api_server_that_a_pod_is_told(tmp_path: Path, host: str, port: str, server: str) -> None:
    (tmp_path / "ca.crt").write_text(Authority().pem)
    settings = in_a_pod(tmp_path, kubernetes_ca_file=tmp_path / "ca.crt")
    api = kubernetes_api(settings, {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port})
    assert (api.server, api.namespace) == (server, "serving")
    assert api.path("api/v1", "secrets") == "/api/v1/namespaces/serving/secrets"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"kubernetes_token_file": Path("/nowhere/token")},
            "/nowhere/token cannot be read .* give --kubernetes-token-file",
        ),
        (
            {"kubernetes_ca_file": Path("/nowhere/ca.crt")},
            "CA /nowhere/ca.crt cannot be read .* give --kubernetes-ca-file",
        ),
        ({"namespace": None}, "namespace cannot be read .* give --namespace"),
    ],
    ids=["no token", "no CA", "no namespace"],
)
def test_what_a_pod_lacks_is_one_sentence(tmp_path: Path, changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(StartError, match=sentence):
        kubernetes_api(in_a_pod(tmp_path, **changes), {"KUBERNETES_SERVICE_HOST": "10.96.0.1"})
