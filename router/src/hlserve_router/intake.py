"""What both faces do with a request apart from its bytes: which route, whether it may come in, how it is refused.

No transport here: a face hands in what it read and sends what it gets back, so that every face decides alike.
"""

from dataclasses import dataclass, field

from hlserve_api import headers as names
from hlserve_api.answers import Reason
from hlserve_router import openapi
from hlserve_router.answers import answer
from hlserve_router.cors import Cors
from hlserve_router.errors import Refusal
from hlserve_router.exchange import Exchange
from hlserve_router.head import read_head
from hlserve_router.proxy import Proxy
from hlserve_router.relay import Downstream, Relay
from hlserve_router.state import ROUTES, STORED_RESPONSE, Route
from hlserve_router.upstream import UpstreamClient

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class RequestRules:
    """Bounds of requests and of the connections that they come on."""

    max_bytes: int = 64 * 1024 * 1024
    max_header_bytes: int = 64 * 1024
    """Names, values and target together."""
    timeout_seconds: float = 60.0
    """From a complete head to a complete body."""
    header_timeout_seconds: float = 30.0
    """From the first byte (of a new connection: from its start) to a complete head."""
    keep_alive_seconds: float = 75.0
    linger_seconds: float = 5.0
    """How long a client that is refused may go on sending: a connection closed on unread bytes is reset, answer and all."""
    max_headers: int = 128


@dataclass(slots=True)
class Answer:
    """A complete answer of the router's own. `close`: the connection cannot be used again."""

    status: int
    headers: Headers
    body: bytes
    close: bool


@dataclass(slots=True, eq=False)
class Intake:
    """The way in, shared by the faces of one process."""

    proxy: Proxy
    client: UpstreamClient
    rules: RequestRules = RequestRules()
    cors: Cors | None = None
    """Set if web pages of some origins may call."""
    relays: set[Relay] = field(default_factory=set)
    """Requests in progress, whatever face they came by."""

    def open(self, method: str, path: str, headers: Headers) -> tuple[Exchange, str | None]:
        """Step 1 for a request whose head is complete: its exchange, and the stored response that it names, if any.

        Raises Refusal.
        """
        route: Route | None = ROUTES.get(path) if method == "POST" else None
        response_id = None
        if route is None:
            route, response_id, method = match(method, path)
        exchange = self.proxy.open(route, headers)
        if response_id is None:
            check_content_type(headers)
        else:
            exchange.method = method
            exchange.path = path.rstrip("/")
        return exchange, response_id

    def relay(self, exchange: Exchange, down: Downstream) -> Relay:
        """The relay of an open request."""
        return Relay(self.proxy, self.client, exchange, down, self.relays)

    def reject(self, refusal: Refusal, path: str, headers: Headers) -> Answer:
        """The answer to a request that did not come in."""
        route = ROUTES.get(path.rstrip("/"))
        head, _ = read_head(route, headers, self.proxy.request_id())
        self.proxy.reject(route.name if route is not None else "unknown", refusal)
        made = answer(refusal, head.shape, head.request_id, self.proxy.random)
        # Told 401 instead of 100, a client need not send its body: then nobody knows where the next request begins.
        close = refusal.reason in _UNREAD or any(name == b"expect" for name, _ in headers)
        return Answer(made.status, [*made.headers, *_identity(head.request_id)], made.body, close)

    def give_up(self, refusal: Refusal, relay: Relay) -> Answer:
        """The answer to an open request whose body is not as it must be. Ends its relay."""
        relay.give_up(refusal)
        head = relay.exchange.head
        request_id = head.request_id
        made = answer(refusal, head.shape, request_id, self.proxy.random)
        return Answer(made.status, [*made.headers, *_identity(request_id)], made.body, True)

    def check_head(self, target_bytes: int, headers: Headers) -> None:
        """Raises Refusal (431) for a head that is too large."""
        size = target_bytes
        for name, value in headers:
            size += len(name) + len(value)
        if size > self.rules.max_header_bytes or len(headers) > self.rules.max_headers:
            raise self.head_too_large()

    def check_body(self, size: int) -> None:
        """Raises Refusal (413) for a body, announced or received so far, that is too large."""
        if size > self.rules.max_bytes:
            raise self.body_too_large()

    def body_too_large(self) -> Refusal:
        """The refusal of a body that is too large."""
        limit = self.rules.max_bytes
        return Refusal(Reason.BODY_TOO_LARGE, f"The body is larger than the {limit} bytes that are served.")

    def head_too_large(self) -> Refusal:
        """The refusal of a head that is too large."""
        rules = self.rules
        return Refusal(
            Reason.HEADERS_TOO_LARGE,
            f"The head is larger than what is served, {rules.max_header_bytes} bytes and {rules.max_headers} headers: send less of it.",
        )

    def head_too_slow(self) -> Refusal:
        """The refusal of a head that does not end."""
        limit = self.rules.header_timeout_seconds
        return Refusal(Reason.BODY_TIMEOUT, f"The headers did not arrive within {limit:g} s: send the request again.")

    def body_too_slow(self) -> Refusal:
        """The refusal of a body that does not end."""
        limit = self.rules.timeout_seconds
        return Refusal(Reason.BODY_TIMEOUT, f"The body did not arrive within {limit:g} s: send it again.")

    def tick(self, now: float) -> None:
        """Checks the deadlines of all requests in progress."""
        for relay in [relay for relay in self.relays if relay.look_at <= now]:
            try:
                relay.tick(now)
            except Exception as error:  # the boundary of a request: its fault must not take others along
                relay.fault(error)


