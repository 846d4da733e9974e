"""Header names that clients, router and engines exchange. Declared once, here."""

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

KNOWN_SESSION_HEADERS: Final = (
    SESSION,
    "x-claude-code-session-id",
    "x-codex-session-id",
    "session_id",
    "x-session-id",
    "x-session-affinity",
    "x-conversation-id",
)
"""Headers that name an agent's session, best first. Request and trace ids are never used for affinity."""
