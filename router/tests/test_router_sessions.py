"""Sessions: homes, what the active ones count for, and the pace that their rounds have."""

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hlserve_api.routing import QueueRule, ShareRule, SpillRule, Target, TargetRole
from hlserve_router.advice import METRIC, Advisor
from hlserve_router.affinity import affinity_key, prefix_digest, session_part
from hlserve_router.body import read_body
from hlserve_router.endpoint import EngineGauges
from hlserve_router.head import read_head
from hlserve_router.placement import MAX_ROUNDS
from hlserve_router.sessions import Session, Sessions
from hlserve_router.state import ROUTES, Pace
from hlserve_router.testing.choice import an_endpoint
from hlserve_router.testing.documents import AGENT_KEY, BATCH_KEY, INTERACTIVE_KEY, a_class, a_pool, a_table
from hlserve_router.testing.stepped import SteppedRouter

CHAT = "/v1/chat/completions"

steps = st.lists(
    st.tuples(
        st.sampled_from(["ask", "ask", "end", "pass", "move", "retire", "touch"]),
        st.sampled_from("abcd"),
        st.integers(1, 500),
    ),
    max_size=60,
)


@given(steps, st.integers(1, 4))
@example([("ask", "a", 9), ("move", "a", 1), ("ask", "a", 8), ("end", "a", 1), ("end", "a", 2)], 4)
@example(
    [("ask", "a", 1), ("end", "a", 1), ("ask", "b", 1), ("end", "b", 1), *[("touch", "a", 1)] * 9, ("pass", "a", 1)], 4
)
def test_what_endpoints_hold_is_always_what_their_active_sessions_count_for(
    taken: list[tuple[str, str, int]], limit: int
) -> None:
    one, two = an_endpoint("one"), an_endpoint("two")
    sessions = Sessions(limit=limit, forget_seconds=50, pace=Pace(session_idle_seconds=5.0))
    running: list[Session] = []
    seen: set[Session] = set()
    now = 0.0
    for what, key, number in taken:
        now += 0.5
        found = sessions.find(key)
        if what == "ask" and (found is None or not found.in_flight):
            session = found or sessions.settle(key, one, now)
            sessions.enter(session, number, now)
            running.append(session)
            seen.add(session)
        elif what == "end" and running:
            sessions.leave(running.pop(number % len(running)), number if number % 3 else None, now)
        elif what == "pass":
            now += number / 10
            sessions.sweep(now)
            assert not any(s.active and not s.in_flight and now - s.used >= 5.0 for s in seen)
        elif what == "move" and found is not None:
            seen.add(sessions.settle(key, two, now))
        elif what == "retire" and found is not None and not found.in_flight:
            sessions.retire(found)
        elif what == "touch" and found is not None:
            sessions.touch(found, now)
        assert sessions.resting == sum(s.active and not s.in_flight for s in seen)
        for home in (one, two):
            assert home.held_tokens == sum(s.context_tokens for s in seen if s.active and s.home is home)
        assert one.sessions + two.sessions == len(sessions) <= limit
    for session in running:
        sessions.leave(session, None, now)
    sessions.sweep(now + 100)
    assert (one.held_tokens, two.held_tokens, len(sessions), sessions.resting) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    ("user", "session"),
    [
        pytest.param(
            '{"device_id":"d","account_uuid":"","session_id":"0f3c-77"}', "0f3c-77", id="Claude Code, as JSON"
        ),
        pytest.param(
            "user_ab12_account__session_0f3c77aa-1b2c", "0f3c77aa-1b2c", id="Claude Code before that, as a suffix"
        ),
        pytest.param("somebody", "somebody", id="a plain user"),
        pytest.param('{"broken', '{"broken', id="no JSON after all"),
        pytest.param('{"session_id":7}', '{"session_id":7}', id="a session that is no text"),
    ],
)
def test_the_session_part_of_a_user_id(user: str, session: str) -> None:
    assert session_part(user) == session