_UNREAD = frozenset((Reason.HEADERS_TOO_LARGE, Reason.BODY_TOO_LARGE, Reason.BODY_TIMEOUT))
"""Refusals of a request that was not read to its end: what comes next on the connection is not a request."""


def _identity(request_id: str) -> Headers:
    value = request_id.encode()
    return [(names.REQUEST_ID.encode(), value), (names.REQUEST_ID_ANTHROPIC.encode(), value)]


def match(method: str, path: str) -> tuple[Route, str | None, str]:
    """The route, the stored response's id if the path names one, and the method. Raises Refusal (404, 405)."""
    plain = path.rstrip("/")
    route = ROUTES.get(plain)
    if route is not None:
        if method == "POST":
            return route, None, method
        raise wrong_method(route.path, method, "POST")
    if plain.startswith("/v1/responses/"):
        response_id, _, action = plain.removeprefix("/v1/responses/").partition("/")
        if action in ("", "cancel"):
            wanted = "POST" if action else "GET"
            if method == wanted:
                return STORED_RESPONSE, response_id, method
            raise wrong_method("This path", method, wanted)
    served = (*ROUTES, "/v1/models")
    hint = next((known for known in served if plain.endswith(known) or (plain and known == "/v1" + plain)), None)
    advice = f"did you mean {hint}?" if hint else "the API is under /v1, see GET /v1/models."
    raise Refusal(Reason.UNKNOWN_PATH, f"There is no {path[:128]!r} here: {advice}")


def wrong_method(path: str, method: str, allow: str) -> Refusal:
    """The 405 of a path that takes only the methods of `allow`."""
    return Refusal(Reason.METHOD_NOT_ALLOWED, f"{path[:128]} takes {allow}, not {method[:16]}.", allow=allow)


_OWN = frozenset(("/healthz", "/readyz", "/v1/models", openapi.PATH))


def is_own(path: str) -> bool:
    """True for a path that the router answers from its own state, through FastAPI."""
    plain = path.rstrip("/")
    return plain in _OWN or plain.startswith("/v1/models/")


def check_content_type(headers: Headers) -> None:
    """Raises Refusal (415) for a body that is said to be no JSON."""
    for name, value in headers:
        if name == b"content-type" and value != b"application/json":
            kind = value.partition(b";")[0].strip().lower()
            if kind != b"application/json" and not kind.endswith(b"+json"):
                raise Refusal(
                    Reason.UNSUPPORTED_MEDIA_TYPE,
                    "Send the body as `content-type: application/json`.",
                    param="content-type",
                )


def declared_bytes(headers: Headers) -> int:
    """The body's length as its head says it; 0 if it does not."""
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


def expects_continue(headers: Headers) -> bool:
    """True if the client waits to be told that it may send the body."""
    return any(name == b"expect" and value.lower() == b"100-continue" for name, value in headers)
