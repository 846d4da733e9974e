"""Header names that clients, router and engines exchange. Declared once, here."""

from dataclasses import dataclass
from typing import Final

AUTHORIZATION: Final = "authorization"
API_KEY: Final = "x-api-key"

CLASS: Final = "x-hlserve-class"
"""In: the name of a WorkloadClass, to lower the request's class. Out: the class that the request ran in."""
SESSION: Final = "x-hlserve-session"
"""In: explicit affinity key; wins over the known agent headers."""
POOL: Final = "x-hlserve-pool"
OUTCOME: Final = "x-hlserve-outcome"
REASON: Final = "x-hlserve-reason"

REQUEST_ID: Final = "x-request-id"
REQUEST_ID_ANTHROPIC: Final = "request-id"
"""The Anthropic SDK reads the request id under this name; both names carry the same value."""

ENGINE_RID: Final = "x-override-rid"
"""To the engine only: the router's own request id (SGLang 0.5.23 with SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES)."""
ENGINE_PRIORITY: Final = "x-override-priority"

SHOULD_RETRY: Final = "x-should-retry"
RETRY_AFTER: Final = "retry-after"
CLIENT_READ_TIMEOUT: Final = "x-stainless-read-timeout"

RATE_LIMIT: Final = "x-ratelimit-limit-"
RATE_REMAINING: Final = "x-ratelimit-remaining-"
RATE_RESET: Final = "x-ratelimit-reset-"
"""With `requests` or `tokens` behind: the names that OpenAI's API uses."""

FORWARDED_TO_ENGINE: Final = frozenset(
    {
        "content-type",
        "accept",
        "accept-encoding",
        "user-agent",
        "traceparent",
        "tracestate",
        "baggage",
        "anthropic-version",
        "anthropic-beta",
    }
)
"""Request headers that pass to an engine. An allow-list: everything else a client sends stops at the router."""

PASSED_TO_CLIENT: Final = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-length",
        "content-type",
        "etag",
        "last-modified",
        "retry-after",
        "retry-after-ms",
        "vary",
    }
)
PASSED_TO_CLIENT_PREFIXES: Final = ("anthropic-", "openai-", "x-ratelimit-")
"""Headers of an engine's answer that pass to the client, and beginnings of such names. An allow-list: what an engine says
of itself, of its cluster or of its credentials stops at the router."""

KNOWN_SESSION_HEADERS: Final = (
    SESSION,
    "x-session-id",
    "x-claude-code-session-id",
    "session-id",
    "session_id",
    "x-codex-session-id",
    "x-session-affinity",
    "x-opencode-session",
    "x-conversation-id",
    "conversation_id",
)
"""Headers that name an agent's session, best first. Request and trace ids are never used for affinity."""

KNOWN_SUBAGENT_HEADERS: Final = (
    "x-claude-code-agent-id",
    "thread-id",
    "x-openai-subagent",
)
"""Headers by which known agents tell the sub-agents of one session apart, best first (Claude Code, Codex, Codex)."""


@dataclass(frozen=True, slots=True)
class HeaderDoc:
    """One header of the reference page."""

    names: tuple[str, ...]
    direction: str
    meaning: str


HEADERS: Final = (
    HeaderDoc(
        (AUTHORIZATION, API_KEY),
        "in",
        "The client's key, as `Bearer KEY` or plain; either, on every route. Both with different keys: 401 `conflicting_keys`. Never "
        "forwarded.",
    ),
    HeaderDoc(
        (CLASS,),
        "in",
        "Name of a WorkloadClass, to lower the request's class: one of the key's `allowedClasses`; if that is empty, any class of a "
        "lower intent (Interactive > Agent > Batch). A higher or equal intent leaves the key's own class. Unknown: 400; lower but not "
        "allowed, or `headerOverride: Deny`: 403.",
    ),
    HeaderDoc(
        (SESSION,),
        "in",
        "Explicit affinity key: requests with the same value go to the same replica, if it can take them.",
    ),
    HeaderDoc(
        KNOWN_SESSION_HEADERS[1:],
        "in",
        "Affinity keys of known agents, used in this order if `x-hlserve-session` is absent; then the body's `prompt_cache_key` and "
        "`metadata.user_id`, then the prompt's first turn after the system messages.",
    ),
    HeaderDoc(
        KNOWN_SUBAGENT_HEADERS,
        "in",
        "Sub-agents of one session, which refine its affinity key: each has a prefix of its own, and goes where that is cached.",
    ),
    HeaderDoc(
        (REQUEST_ID, REQUEST_ID_ANTHROPIC),
        "in and out",
        "Correlates logs, traces and answers; taken if it is at most 128 characters of `[A-Za-z0-9._-]`, else made. Sent back under "
        "both names. Engines know the request under an id of the router's own.",
    ),
    HeaderDoc(
        (CLIENT_READ_TIMEOUT,),
        "in",
        "The SDK's own deadline in seconds: a reply that is not streamed is answered 10 s before it.",
    ),
    HeaderDoc(
        (CLASS, POOL), "out", "The class that the request ran in, and the pool that served it; before the first byte."
    ),
    HeaderDoc((OUTCOME, REASON), "out", "How it ended and why; only when the router itself answers."),
    HeaderDoc((RETRY_AFTER,), "out", "1 to 60 s with jitter, on 429 and 503."),
    HeaderDoc(
        tuple(name + unit for unit in ("requests", "tokens") for name in (RATE_LIMIT, RATE_REMAINING, RATE_RESET)),
        "out",
        "On 429 `key_requests` and `key_tokens`: the key's limit a minute, what is left of it, and in how many seconds (`12s`) the "
        "request would fit.",
    ),
    HeaderDoc(
        (SHOULD_RETRY,), "out", "`false` where a retry of the SDK would only do harm: the official SDKs obey it."
    ),
    HeaderDoc(
        (ENGINE_RID, ENGINE_PRIORITY),
        "to the engine",
        "The router's own id of the request, and its priority. Never a client's.",
    ),
)
"""Every header, for the reference page."""
