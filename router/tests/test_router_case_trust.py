"""Keys, and what a client may not choose: by the ids of the reports they come from."""

import random
import statistics
import time

import pytest

from hlserve_api.answers import Reason
from hlserve_api.routing import Keyring
from hlserve_router.errors import Refusal
from hlserve_router.head import MAX_KEY_BYTES
from hlserve_router.keys import find_key
from hlserve_router.proxy import Clocks, Proxy
from hlserve_router.state import ROUTES
from hlserve_router.testing.cases import AS_CODER, CHAT, NS
from hlserve_router.testing.documents import (
    AGENT_KEY,
    BATCH_KEY,
    INTERACTIVE_KEY,
    a_class,
    a_key,
    a_keyring,
    a_pool,
    a_table,
)
from hlserve_router.testing.engine import Play, ScriptedEngine
from hlserve_router.testing.running import RunningRouter
from hlserve_router.testing.scripts import ORDINARY, reply
from hlserve_router.testing.stage import Stage
from hlserve_router.testing.wire import request_head

BODY = b'{"model":"m1","messages":[{"role":"user","content":"hi"}],"max_tokens":5}'


async def set_up(stage: Stage, play: Play = ORDINARY) -> tuple[RunningRouter, ScriptedEngine]:
    engine = await stage.engine(play)
    table = a_table(
        a_pool("chat", engine.url), a_pool("agents", engine.url), a_class("interactive", "chat"), a_class("agent", "agents"),
        a_class("batch", "agents"),
    )  # fmt: skip
    return await stage.router(table), engine


