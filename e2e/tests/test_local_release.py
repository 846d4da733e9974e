"""A release on a cluster that runs pods: from an empty namespace to answers, through upgrade and uninstall, and who reaches an engine."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hlserve_cluster.charts import RELEASE, ChartError
from hlserve_cluster.gpus import RESOURCE
from hlserve_cluster.kubectl import Kubectl
from hlserve_cluster.release import Release, idle_pod, namespace, values
from hlserve_cluster.target import Target
from hlserve_local.testing.manifests import MODEL, pool, workload_class

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

NAMESPACE = "hlserve-e2e"
MONITORING = f"{NAMESPACE}-monitoring"
ELSEWHERE = f"{NAMESPACE}-elsewhere"
POOLS = {"chat": pool("chat", "Interactive"), "agents": pool("agents", "HumanLess", replicas=2)}
CLASSES = [workload_class("interactive", "Interactive", ["chat"]), workload_class("agent", "Agent", ["agents"])]
SECRETS = {"chat": "chat-app-one", "agent": "coder-one"}
"""Secrets that the operator makes, by the call of `helm test` that uses them."""


def made_key(name: str, class_name: str) -> dict[str, Any]:
    """A ClientKey whose key the operator makes."""
    spec = {"workloadClassRef": {"name": class_name}, "credentials": [{"id": "one"}]}
    return {"apiVersion": "serving.hlserve.io/v1alpha1", "kind": "ClientKey", "metadata": {"name": name}, "spec": spec}


def release_values(**more: Any) -> dict[str, Any]:
    """The release's values: the namespace `monitoring` may scrape."""
    labels = {"kubernetes.io/metadata.name": MONITORING}
    return values(monitoring={"namespaceSelector": {"matchLabels": labels}}, **more)


