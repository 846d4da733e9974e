"""Requests that are odd on the wire: each gets one clean status, and none reaches an engine that should not, or twice."""

import asyncio
import re
from dataclasses import dataclass

import pytest

from hlserve_router.testing.cases import CHAT, NS, behind, still_held
from hlserve_router.testing.documents import AGENT_KEY
from hlserve_router.testing.running import Face
from hlserve_router.testing.scripts import COMPLETION, ORDINARY
from hlserve_router.testing.stage import Stage

BODY = b'{"model":"m1","messages":[{"role":"user","content":"hi"}]}'
SIZE = b"%d" % len(BODY)
LENGTH = b"content-length: " + SIZE
CHUNKED = b"transfer-encoding: chunked"
FIRST = b"POST /v1/chat/completions HTTP/1.1"


def post(*lines: bytes, body: bytes = BODY, first: bytes = FIRST, host: bytes = b"host: router\r\n") -> bytes:
    head = [first, host + b"authorization: Bearer " + AGENT_KEY.encode(), b"content-type: application/json", *lines]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


def chunked(size: bytes = b"%x" % len(BODY), extension: bytes = b"", end: bytes = b"\r\n0\r\n\r\n") -> bytes:
    return size + extension + b"\r\n" + BODY + end


def target(path: bytes, method: bytes = b"POST", version: bytes = b"HTTP/1.1") -> bytes:
    return post(LENGTH, first=b" ".join((method, path, version)))


@dataclass(frozen=True)
class Odd:
    id: str
    sent: bytes
    status: int | tuple[int, ...]
    """Of the first final answer; where the faces' servers differ, any of these."""
    served: int = 0
    """Requests that reach the engine."""

    @property
    def statuses(self) -> tuple[int, ...]:
        return self.status if isinstance(self.status, tuple) else (self.status,)


