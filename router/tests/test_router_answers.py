"""The answers that the router gives itself."""

import json
from random import Random

import pytest

from hlserve_api.answers import ANSWERS, Reason
from hlserve_router.answers import answer, error_event, retry_after_seconds
from hlserve_router.errors import Refusal
from hlserve_router.state import Shape


@pytest.mark.parametrize("reason", list(Reason))
@pytest.mark.parametrize("shape", [Shape.OPENAI, Shape.ANTHROPIC])
def test_every_reason_has_an_answer_in_both_shapes(reason: Reason, shape: Shape) -> None:
    made = answer(Refusal(reason, "Do this."), shape, "req-1", Random(1))
    rule = ANSWERS[reason]
    headers = dict(made.headers)
    body = json.loads(made.body)
    assert made.status == rule.status
    assert headers[b"x-hlserve-outcome"] == rule.outcome.value.encode()
    assert headers[b"x-hlserve-reason"] == reason.value.encode()
    assert int(headers[b"content-length"]) == len(made.body)
    if shape is Shape.OPENAI:
        assert body["error"]["code"] == reason.value
        assert body["error"]["message"] == "Do this."
        assert set(body["error"]) == {"message", "type", "param", "code"}
    else:
        assert body["type"] == "error"
        assert body["error"]["details"]["error_code"] == reason.value
    if made.status in (429, 503):
        assert 1 <= int(headers[b"retry-after"]) <= 60
    else:
        assert b"retry-after" not in headers
    expected = reason is Reason.BUDGET_EXHAUSTED or made.status == 504
    assert (headers.get(b"x-should-retry") == b"false") is expected
    assert (headers.get(b"www-authenticate") == b"Bearer") is (made.status == 401)


def test_a_late_502_tells_sdks_not_to_retry() -> None:
    made = answer(Refusal(Reason.ENGINE_RESET, "x", late=True), Shape.OPENAI, "r", Random(1))
    assert dict(made.headers)[b"x-should-retry"] == b"false"


@pytest.mark.parametrize("hint", [None, 0.2, 1.0, 7.0, 59.0, 3600.0])
def test_retry_after_is_whole_bounded_and_spread(hint: float | None) -> None:
    random = Random(3)
    seen = {retry_after_seconds(hint, random) for _ in range(200)}
    assert all(1 <= value <= 60 for value in seen)
    assert hint is None or hint > 60 or min(seen) >= hint
    assert len(seen) > 1 or hint == 59.0


def test_error_events_have_the_streams_shape() -> None:
    refusal = Refusal(Reason.ENGINE_RESET, "It broke.")
    openai = error_event(refusal, Shape.OPENAI, "r", status=400)
    assert json.loads(openai.removeprefix(b"data: "))["error"] == {
        "message": "It broke.", "type": "server_error", "param": None, "code": "engine_reset", "status": 400,
    }  # fmt: skip
    anthropic = error_event(refusal, Shape.ANTHROPIC, "r")
    assert anthropic.startswith(b"event: error\ndata: ")
    assert json.loads(anthropic.partition(b"data: ")[2])["error"]["type"] == "api_error"
    responses = error_event(refusal, Shape.RESPONSES, "r")
    data = json.loads(responses.partition(b"data: ")[2])
    assert responses.startswith(b"event: error\n")
    assert (data["type"], data["code"], data["error"]["code"]) == ("error", "engine_reset", "engine_reset")
    for event in (openai, anthropic, responses):
        assert event.endswith(b"\n\n")
        assert event.count(b"\n\n") == 1
