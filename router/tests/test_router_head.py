"""Step 1: which key a request shows, and which headers go on."""

from dataclasses import dataclass

import pytest

from hlserve_api.answers import Reason
from hlserve_router.errors import Refusal
from hlserve_router.head import read_head, the_key
from hlserve_router.state import ROUTES, Shape

CHAT = ROUTES["/v1/chat/completions"]
Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True)
class Case:
    id: str
    headers: Headers
    want: bytes | Reason


CASES = [
    Case("bearer in lower case", [(b"authorization", b"bearer k")], b"k"),
    Case("bearer in capitals with two spaces", [(b"authorization", b"BEARER  k")], b"k"),
    Case("only the leading word goes", [(b"authorization", b"Bearer sk-Bearer x")], b"sk-Bearer x"),
    Case("x-api-key", [(b"x-api-key", b"k")], b"k"),
    Case("both, the same", [(b"x-api-key", b"k"), (b"authorization", b"Bearer k")], b"k"),
    Case("both, different", [(b"x-api-key", b"k"), (b"authorization", b"Bearer j")], Reason.CONFLICTING_KEYS),
    Case(
        "Authorization twice",
        [(b"authorization", b"Bearer k"), (b"authorization", b"Bearer k")],
        Reason.CONFLICTING_KEYS,
    ),
    Case("none", [], Reason.MISSING_KEY),
    Case("an empty bearer", [(b"authorization", b"Bearer")], Reason.MISSING_KEY),
    Case("Basic", [(b"authorization", b"Basic c2s=")], Reason.INVALID_KEY),
    Case("a megabyte", [(b"authorization", b"Bearer " + b"k" * 1_000_000)], Reason.INVALID_KEY),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_the_key(case: Case) -> None:
    _, credentials = read_head(CHAT, case.headers, "made")
    if isinstance(case.want, Reason):
        with pytest.raises(Refusal) as refusal:
            the_key(credentials)
        assert refusal.value.reason is case.want
    else:
        assert the_key(credentials) == case.want


def test_only_listed_headers_go_on() -> None:
    sent: Headers = [
        (b"content-type", b"application/json"), (b"traceparent", b"00-1"), (b"anthropic-beta", b"x"), (b"cookie", b"c"),
        (b"x-override-rid", b"0"), (b"x-override-priority", b"9"), (b"x-data-parallel-rank", b"1"), (b"x-smg-routing-key", b"k"),
        (b"x-sglext-a", b"b"), (b"x-forwarded-for", b"127.0.0.1"), (b"authorization", b"Bearer k"), (b"x-target-pod", b"p"),
        (b"expect", b"100-continue"), (b"connection", b"close"), (b"x-request-id", b"abc"),
    ]  # fmt: skip
    head, _ = read_head(CHAT, sent, "made")
    assert head.forwarded == sent[:3]


@pytest.mark.parametrize(
    ("value", "want"),
    [
        pytest.param(b"abc-1._", "abc-1._", id="a good one is kept"),
        pytest.param(b"a" * 129, "made", id="a long one is replaced"),
        pytest.param(b"a b", "made", id="one with a space is replaced"),
        pytest.param(b"", "made", id="an empty one is replaced"),
        pytest.param("ä".encode(), "made", id="one that is not ASCII is replaced"),
    ],
)
def test_request_id(value: bytes, want: str) -> None:
    for name in (b"x-request-id", b"request-id"):
        head, _ = read_head(CHAT, [(name, value)], "made")
        assert head.request_id == want


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        pytest.param([(b"x-session-id", b"s"), (b"x-hlserve-session", b"e")], ("e", True), id="ours wins"),
        pytest.param(
            [(b"session_id", b"c"), (b"x-claude-code-session-id", b"cc")], ("cc", False), id="the better known wins"
        ),
        pytest.param(
            [(b"x-request-id", b"r"), (b"traceparent", b"t")], (None, False), id="request and trace ids never count"
        ),
    ],
)
def test_session(headers: Headers, session: tuple[str | None, bool]) -> None:
    head, _ = read_head(CHAT, headers, "made")
    assert (head.session, head.session_explicit) == session


def test_anthropic_version_turns_the_shape() -> None:
    assert read_head(CHAT, [(b"anthropic-version", b"2023-06-01")], "made")[0].shape is Shape.ANTHROPIC
    assert read_head(CHAT, [], "made")[0].shape is Shape.OPENAI
    assert read_head(ROUTES["/v1/messages"], [], "made")[0].shape is Shape.ANTHROPIC


@pytest.mark.parametrize(
    ("value", "want"), [(b"600", 600.0), (b"0.5", 0.5), (b"x", None), (b"-1", None), (b"inf", None)]
)
def test_read_timeout(value: bytes, want: float | None) -> None:
    assert read_head(CHAT, [(b"x-stainless-read-timeout", value)], "made")[0].read_timeout_seconds == want