NEXT = post(LENGTH)
FRAMING = [
    Odd("a length and chunked", post(LENGTH, CHUNKED, body=chunked()), 400),
    Odd("chunked and a length", post(CHUNKED, LENGTH, body=chunked()), 400),
    Odd("a request hidden behind a length and chunked", post(b"content-length: 999", CHUNKED, body=chunked() + NEXT), 400),
    Odd("a request hidden behind no chunks", post(LENGTH, CHUNKED, body=b"0\r\n\r\n" + NEXT), 400),
    Odd("two lengths", post(LENGTH, b"content-length: 5"), 400),
    Odd("one length twice", post(LENGTH, LENGTH), 400),
    Odd("a list of lengths", post(LENGTH + b", " + SIZE), 400),
    Odd("a length with a plus", post(b"content-length: +" + SIZE), 400),
    Odd("a length in hexadecimal", post(b"content-length: 0x3a"), 400),
    Odd("a negative length", post(b"content-length: -1"), 400),
    Odd("a length with a space", post(b"content-length: 5 8"), 400),
    Odd("an empty length", post(b"content-length:"), 400),
    Odd("a length beyond all measure", post(b"content-length: " + b"9" * 30), 400),
    Odd("a length with zeros before it", post(b"content-length: 000" + SIZE), 200, 1),
    Odd("identity", post(b"transfer-encoding: identity"), 400),
    Odd("identity and a length", post(b"transfer-encoding: identity", LENGTH), 400),
    Odd("chunked, then identity", post(b"transfer-encoding: chunked, identity", body=chunked()), 400),
    Odd("a coding that only ends like chunked", post(b"transfer-encoding: xchunked", body=chunked()), 400),
    Odd("chunked twice", post(CHUNKED, CHUNKED, body=chunked()), 400),
    Odd("chunked and identity in two headers", post(CHUNKED, b"transfer-encoding: identity", body=chunked()), 400),
    Odd("chunked behind a vertical tab", post(b"transfer-encoding: \x0bchunked", body=chunked()), 400),
    Odd("a space before the colon of the coding", post(b"transfer-encoding : chunked", body=chunked()), 400),
    Odd("a folded coding", post(b"transfer-encoding:\r\n chunked", body=chunked()), 400),
    Odd("the coding in capitals", post(b"TRANSFER-ENCODING: CHUNKED", body=chunked()), 200, 1),
    Odd("an extension of a chunk", post(CHUNKED, body=chunked(extension=b';a=b;c="d"')), 200, 1),
    Odd("a bare LF in an extension", post(CHUNKED, body=chunked(extension=b";a\nb")), 400),
    Odd("a chunk size beyond all measure", post(CHUNKED, body=chunked(b"f" * 17)), 400),
    Odd("a negative chunk size", post(CHUNKED, body=chunked(b"-1")), 400),
    Odd("a chunk size with a space", post(CHUNKED, body=chunked(extension=b" ")), 400),
    Odd("a chunk size with 0x", post(CHUNKED, body=chunked(b"0x3a")), 400),
    Odd("no chunk size", post(CHUNKED, body=chunked(b"")), 400),
    Odd("chunks that end with LF", post(CHUNKED, body=chunked().replace(b"\r\n", b"\n")), 400),
    Odd("a chunk that is longer than it says", post(CHUNKED, body=chunked(b"5")), 400),
    Odd("a chunk without its end", post(CHUNKED, body=chunked(end=b"XX0\r\n\r\n")), 400),
    Odd("a length as a trailer", post(CHUNKED, body=chunked(end=b"\r\n0\r\ncontent-length: 5\r\n\r\n")), 400),
    Odd("no length but a body", post(), 400),
    Odd("a length of 0 and a body", post(b"content-length: 0"), 400),
    Odd("a length that is too short", post(b"content-length: %d" % (len(BODY) - 1)), 400),
    Odd("two requests in one segment", post(LENGTH) + NEXT, 200, 2),
]  # fmt: skip
HEADS = [
    Odd("a folded header", post(LENGTH, b"x-a: 1\r\n 2"), 400),
    Odd("a first header that is folded", post(b" x-a: 1", LENGTH), 400),
    Odd("lines that end with LF", post(LENGTH).replace(b"\r\n", b"\n"), 400),
    Odd("one line that ends with LF", post(LENGTH + b"\nx-b: 1"), 400),
    Odd("a bare CR", post(LENGTH, b"x-a: 1\rx-b: 2"), 400),
    Odd("a NUL in a value", post(LENGTH, b"x-a: a\x00b"), 400),
    Odd("a NUL in a name", post(LENGTH, b"x-\x00a: b"), 400),
    Odd("a NUL in the target", target(b"/v1/chat/\x00completions"), 400),
    Odd("a control character in a value", post(LENGTH, b"x-a: a\x01b"), 400),
    Odd("a line without a colon", post(LENGTH, b"nonsense"), 400),
    Odd("a space before the colon", post(LENGTH, b"x-a : b"), 400),
    Odd("an empty name", post(LENGTH, b": b"), 400),
    Odd("a name that is not ASCII", post(LENGTH, b"x-\xff: b"), 400),
    Odd("a value that is not ASCII", post(LENGTH, b"x-a: \xff\xfe"), 200, 1),
    Odd("a header that is too large", post(LENGTH, b"x-a: " + b"a" * 70_000), 431),
    Odd("no Host", post(LENGTH, host=b""), 200, 1),
    Odd("an empty Host", post(LENGTH, host=b"host:\r\n"), 200, 1),
    Odd("a strange Host", post(LENGTH, host=b"host: a b/c@d:99999\r\n"), 200, 1),
    Odd("two Hosts", post(LENGTH, b"host: other"), 200, 1),
    Odd("empty lines first", b"\r\n\r\n" + post(LENGTH), 200, 1),
    Odd("another expectation", post(LENGTH, b"expect: something"), 200, 1),
    Odd("an expectation with the body at once", post(LENGTH, b"expect: 100-continue"), 200, 1),
    Odd("an expectation in capitals, in chunks", post(CHUNKED, b"EXPECT: 100-CONTINUE", body=chunked()), 200, 1),
    Odd("an expectation without a body", post(b"content-length: 0", b"expect: 100-continue", body=b""), 400),
    Odd("an expectation of HTTP/1.0", post(LENGTH, b"expect: 100-continue", first=FIRST[:-1] + b"0"), 200, 1),
    Odd("HTTP/1.0", post(LENGTH, first=FIRST[:-1] + b"0"), 200, 1),
    Odd("HTTP/1.2", post(LENGTH, first=FIRST[:-1] + b"2"), 400),
    Odd("HTTP/9.9", post(LENGTH, first=FIRST[:-3] + b"9.9"), 400),
    Odd("another protocol", post(LENGTH, first=FIRST.replace(b"HTTP", b"HTTQ")), 400),
    Odd("tabs for spaces", post(LENGTH, first=FIRST.replace(b" ", b"\t")), 400),
    Odd("no HTTP at all", b"\x00\x01\x02\xff garbage\r\n\r\n", 400),
    Odd("the method in lower case", target(CHAT.encode(), b"post"), 400),
    Odd("the method in mixed case", target(CHAT.encode(), b"Post"), 400),
    Odd("a method that nobody knows", target(CHAT.encode(), b"FOO"), 400),
    Odd("PATCH", target(CHAT.encode(), b"PATCH"), 405),
    Odd("TRACE", target(CHAT.encode(), b"TRACE"), 405),
    Odd("GET with a body", target(CHAT.encode(), b"GET"), 405),
    Odd("CONNECT", target(b"x.example:443", b"CONNECT"), 400),
    Odd("an absolute target", target(b"http://169.254.169.254" + CHAT.encode()), 200, 1),
    Odd("an absolute target with user, port and query", target(b"https://u:p@x.example:8443" + CHAT.encode() + b"?a=b"), 200, 1),
    Odd("an absolute target without a path", target(b"http://x.example"), (404, 400)),
    Odd("an absolute target without a host", target(b"http://" + CHAT.encode()), 400),
    Odd("a host as the target", target(b"x.example:443"), 400),
    Odd("a star as the target", target(b"*"), 404),
    Odd("a query", target(CHAT.encode() + b"?api-version=1&x=%0d%0a"), 200, 1),
    Odd("an escaped slash", target(b"/v1/chat%2Fcompletions"), 200, 1),
    Odd("an escaped NUL", target(CHAT.encode() + b"%00"), 404),
    Odd("escaped line ends", target(CHAT.encode() + b"%0d%0ax: y"), 400),
    Odd("an escape that is none", target(CHAT.encode() + b"%zz"), 404),
    Odd("escapes that are no UTF-8", target(b"/v1/%ff%fe"), 404),
    Odd("dots", target(b"/v1/../v1/chat/completions"), 404),
    Odd("backslashes", target(b"\\v1\\chat\\completions"), 400),
    Odd("a path that is not ASCII", target("/v1/chàt".encode()), 400),
    Odd("a path that is too long", target(b"/v1/" + b"a" * 70_000), (431, 400)),
    Odd("a query that is too long", target(CHAT.encode() + b"?" + b"a" * 70_000), (431, 400)),
    Odd("a conflict on a path of the router's own", post(LENGTH, CHUNKED, first=b"GET /v1/models HTTP/1.1"), 400),
]  # fmt: skip


