"""What the charts make: safe pods, graceful ends, no right too many, the names that operator and pools look for."""

import os
from collections.abc import Iterator, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from aiohttp import web

from hlserve_api.routing import ENGINE_CREDENTIALS_SECRET, KEYRING_SECRET_PREFIX, TABLE_CONFIG_MAP
from hlserve_api.v1alpha1 import GROUP, KINDS
from hlserve_capacity.derive import derive
from hlserve_cluster.charts import CHARTS, VERSIONS, Manifest, find, helm, pods, render
from hlserve_operator.__main__ import main as operator_command
from hlserve_operator.files import read_pools
from hlserve_operator.lease import LEASE_NAME
from hlserve_operator.plan import plan
from hlserve_operator.pools.objects import REVISION_KINDS, SHARED_KINDS
from hlserve_operator.resources import PLURALS, plural_of
from hlserve_operator.settings import read_settings as read_operator_settings
from hlserve_operator.state import Release
from hlserve_operator.testing.api_server import OPTIONAL_GROUPS, Simulated, simulated
from hlserve_operator.testing.running import CLASS, KEY, POOL, manifest, operator_on, quiet, until
from hlserve_router.__main__ import main as router_command
from hlserve_router.options import read_settings as read_router_settings

GOLDEN = Path(__file__).parent / "golden"
MONITORING = "monitoring.coreos.com/v1/PodMonitor"
KEDA = "keda.sh/v1alpha1/TriggerAuthentication"
FULL: dict[str, Any] = {
    "adminToken": {"existingSecret": "token"},
    "engine": {"image": "registry.example/engine@sha256:" + "0" * 64},
    "router": {"tls": {"secretName": "router-tls"}, "autoscaling": {"enabled": True}},
    "valkey": {"enabled": True, "existingSecret": "valkey-password"},
    "ingress": {"enabled": True, "hosts": ["llm.example"], "tlsSecretName": "llm-tls"},
    "httpRoute": {"enabled": True, "parentRefs": [{"name": "public"}]},
    "monitoring": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
    "test": {"keys": {"chat": {"secretName": "chat-app-primary"}}},
}
CASES: Mapping[str, dict[str, Any]] = {
    "small": {"adminToken": {"existingSecret": "token"}},
    "full": FULL,
}


def container(objects: tuple[Manifest, ...], name: str) -> dict[str, Any]:
    """The only container of a pod."""
    spec = dict(pods(objects))[name]
    (only,) = spec["containers"]
    found: dict[str, Any] = only
    return found


@pytest.mark.parametrize("case", CASES)
def test_chart_is_rendered_as_pinned_by_both_helms(case: str) -> None:
    got = [render(CASES[case], version=version, apis=(MONITORING, KEDA)) for version in VERSIONS]
    assert got[0] == got[1]
    text = yaml.safe_dump_all(got[0], sort_keys=False, width=140)
    golden = GOLDEN / f"chart-{case}.yaml"
    if os.environ.get("HLSERVE_UPDATE_GOLDEN") == "1":
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


@pytest.mark.parametrize("version", VERSIONS)
def test_charts_are_in_order_by_helms_own_check(version: int) -> None:
    helm("lint", "--strict", str(CHARTS / "hlserve"), str(CHARTS / "hlserve-crds"), version=version)


def test_charts_carry_the_version_of_the_distributions() -> None:
    version = helm("show", "chart", str(CHARTS / "hlserve"))
    found = yaml.safe_load(version)
    others = yaml.safe_load((CHARTS / "hlserve-crds/Chart.yaml").read_text(encoding="utf-8"))
    ours = {found["version"], found["appVersion"], others["version"], others["appVersion"]}
    assert ours == {_own_version()}


def _own_version() -> str:
    text = (CHARTS.parent / "operator/pyproject.toml").read_text(encoding="utf-8")
    return next(line.split('"')[1] for line in text.splitlines() if line.startswith("version"))