KEYS = {"test": {"keys": {call: {"secretName": secret} for call, secret in SECRETS.items()}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def release(cluster: Target) -> AsyncIterator[Release]:
    """A release with two pools that serve and two keys that the operator made."""
    made = Release(cluster, NAMESPACE)
    try:
        await made.create(release_values())
        await made.kubectl.apply(
            *POOLS.values(), *CLASSES, made_key("chat-app", "interactive"), made_key("coder", "agent")
        )
        await made.ready("servingpool", *POOLS)
        await made.ready("workloadclass", "interactive", "agent")
        await made.ready("clientkey", "chat-app", "coder")
        yield made
    finally:
        await made.delete()


def chat(stream: bool = False) -> dict[str, Any]:
    """The body of a short request."""
    return {"model": MODEL, "max_tokens": 8, "stream": stream, "messages": [{"role": "user", "content": "Hello."}]}


async def test_every_engine_has_gpus_of_the_node(release: Release) -> None:
    """The scheduler has placed each by the simulated GPUs that it asks for."""
    for name, manifest in POOLS.items():
        engines = (await release.engines(name)).values()
        assert len(engines) == manifest["spec"]["replicas"]
        for engine in engines:
            assert engine["spec"]["nodeName"]
            assert engine["spec"]["containers"][0]["resources"]["limits"][RESOURCE] == "1"


@pytest.mark.parametrize(
    ("call", "pool_name", "class_name"), [("chat", "chat", "interactive"), ("agent", "agents", "agent")]
)
async def test_a_call_through_the_routers_service_lands_in_the_pool_of_its_key(
    release: Release, call: str, pool_name: str, class_name: str
) -> None:
    """Key, class and pool are the ones that the custom resources name, for a reply at once and for a stream."""
    key = await release.key(SECRETS[call])
    for stream in (False, True):
        answer = await release.call(f"{release.url}/v1/chat/completions", key, method="POST", body=chat(stream))
        assert answer.get("status") == 200, answer
        assert (answer["headers"]["x-hlserve-pool"], answer["headers"]["x-hlserve-class"]) == (pool_name, class_name)
        complete = "data: [DONE]" in answer["text"] if stream else json.loads(answer["text"])["choices"]
        assert complete


async def test_a_stranger_gets_no_answer(release: Release) -> None:
    """Without a key, and with one that nobody has."""
    for key in ("", "hls_" + "x" * 43):
        answer = await release.call(f"{release.url}/v1/chat/completions", key, method="POST", body=chat())
        assert answer["status"] == 401


async def test_helm_test_refuses_without_keys_and_passes_with_them(release: Release) -> None:
    """It says what to set; with that it sends a chat and an agent call."""
    await release.deploy("upgrade", release_values())
    with pytest.raises(ChartError) as failed:
        await release.helm("test", RELEASE, "--logs", "--timeout=90s")
    log = await release.kubectl.run("logs", f"{RELEASE}-test")
    assert "There is no key for: chat, agent." in log, failed.value
    assert "--set test.keys.chat.secretName=SECRET" in log

    await release.deploy("upgrade", release_values(**KEYS))
    output = await release.helm("test", RELEASE, "--logs", "--timeout=90s")
    assert "chat: answered by pool chat for class interactive" in output
    assert "agent: answered by pool agents for class agent" in output


async def kept(release: Release) -> dict[str, Any]:
    """What must outlive the release: definitions, custom resources, keys, engine pods, by UID."""
    definitions = await release.kubectl.items("crd", "app.kubernetes.io/part-of=hlserve")
    own = await release.kubectl.items("servingpools,workloadclasses,clientkeys")
    uids = {f"{each['kind']}/{each['metadata']['name']}": each["metadata"]["uid"] for each in (*definitions, *own)}
    assert len(uids) == 3 + 6
    return {
        "objects": uids,
        "keys": {call: await release.key(secret) for call, secret in SECRETS.items()},
        "engines": {name: sorted(await release.engines(name)) for name in POOLS},
    }


async def answers(release: Release) -> None:
    """Both keys are served."""
    for secret in SECRETS.values():
        answer = await release.call(
            f"{release.url}/v1/chat/completions", await release.key(secret), method="POST", body=chat()
        )
        assert answer.get("status") == 200, answer


async def test_an_upgrade_keeps_definitions_objects_keys_and_engines(release: Release) -> None:
    """Operator and routers are replaced, engines are not touched."""
    before = await kept(release)
    replaced = {pod["metadata"]["uid"] for pod in await release.kubectl.items("pods", "app.kubernetes.io/component")}
    engines = {uid for uids in before["engines"].values() for uid in uids}
    changed = {"operator": {**values()["operator"], "podAnnotations": {"a": "b"}}}
    routers = {"router": {**values()["router"], "podAnnotations": {"a": "b"}}}
    await release.deploy("upgrade", release_values(**changed, **routers))
    await release.ready("servingpool", *POOLS)
    now = {pod["metadata"]["uid"] for pod in await release.kubectl.items("pods", "serving.hlserve.io/pool")}
    assert now == engines
    assert replaced - engines
    assert await kept(release) == before
    await answers(release)


async def test_an_uninstall_keeps_what_serves_and_helm_3_takes_it_over(release: Release) -> None:
    """Nothing but operator, routers and their own objects goes; the next release serves the same engines with the same keys."""
    before = await kept(release)
    await release.helm("uninstall", RELEASE, "--wait")
    deployments = {each["metadata"]["name"] for each in await release.kubectl.items("deployments")}
    assert not {name for name in deployments if name.startswith(RELEASE)}
    assert await kept(release) == before
    try:
        await release.deploy("install", release_values(), version=3)
        await release.ready("servingpool", *POOLS)
        assert await kept(release) == before
        await answers(release)
        await release.deploy("upgrade", release_values(**KEYS), version=3)
        output = await release.helm("test", RELEASE, "--logs", "--timeout=90s", version=3)
        assert "agent: answered by pool agents" in output
    finally:
        await release.helm("uninstall", RELEASE, "--wait", "--ignore-not-found")
        await release.deploy("install", release_values())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def outsiders(release: Release) -> AsyncIterator[dict[str, Kubectl]]:
    """A pod of its own in the namespace of Prometheus and in another one."""
    found = {name: Kubectl(release.kubectl.target, name) for name in (MONITORING, ELSEWHERE)}
    try:
        for name, kubectl in found.items():
            await kubectl.apply(namespace(name), idle_pod("client"))
            await kubectl.run("wait", "--for=condition=Ready", "pod/client", "--timeout=60s")
        yield found
    finally:
        for name, kubectl in found.items():
            await kubectl.run("delete", "namespace", name, "--ignore-not-found")


ASK = """
import sys, urllib.request
print(urllib.request.urlopen(sys.argv[1], timeout=5).status)
"""


@pytest.mark.parametrize("component", ["router", "operator"])
@pytest.mark.parametrize("pool_name", POOLS)
async def test_network_policy_lets_the_releases_own_pods_reach_an_engine(
    release: Release, component: str, pool_name: str
) -> None:
    """Every pod of the routers and of the operator."""
    address = await engine_address(release, pool_name)
    selector = f"app.kubernetes.io/instance={RELEASE},app.kubernetes.io/component={component}"
    pods = [
        each for each in await release.kubectl.items("pods", selector) if "deletionTimestamp" not in each["metadata"]
    ]
    assert pods
    for pod in pods:
        assert (await release.kubectl.python(pod["metadata"]["name"], ASK, address)).strip() == "200"


@pytest.mark.parametrize("pool_name", POOLS)
async def test_network_policy_lets_monitoring_reach_an_engine_and_nobody_else(
    release: Release, outsiders: dict[str, Kubectl], pool_name: str
) -> None:
    """A neighbour in the namespace is refused, a pod of another namespace too; each reaches the routers' Service."""
    address = await engine_address(release, pool_name)
    assert (await outsiders[MONITORING].python("client", ASK, address)).strip() == "200"
    for kubectl in (release.kubectl, outsiders[ELSEWHERE]):
        assert (await kubectl.python("client", ASK, f"{release.url}/healthz")).strip() == "200"
        with pytest.raises(Exception, match=r"refused|timed out"):
            await kubectl.python("client", ASK, address)


async def engine_address(release: Release, pool_name: str) -> str:
    """Where one engine of a pool says that it is healthy."""
    engine = next(iter((await release.engines(pool_name)).values()))
    return f"http://{engine['status']['podIP']}:30000/health"