@pytest.mark.parametrize("case", [*FRAMING, *HEADS], ids=lambda case: case.id)
async def test_an_odd_request_gets_one_clean_status(stage: Stage, case: Odd, caplog: pytest.LogCaptureFixture) -> None:
    router, (engine,) = await behind(stage, ORDINARY)
    wire = await stage.wire(router)
    await wire.send(case.sent)
    status, headers = await wire.head()
    while status == 100:
        status, headers = await wire.head()
    assert status in case.statuses
    async with asyncio.timeout(5):
        body = await wire.reader.readexactly(int(headers["content-length"][0]))
    assert body == COMPLETION if status == 200 else len(body) < 500
    await router.until(lambda: len(engine.requests) == case.served)
    if status != 200 and headers.get("connection") == ["close"]:
        rest = await wire.rest()
        assert not re.search(rb"HTTP/1.1 2\d\d", rest), "what may hide behind it is never read as a request"
    assert (await router.post(CHAT, NS)).status_code == 200, "others are not touched"
    assert len(engine.requests) == case.served + 1
    wire.hang_up()
    await router.until(lambda: not still_held(router))
    assert not [record for record in caplog.records if record.exc_info]


HIDDEN = [
    case
    for case in FRAMING
    if "hidden" in case.id or case.id.startswith(("no length", "a length of 0", "a length that is too"))
]


@pytest.mark.parametrize("case", HIDDEN, ids=lambda case: case.id)
async def test_a_doubtful_end_ends_the_connection(stage: Stage, case: Odd) -> None:
    router, (engine,) = await behind(stage, ORDINARY)
    wire = await stage.wire(router)
    await wire.send(case.sent)
    answers = await wire.rest()
    assert answers.startswith(b"HTTP/1.1 400 ")
    assert answers.count(b"HTTP/1.1 200 ") == 0
    assert not engine.requests


async def test_what_comes_before_a_bad_request_is_answered_first(stage: Stage, face: Face) -> None:
    router, (engine,) = await behind(stage, ORDINARY)
    wire = await stage.wire(router)
    await wire.send(post(LENGTH) + post(LENGTH, CHUNKED, body=chunked()))
    statuses = re.findall(rb"HTTP/1.1 (\d+) ", await wire.rest())
    assert len(engine.requests) <= 1
    if face is Face.SPLICE:  # the portable face's server answers the bad one at once and closes
        assert statuses == [b"200", b"400"]


async def test_a_body_that_is_promised_beyond_all_measure_is_not_waited_for(stage: Stage) -> None:
    router, (engine,) = await behind(stage, ORDINARY, settings={"body_timeout_seconds": 0.2})
    wire = await stage.wire(router)
    await wire.send(post(CHUNKED, body=chunked(b"7" + b"f" * 15)))
    status, headers, body = await wire.answer()
    assert (status, headers["connection"], b"body_timeout" in body) == (408, ["close"], True)
    assert not engine.requests