def test_a_cache_mark_that_moves_on_is_no_other_session() -> None:
    text = b'{"type":"text","text":"' + b"x" * 300 + b'"'
    with_mark = b'{"role":"user","content":[' + text + b',"cache_control":{"type":"ephemeral","ttl":"5m"}}]}'
    without = b'{"role":"user","content":[' + text + b"}]}"
    assert prefix_digest(with_mark) == prefix_digest(without) != ""


@pytest.mark.parametrize(
    ("headers", "body", "same"),
    [
        pytest.param([("x-session-id", "s")], {}, True, id="a known header"),
        pytest.param([("session-id", "s")], {}, True, id="Codex"),
        pytest.param([("x-claude-code-session-id", "s")], {}, True, id="Claude Code"),
        pytest.param([], {"prompt_cache_key": "s"}, True, id="prompt_cache_key"),
        pytest.param([], {"metadata": {"user_id": '{"session_id":"s"}'}}, True, id="metadata"),
        pytest.param([("x-client-request-id", "s")], {}, False, id="a request id"),
        pytest.param([("x-request-id", "s"), ("traceparent", "s")], {}, False, id="a trace"),
    ],
)
def test_what_names_a_session(headers: list[tuple[str, str]], body: dict[str, Any], same: bool) -> None:
    router = two_classes()
    router.ask(AGENT_KEY, {"model": "m1", "messages": [], **body}, **dict(headers))
    assert len(router.proxy.pools.sessions) == (1 if same else 0)


def test_precedence_and_refinement() -> None:
    facts = read_body(ROUTES[CHAT], b'{"model":"m1","messages":[],"prompt_cache_key":"body"}')

    def key(*headers: tuple[bytes, bytes], client: str = "web") -> str | None:
        return affinity_key(client, read_head(ROUTES[CHAT], headers, "r")[0], "m1", facts)

    session, better = (b"x-session-affinity", b"one"), (b"x-session-id", b"two")
    ours, agent, other = (b"x-hlserve-session", b"mine"), (b"thread-id", b"a"), (b"thread-id", b"b")
    assert key() != key(session), "a header goes before the body"
    assert key(session, better) == key(better) != key(session), "the better known header goes first"
    assert key(session, agent) != key(session, other), "sub-agents are told apart"
    assert key(ours, better, agent) == key(ours, other), "an explicit key counts as it is"
    assert key(session, client="other") != key(session), "two clients never share a session"


def two_classes(**pool: Any) -> SteppedRouter:
    return SteppedRouter(
        a_table(
            a_pool("chat", "http://127.0.0.1:1"), a_pool("agents", "http://127.0.0.1:2", **pool),
            a_class("interactive", "chat"), a_class("agent", "agents", queue=QueueRule(ttl_milliseconds=10**7)),
        )
    )  # fmt: skip


def conversation(turn: int, *, tools: bool, result: bool) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "first " + "x" * 300}]
    for number in range(turn):
        role = "tool" if result else "user"
        messages += [{"role": "assistant", "content": f"reply {number}"}, {"role": role, "content": f"next {number}"}]
    body = {"model": "m1", "messages": messages, "stream": True, "max_tokens": 9}
    return {**body, "tools": [{"type": "function"}]} if tools else body


@pytest.mark.parametrize(
    ("key", "think", "tools", "result", "looks_like"),
    [
        pytest.param(INTERACTIVE_KEY, 0.1, True, True, "Agent", id="a person's key that loops without think time"),
        pytest.param(INTERACTIVE_KEY, 8.0, True, False, None, id="a person who reads before the next question"),
        pytest.param(INTERACTIVE_KEY, 0.1, False, False, None, id="many people behind one application"),
        pytest.param(AGENT_KEY, 8.0, False, False, "Interactive", id="an agent's key with a person behind it"),
        pytest.param(AGENT_KEY, 8.0, True, True, None, id="an agent whose tools are slow"),
        pytest.param(AGENT_KEY, 0.1, True, True, None, id="an agent at an agent's pace"),
    ],
)
def test_a_keys_class_is_questioned_by_the_pace_of_its_sessions(
    key: str, think: float, tools: bool, result: bool, looks_like: str | None
) -> None:
    router = two_classes()
    for turn in range(5):
        asked = router.ask(key, conversation(turn, tools=tools, result=result))
        assert asked.placed
        router.now += 1.0
        router.end(asked, 100, 5)
        router.now += think
    found = {
        kind: router.proxy.metrics.value(METRIC, (asked.exchange.class_name, kind, "pace"))
        for kind in ("Agent", "Interactive")
    }
    assert found == {kind: 2 if kind == looks_like else 0 for kind in ("Agent", "Interactive")}