@pytest.mark.parametrize(
    ("lines", "path", "status"),
    [
        pytest.param([f"authorization: bearer {AGENT_KEY}"], CHAT, 200, id="B42: bearer in lower case"),
        pytest.param([f"authorization: BEARER  {AGENT_KEY}"], CHAT, 200, id="B42: two spaces"),
        pytest.param([f"Authorization:Bearer {AGENT_KEY}  "], CHAT, 200, id="B42: space behind, none before"),
        pytest.param([f"authorization: Bearer\t{AGENT_KEY}"], CHAT, 401, id="B42: a tab for the space"),
        pytest.param(["authorization: Bearer"], CHAT, 401, id="B42: nothing behind the word"),
        pytest.param(["authorization:"], CHAT, 401, id="B42: nothing at all"),
        pytest.param([f"authorization: {AGENT_KEY}"], CHAT, 401, id="B42: no scheme"),
        pytest.param(["authorization: Basic c2s="], CHAT, 401, id="B42: Basic"),
        pytest.param([f"authorization: Bearer Bearer {AGENT_KEY}"], CHAT, 401, id="B42: the word twice"),
        pytest.param([f"authorization: Bearer {AGENT_KEY}"] * 2, CHAT, 401, id="B42: Authorization twice"),
        pytest.param([f"x-api-key: {AGENT_KEY}"], "/v1/messages", 200, id="B42: x-api-key"),
        pytest.param([f"x-api-key: {AGENT_KEY}"], CHAT, 200, id="B42: x-api-key on an OpenAI route"),
        pytest.param([f"x-api-key: {AGENT_KEY}", f"authorization: Bearer {AGENT_KEY}"], CHAT, 200, id="B42: one key both ways"),
        pytest.param([f"x-api-key: {AGENT_KEY}", "authorization: Bearer other"], CHAT, 401, id="B42: two keys"),
        pytest.param([f"x-api-key: {AGENT_KEY}", "x-api-key: other"], CHAT, 401, id="B42: two different x-api-keys"),
        pytest.param(["authorization: Bearer sk-Bearer x"], CHAT, 401, id="B42: the word inside a key"),
        pytest.param([], CHAT, 401, id="B42: no key"),
        pytest.param(["authorization: Bearer schl\xfcssel"], CHAT, 401, id="B45: a key that is not ASCII"),
        pytest.param(["authorization: Bearer " + "k" * 5000], CHAT, 401, id="B45: a key of 5 KB"),
        pytest.param(["authorization: Bearer " + "k" * 1_000_000], CHAT, 431, id="B45: a key of a megabyte"),
        pytest.param(["authorization: Bearer ' OR 1=1--"], CHAT, 401, id="B48: SQL"),
        pytest.param(["authorization: Bearer {{7*7}}"], CHAT, 401, id="B48: a template"),
        pytest.param(["authorization: Bearer ../../etc/passwd"], CHAT, 401, id="B48: a path"),
        pytest.param(["authorization: Bearer %s%n${jndi:ldap://x}"], CHAT, 401, id="B48: formats and look-ups"),
        pytest.param(["x-api-key: sk-\\u0000x"], CHAT, 401, id="B48: an escaped NUL"),
        pytest.param(["authorization: Bearer sk-\x00x"], CHAT, 400, id="B48: a NUL is no HTTP"),
    ],
)  # fmt: skip
async def test_b42_b45_b48_keys_on_the_wire(stage: Stage, lines: list[str], path: str, status: int) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    first = [f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", f"content-length: {len(BODY)}"]
    await wire.send("\r\n".join([*first, *lines]).encode("latin-1") + b"\r\n\r\n" + BODY)
    got, headers, answer = await wire.answer()
    assert got == status
    assert headers.get("www-authenticate") == (["Bearer"] if status == 401 else None)
    assert len(engine.requests) == (1 if status == 200 else 0)
    assert AGENT_KEY.encode() not in answer


@pytest.mark.parametrize(("name", "before"), [(b"authorization", b"Bearer "), (b"x-api-key", b"")])
def test_b45_a_key_of_more_than_4_kib_is_not_even_looked_up(name: bytes, before: bytes) -> None:
    longest, longer = "k" * MAX_KEY_BYTES, "k" * (MAX_KEY_BYTES + 1)
    assert MAX_KEY_BYTES == 4096
    proxy = a_proxy(a_keyring(a_key(longest, "a", "agent"), a_key(longer, "b", "agent")))
    assert proxy.open(ROUTES[CHAT], [(name, before + longest.encode())]).key.client == "a"
    with pytest.raises(Refusal) as refusal:
        proxy.open(ROUTES[CHAT], [(name, before + longer.encode())])
    assert refusal.value.reason is Reason.INVALID_KEY


def test_b45_how_much_of_a_key_is_right_cannot_be_told_by_time() -> None:
    """The key is hashed whole and looked up by its digest: medians of interleaved rounds do not differ."""
    proxy = a_proxy(a_keyring(*(a_key(f"hls_{number:043}", f"c{number}", "agent") for number in range(1_000))))
    right = f"hls_{7:043}".encode()
    guesses = {"none": b"x" * 47, "half": right[:24] + b"x" * 23, "all but one": right[:-1] + b"x"}
    assert {len(guess) for guess in guesses.values()} == {len(right)}
    seconds: dict[str, list[float]] = {name: [] for name in guesses}
    for _ in range(200):
        for name, guess in guesses.items():
            before = time.perf_counter()
            for _ in range(30):
                with pytest.raises(Refusal):
                    find_key(proxy.keyrings, guess, 0.0)
            seconds[name].append(time.perf_counter() - before)
    medians = sorted(statistics.median(times) for times in seconds.values())
    assert medians[-1] / medians[0] < 1.2, medians


def a_proxy(keyring: Keyring) -> Proxy:
    proxy = Proxy(Clocks(lambda: 0.0, lambda: 0.0), random.Random(1))
    proxy.keyrings.apply("k", keyring)
    return proxy


def test_b48_keys_that_nobody_has_leave_nothing_behind() -> None:
    proxy, made = a_proxy(a_keyring()), random.Random(2)
    for _ in range(10_000):
        with pytest.raises(Refusal) as refusal:
            proxy.authenticate(made.randbytes(32))
        assert refusal.value.reason is Reason.INVALID_KEY
    assert (len(proxy.keyrings), len(proxy.limits), len(proxy.pools.sessions)) == (3, 0, 0)


async def test_b48_attempts_are_counted_without_the_keys_text(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "hlserve_router")
    router, engine = await set_up(stage)
    for number in range(50):
        answer = await router.post(CHAT, NS, f"attempt-{number}-of-somebody")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_key")
    page = await router.metrics()
    assert router.count("hlserve_router_requests_total", "", "", "rejected", "invalid_key") == 50
    report = (await router.http.get(f"{router.admin_url}/v1/report")).text
    logged = "".join(
        f"{record.getMessage()} {record.__dict__}" for record in caplog.records if "httpx" not in record.name
    )
    assert "of-somebody" not in page + report + logged
    assert not engine.requests


@pytest.mark.parametrize(
    ("key", "asked", "effective", "clamped"),
    [
        pytest.param(BATCH_KEY, "interactive", "batch", 1, id="B47: never raised"),
        pytest.param(BATCH_KEY, "agent", "batch", 1, id="B47: not by one step either"),
        pytest.param(INTERACTIVE_KEY, "batch", "batch", 0, id="B47: lowered"),
        pytest.param(INTERACTIVE_KEY, "agent", "agent", 0, id="B47: lowered by one step"),
    ],
)
@pytest.mark.parametrize("target", ["http://169.254.169.254", ""], ids=["absolute target", "origin target"])
async def test_b47_forged_headers_and_targets(
    stage: Stage, key: str, asked: str, effective: str, clamped: int, target: str
) -> None:
    router, engine = await set_up(stage)
    wire = await stage.wire(router)
    forged = {
        "x-target-pod": "10.0.0.9", "x-client-id": "admin", "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1",
        "x-forwarded-host": "169.254.169.254", "x-real-ip": "127.0.0.1", "x-hlserve-class": asked, "x-hlserve-pool": "chat",
        "x-hlserve-outcome": "ok", "x-override-priority": "9", "x-data-parallel-rank": "1", "x-smg-target": "w",
        "x-sglext-any": "1", "x-original-url": "/flush_cache", "x-http-method-override": "DELETE", "cookie": "admin=1",
    }  # fmt: skip
    lines = [f"{name}: {value}" for name, value in forged.items()]
    head = request_head(f"{target}{CHAT}", *lines, "x-override-rid: 0", f"content-length: {len(BODY)}", key=key)
    await wire.send(head.replace(b"host: router", b"host: 169.254.169.254"), BODY)
    status, headers, _ = await wire.answer()
    assert (status, headers["x-hlserve-class"]) == (200, [effective])
    assert headers["x-hlserve-pool"] == ["agents"]
    assert router.count("hlserve_router_class_clamped_total") == clamped
    seen = engine.requests[0]
    assert (seen.path, seen.header("host")) == (CHAT, engine.url.removeprefix("http://"))
    rid = seen.header("x-override-rid")
    assert rid is not None
    assert rid.startswith("hls-")
    assert not {name for name, _ in seen.headers} & set(forged)
    assert key not in str(seen.headers)


async def test_b47_only_the_router_says_who_served_a_request(stage: Stage) -> None:
    forged = (
        "X-Hlserve-Class: interactive",
        "x-hlserve-pool: chat",
        "x-hlserve-outcome: ok",
        "X-Request-Id: 7",
        "request-id: 7",
    )
    router, _ = await set_up(stage, reply(b"{}", 200, *forged, "x-hlserve-reason: none"))
    answer = await router.http.post(router.url + CHAT, json=NS, headers={**AS_CODER, "x-request-id": "mine"})
    want = {
        "x-hlserve-class": ["agent"],
        "x-hlserve-pool": ["agents"],
        "x-request-id": ["mine"],
        "request-id": ["mine"],
    }
    assert {name: answer.headers.get_list(name) for name in want} == want
    assert "x-hlserve-outcome" not in answer.headers
    assert "x-hlserve-reason" not in answer.headers