def test_chart_pods_are_restricted_and_b81_know_no_service_links() -> None:
    """As the Pod Security Standard `restricted` asks, and with a root file system that cannot be written."""
    found = dict(pods(render(FULL)))
    assert found.keys() == {"hlserve-operator", "hlserve-router", "hlserve-valkey", "hlserve-test"}
    for name, spec in found.items():
        assert spec["enableServiceLinks"] is False, name
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (only,) = spec["containers"]
        context = only["securityContext"]
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert only["resources"]["limits"]["memory"]
        assert only["resources"]["requests"].keys() == {"cpu", "memory"}
        needs_token = name in ("hlserve-operator", "hlserve-router")
        assert spec.get("automountServiceAccountToken", True) is needs_token
    # B76: what several workers keep lies in memory, and there is a place to write under a root that cannot be written.
    assert {"name": "tmp", "mountPath": "/tmp"} in found["hlserve-router"]["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(("drain", "settle"), [(3600, 5), (0, 0), (0.5, 1.5)], ids=["hours", "nothing", "fractions"])
def test_chart_b66_gives_a_router_the_time_that_its_streams_need(drain: float, settle: float) -> None:
    values = {"router": {"settings": {"drainSeconds": drain, "settleSeconds": settle}}}
    objects = render(values)
    spec = dict(pods(objects))["hlserve-router"]
    assert spec["terminationGracePeriodSeconds"] == ceil(drain) + ceil(settle) + 15
    strategy = find(objects, "Deployment", "hlserve-router")["spec"]["strategy"]["rollingUpdate"]
    assert strategy == {"maxSurge": 1, "maxUnavailable": 0}
    assert find(objects, "PodDisruptionBudget", "hlserve-router")["spec"]["maxUnavailable"] == 1


def test_chart_b66_router_outlives_the_drain_of_every_pool_that_is_derived() -> None:
    """By default: an hour is the longest that is derived."""
    grace = dict(pods(render()))["hlserve-router"]["terminationGracePeriodSeconds"]
    for pool in read_pools(CHARTS.parent / "examples/quickstart"):
        assert grace > derive(pool).grace_seconds
    assert grace > 3600


def test_chart_b25_nothing_on_the_way_gives_up_before_the_router() -> None:
    objects = render({**FULL, "longestRequestSeconds": 7200})
    (rule,) = find(objects, "HTTPRoute", "hlserve-router")["spec"]["rules"]
    assert rule["timeouts"] == {"request": "7215s", "backendRequest": "7215s"}
    annotations = find(objects, "Ingress", "hlserve-router")["metadata"]["annotations"]
    waits = {name: text for name, text in annotations.items() if "timeout" in name}
    assert len(waits) == 6
    assert {text.removesuffix("s") for text in waits.values()} == {"7215"}
    assert annotations["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"
    assert annotations["nginx.org/proxy-buffering"] == "False"


def test_chart_own_annotations_of_an_ingress_win() -> None:
    name = "nginx.ingress.kubernetes.io/proxy-read-timeout"
    objects = render({"ingress": {"enabled": True, "annotations": {name: "5"}}})
    ingress = find(objects, "Ingress", "hlserve-router")
    assert ingress["metadata"]["annotations"][name] == "5"
    assert "host" not in ingress["spec"]["rules"][0]


@pytest.mark.parametrize(("secret", "protocol"), [("", "http"), ("router-tls", "https")], ids=["plain", "TLS"])
def test_chart_b41_tells_gateways_that_routers_speak_http_1(secret: str, protocol: str) -> None:
    objects = render({"router": {"tls": {"secretName": secret}}})
    (port,) = find(objects, "Service", "hlserve-router")["spec"]["ports"]
    assert port["appProtocol"] == protocol
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container(objects, "hlserve-router")[probe]["httpGet"]["scheme"] == protocol.upper()


@pytest.mark.parametrize(
    ("values", "store", "budgets"),
    [
        ({}, None, False),
        ({"valkey": {"enabled": True}}, "valkey://hlserve-valkey.serving.svc:6379/0", True),
        ({"limits": {"store": "valkeys://a.example:6380/2"}}, "valkeys://a.example:6380/2", True),
    ],
    ids=["none", "ours", "another"],
)
def test_chart_b70_routers_share_limits_where_there_is_a_store(
    values: dict[str, Any], store: str | None, budgets: bool
) -> None:
    objects = render(values)
    arguments = container(objects, "hlserve-router")["args"]
    assert [a.partition("=")[2] for a in arguments if a.startswith("--limits-store=")] == ([store] if store else [])
    assert ("--budgets" in container(objects, "hlserve-operator")["args"]) is budgets


def test_chart_processes_understand_what_they_are_given(monkeypatch: pytest.MonkeyPatch) -> None:
    objects = render({**FULL, "listenAddress": "::", "operator": {"prometheusAddress": "http://prometheus:9090"}})
    for name in ("operator", "router"):
        for each in container(objects, f"hlserve-{name}")["env"]:
            monkeypatch.setenv(each["name"], each["value"])
    operator = read_operator_settings(_parsed(operator_command.commands["run"], objects, "hlserve-operator"))
    assert (operator.release, operator.host, operator.port, operator.keyring_shards) == ("hlserve", "::", 8080, 4)
    assert operator.monitoring_labels == {"kubernetes.io/metadata.name": "monitoring"}
    assert operator.engine_image == FULL["engine"]["image"]
    assert operator.prometheus_address == "http://prometheus:9090"
    assert operator.budgets
    router = read_router_settings(_parsed(router_command, objects, "hlserve-router"))
    assert (router.kubernetes, router.port, router.admin_port) == (True, 8080, operator.router_admin_port)
    assert (router.drain_seconds, router.settle_seconds) == (3600, 5)
    # Each file that is named is in a volume that is mounted.
    for name, settings in (("operator", operator), ("router", router)):
        mounts = [mount["mountPath"] for mount in container(objects, f"hlserve-{name}")["volumeMounts"]]
        files = [value for value in dict(settings).values() if isinstance(value, Path)]
        ours = [file for file in files if file.is_relative_to("/etc/hlserve")]
        assert len(ours) == (1 if name == "operator" else 4)
        assert all(str(file.parent) in mounts for file in ours)


def _parsed(command: click.Command, objects: tuple[Manifest, ...], name: str) -> dict[str, Any]:
    arguments = [argument for argument in container(objects, name)["args"] if argument != "run"]
    return dict(command.make_context(name, arguments).params)


def test_chart_names_are_those_that_operator_and_pools_look_for() -> None:
    objects = render(FULL, release="red", apis=(MONITORING, KEDA))
    (pool,) = read_pools(GOLDEN.parents[2] / "operator/tests/golden/humanless.pool.yaml")
    made = plan(pool, derive(pool), Release(name="red", default_image="e@sha256:" + "0" * 64)).objects
    policy = next(each for each in made if each["kind"] == "NetworkPolicy")
    (trigger,) = next(each for each in made if each["kind"] == "ScaledObject")["spec"]["triggers"]
    sources = [peer["podSelector"]["matchLabels"] for peer in policy["spec"]["ingress"][0]["from"]]
    for wanted, component in zip(sources, ("router", "operator"), strict=True):
        labels = find(objects, "Deployment", f"red-{component}")["spec"]["template"]["metadata"]["labels"]
        assert wanted.items() <= labels.items()
    authentication = find(objects, "TriggerAuthentication", "red-scale-signals")
    (target,) = authentication["spec"]["secretTargetRef"]
    assert target == {"parameter": "token", "name": "token", "key": "token"}
    assert find(objects, "Service", "red-operator")["spec"]["ports"][0]["port"] == 8080
    assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
    assert trigger["metadata"]["url"].startswith(f"http://red-operator.{pool.metadata.namespace}.svc:8080/")


@pytest.mark.parametrize(
    ("mode", "apis", "want"),
    [("Auto", (), 0), ("Auto", (MONITORING,), 2), ("Always", (), 2), ("Never", (MONITORING,), 0)],
    ids=["absent", "there", "in any case", "not wanted"],
)
def test_chart_makes_pod_monitors_where_the_cluster_knows_them(mode: str, apis: tuple[str, ...], want: int) -> None:
    objects = render({"monitoring": {"podMonitor": {"create": mode}}}, apis=apis)
    assert [each["kind"] for each in objects].count("PodMonitor") == want


def test_chart_lets_the_autoscaler_have_the_replicas() -> None:
    """A chart that renders them as well would set them back with each upgrade, or be refused."""
    objects = render(FULL)
    assert "replicas" not in find(objects, "Deployment", "hlserve-router")["spec"]
    scaler = find(objects, "HorizontalPodAutoscaler", "hlserve-router")["spec"]
    assert scaler["scaleTargetRef"]["name"] == "hlserve-router"


# rights -----------------------------------------------------------------------------------------------------------------

Right = tuple[str, str, str, str]
"""API group, resource, verb, and the name that it is bound to, if any."""
CHILD = ("get", "list", "watch", "create", "patch", "delete")


def rights(role: str, **values: Any) -> set[Right]:
    """All that a Role of the chart allows."""
    return {
        (group, resource, verb, name)
        for rule in find(render(values or None), "Role", role)["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def _of(kinds: tuple[tuple[str, str], ...], *verbs: str) -> set[Right]:
    return {(api.rpartition("/")[0], plural_of(api, kind), verb, "") for api, kind in kinds for verb in verbs}


def test_chart_operator_has_the_rights_that_its_code_needs_and_no_other() -> None:
    custom = [kind.names.plural for kind in KINDS]
    want = _of((*SHARED_KINDS, *REVISION_KINDS, ("v1", "ConfigMap"), ("v1", "Secret")), *CHILD)
    want |= _of((("v1", "Pod"),), "list", "watch", "patch", "delete") | _of((("v1", "Event"),), "create")
    want |= {("coordination.k8s.io", "leases", "create", "")}
    want |= {("coordination.k8s.io", "leases", verb, LEASE_NAME) for verb in ("get", "update")}
    want |= {(GROUP, plural, verb, "") for plural in custom for verb in ("get", "list", "watch")}
    want |= {(GROUP, f"{plural}/status", "patch", "") for plural in custom} | {
        (GROUP, "servingpools/scale", "patch", "")
    }
    want |= {(GROUP, f"{plural}/finalizers", "update", "") for plural in ("servingpools", "clientkeys")}
    assert rights("hlserve-operator") == want
    assert not [each for each in render() if each["kind"].startswith("Cluster")]


@pytest.mark.parametrize("shards", [1, 4, 12])
def test_chart_router_may_read_its_documents_by_name_and_nothing_else(shards: int) -> None:
    want = {("", "configmaps", verb, TABLE_CONFIG_MAP) for verb in ("get", "list", "watch")}
    names = [ENGINE_CREDENTIALS_SECRET, *(f"{KEYRING_SECRET_PREFIX}{number}" for number in range(shards))]
    want |= {("", "secrets", verb, name) for verb in ("get", "list", "watch") for name in names}
    want |= {("discovery.k8s.io", "endpointslices", verb, "") for verb in ("list", "watch")}
    assert rights("hlserve-router", keyringShards=shards) == want


async def test_chart_operator_at_work_asks_for_nothing_that_its_role_does_not_allow() -> None:
    allowed = rights("hlserve-operator")
    used: set[Right] = set()

    def note(request: web.Request) -> None:
        used.update(_asked(request))

    async with simulated() as server:
        server.served |= set(OPTIONAL_GROUPS)
        server.faults.append(note)
        pool = manifest(POOL)
        pool["spec"]["autoscaling"] = {"provider": "KEDA", "minReplicas": 1, "maxReplicas": 2}
        for each in (pool, manifest(CLASS), manifest(KEY)):
            server.put(each)
        async with operator_on(server, monitoring_labels={"team": "sre"}):
            await until(lambda: _settled(server), "the objects of a pool and a key")
            await quiet(server, 0.3)
            server.remove(next(ref for ref in server.objects if ref.kind == "ClientKey"))
            server.change(
                next(ref for ref in server.objects if ref.kind == "ServingPool"), {"spec": {"autoscaling": None}}
            )
            await until(lambda: "ScaledObject" not in {ref.kind for ref in server.objects}, "the ScaledObject to go")
    refused = {each for each in used if each not in allowed and (*each[:3], "") not in allowed}
    assert not refused
    assert ("", "secrets", "create", "") in {(*each[:3], "") for each in used}
    assert ("keda.sh", "scaledobjects", "delete") in {each[:3] for each in used}


def _settled(server: Simulated) -> bool:
    return {"Deployment", "Service", "ScaledObject", "PodMonitor", "Secret", "ConfigMap"} <= {
        ref.kind for ref in server.objects
    }


def _asked(request: web.Request) -> Iterator[Right]:
    """The rights that an API server would ask for."""
    parts = request.path.strip("/").split("/")
    if "namespaces" not in parts:
        # Discovery and schemas are open to every account; kopf may also ask across namespaces, which would show here.
        if parts[0] == "apis" and len(parts) > 3:
            yield "cluster-wide", request.path, request.method, ""
        return
    place = parts.index("namespaces")
    group = parts[1] if parts[0] == "apis" else ""
    resource, *more = parts[place + 2 :]
    name = more[0] if more else ""
    target = "/".join([resource, *more[1:]])
    if request.method == "GET":
        verb = "get" if name else "watch" if request.query.get("watch") else "list"
    else:
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[request.method]
    yield group, target, verb, name
    if "apply" in request.headers.get("Content-Type", "") and len(more) == 1:
        yield group, target, "create", name


def test_chart_network_policies_open_each_port_to_who_needs_it() -> None:
    objects = render(FULL)
    clients, admin = find(objects, "NetworkPolicy", "hlserve-router")["spec"]["ingress"]
    assert "from" not in clients
    assert clients["ports"] == [{"port": 8080, "protocol": "TCP"}]
    assert admin["ports"] == [{"port": 9090, "protocol": "TCP"}]
    assert [next(iter(peer)) for peer in admin["from"]] == ["podSelector", "namespaceSelector"]
    (store,) = find(objects, "NetworkPolicy", "hlserve-valkey")["spec"]["ingress"]
    assert [peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] for peer in store["from"]] == ["router"]
    closed = render({"networkPolicy": {"autoscalerNamespace": "", "clients": [{"namespaceSelector": {}}]}})
    assert "ingress" not in find(closed, "NetworkPolicy", "hlserve-operator")["spec"]
    first, last = find(closed, "NetworkPolicy", "hlserve-router")["spec"]["ingress"][0]["from"]
    assert first == {"namespaceSelector": {}}
    assert last["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "test"


def test_chart_kinds_are_known_to_the_operator() -> None:
    """So that a namespaced operator can be told of them; a kind that is missing here would be a typing error in a template."""
    known = {kind for _, kind in PLURALS} | {
        "ServiceAccount", "Role", "RoleBinding", "StatefulSet", "Ingress", "HTTPRoute",
    }  # fmt: skip
    assert {each["kind"] for each in render(FULL, apis=(MONITORING, KEDA))} <= known