def test_the_advisor_follows_a_bounded_number_of_sessions() -> None:
    router = two_classes()
    router.proxy.advisor = Advisor(router.proxy.metrics, limit=10)
    for number in range(50):
        router.end(router.ask(AGENT_KEY, conversation(0, tools=True, result=False), x_session_id=f"s{number}"))
    assert len(router.proxy.advisor) == 10


def ask_round(router: SteppedRouter, session: str, prompt_tokens: int = 400) -> Any:
    body = {"model": "m1", "messages": [{"role": "user", "content": "x" * (4 * prompt_tokens)}], "max_tokens": 1}
    return router.ask(AGENT_KEY, body, x_session_id=session)


def test_while_others_wait_a_session_gives_its_place_up_after_its_rounds() -> None:
    """The bound on a wait is in sessions and their rounds: an endless session cannot keep another out."""
    router = two_classes(kv_tokens=1000)
    endless = ask_round(router, "endless", 800)
    waiting = ask_round(router, "waits", 800)
    assert endless.placed
    assert router.proxy.admission.waiting == 1
    rounds = 1
    while not waiting.placed and rounds <= MAX_ROUNDS:
        router.end(endless, 800, 1)
        router.now += 0.1
        endless = ask_round(router, "endless", 800)
        rounds += 1
    assert waiting.placed
    assert not endless.placed, "it queues as the others do"
    assert rounds == MAX_ROUNDS + 1
    router.end(waiting, 800, 1)
    router.wait(5.1)
    assert endless.placed


def test_a_session_that_rests_keeps_its_place_and_gives_it_up_in_time() -> None:
    router = two_classes(kv_tokens=1000)
    router.end(ask_round(router, "one", 800), 800, 10)
    other = ask_round(router, "two", 800)
    assert not other.placed
    router.wait(4.9)
    assert not other.placed
    router.wait(0.2)
    assert other.placed


def test_requests_of_one_session_at_the_same_time_count_each() -> None:
    router = two_classes(kv_tokens=1000)
    first, second, third = (ask_round(router, "fan-out", 400) for _ in range(3))
    assert [first.placed, second.placed, third.placed] == [True, True, False]
    endpoint = router.proxy.pools.pools["agents"].endpoints["agents-0"]
    router.end(second, 400, 1)
    assert third.placed
    router.end(first, 400, 1)
    router.end(third, 400, 1)
    assert endpoint.held_tokens == 401
    router.wait(6)
    assert endpoint.held_tokens == 0


def test_a_small_session_may_pass_a_big_one_but_not_for_long() -> None:
    """What came later takes at most as many tokens past the head as the head has itself."""
    router = two_classes(kv_tokens=1000)
    running = ask_round(router, "running", 400)
    big = ask_round(router, "big", 700)
    small = [ask_round(router, f"small {number}", 100) for number in range(20)]
    assert running.placed
    assert not big.placed
    for _ in range(100):
        placed = [each for each in small if each.placed and each.exchange.ending is None]
        if big.placed or not placed:
            break
        for each in placed:
            router.end(each, 100, 1)
        router.wait(5.1)
    passed_by = sum(each.exchange.tokens for each in small if each.placed)
    assert passed_by <= big.exchange.tokens
    router.end(running, 400, 1)
    router.wait(5.1)
    assert big.placed


def test_chat_enters_an_agents_pool_only_where_nothing_waits_and_batch_a_chat_pool_only_while_it_is_little_used() -> (
    None
):
    spill = SpillRule(enter_queue_wait_milliseconds=100, leave_queue_wait_milliseconds=50)
    router = SteppedRouter(
        a_table(
            a_pool("chat", "http://127.0.0.1:1", max_in_flight=8), a_pool("agents", "http://127.0.0.1:2", max_in_flight=8),
            a_class("interactive", targets=(Target(pool="chat"), Target(pool="agents", role=TargetRole.SPILL)), spill=spill),
            a_class(
                "batch", targets=(Target(pool="agents"), Target(pool="chat", role=TargetRole.SPILL)), spill=spill,
                share=ShareRule(max_percent=50), priority=-1,
            ),
        )
    )  # fmt: skip
    body = {"model": "m1", "messages": [], "max_tokens": 1}
    chat = [router.ask(INTERACTIVE_KEY, body) for _ in range(8)]
    agents = router.proxy.pools.pools["agents"].endpoints["agents-0"]
    router.proxy.pools.heard(agents, EngineGauges(0, 3, 0.5, router.now))
    late = router.ask(INTERACTIVE_KEY, body)
    router.wait(0.2)
    waited = not late.placed  # an agents' queue is no place for chat
    router.proxy.pools.heard(agents, EngineGauges(0, 0, 0.5, router.now))
    router.wait(0.1)
    assert (waited, late.placed) == (True, True)
    assert late.exchange.spill is not None
    batch = [router.ask(BATCH_KEY, body) for _ in range(6)]
    router.wait(0.2)
    assert sum(each.placed for each in batch) == 4, "half of the agents' pool, and none of a busy chat pool"
    for each in chat[:7]:
        router.end(each)
    router.wait(0.2)
    router.wait(0.2)
    assert [each.exchange.pool_name for each in batch] == ["agents"] * 4 + ["chat"] * 2


def test_a_settled_request_elsewhere_lets_nobody_take_the_room_that_others_wait_for() -> None:
    """Batch may spill into the chat pool. A slot that comes free there is no way past the agents into their own pool."""
    router = SteppedRouter(
        a_table(
            a_pool("chat", "http://127.0.0.1:1", max_in_flight=8),
            a_pool("agents", "http://127.0.0.1:2", kv_tokens=1000),
            a_class("interactive", "chat"),
            a_class("agent", "agents", queue=QueueRule(ttl_milliseconds=10**7)),
            a_class(
                "batch", targets=(Target(pool="agents"), Target(pool="chat", role=TargetRole.SPILL)), priority=-1,
                queue=QueueRule(ttl_milliseconds=10**7),
            ),
        )
    )  # fmt: skip
    assert ask_round(router, "running", 400).placed
    assert not ask_round(router, "big", 700).placed
    chat = router.ask(INTERACTIVE_KEY, {"model": "m1", "messages": [], "max_tokens": 1})
    batch = router.ask(BATCH_KEY, {"model": "m1", "messages": [], "max_tokens": 1})
    router.end(chat)
    assert not batch.placed


def test_a_pool_that_a_class_only_spills_into_does_not_shorten_its_wait() -> None:
    router = SteppedRouter(
        a_table(
            a_pool("chat", "http://127.0.0.1:1", queue_ttl_milliseconds=400),
            a_pool("agents", "http://127.0.0.1:2", max_in_flight=1),
            a_class(
                "batch", targets=(Target(pool="agents"), Target(pool="chat", role=TargetRole.SPILL)),
                queue=QueueRule(ttl_milliseconds=60_000),
            ),
        )
    )  # fmt: skip
    body = {"model": "m1", "messages": [], "max_tokens": 1}
    assert router.ask(BATCH_KEY, body).placed
    waits = router.ask(BATCH_KEY, body)
    router.wait(0.9)
    assert waits.refusal is None
