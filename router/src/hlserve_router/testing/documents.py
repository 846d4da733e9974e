"""Builders of routing tables and keyrings with defaults that fit one machine."""

from hashlib import sha256
from typing import Any

from hlserve_api.routing import (
    ClassRoute,
    Endpoint,
    Intent,
    KeyEntry,
    Keyring,
    Mode,
    PoolRoute,
    QueueRule,
    RoutingTable,
    Target,
    Timeouts,
)

INTERACTIVE_KEY = "hls_interactive_0123456789abcdef0123456789a"
AGENT_KEY = "hls_agent_0123456789abcdef0123456789abcdef0"
BATCH_KEY = "hls_batch_0123456789abcdef0123456789abcdef0"


def a_pool(name: str = "chat", *urls: str, **changes: Any) -> PoolRoute:
    """A pool that serves model m1."""
    endpoints = tuple(Endpoint(url=url, id=f"{name}-{index}") for index, url in enumerate(urls))
    mode = Mode.INTERACTIVE if name == "chat" else Mode.HUMAN_LESS
    return PoolRoute(**{"name": name, "mode": mode, "model": "m1", "endpoints": endpoints, **changes})


def a_class(name: str = "interactive", *pools: str, **changes: Any) -> ClassRoute:
    """A class with short waits; its intent follows its name."""
    intent = {"interactive": Intent.INTERACTIVE, "agent": Intent.AGENT, "batch": Intent.BATCH}.get(name, Intent.AGENT)
    defaults: dict[str, Any] = {
        "name": name,
        "intent": intent,
        "targets": tuple(Target(pool=pool) for pool in pools or ("chat",)),
        "queue": QueueRule(ttl_milliseconds=5_000),
        "timeouts": some_timeouts(),
    }
    return ClassRoute(**{**defaults, **changes})


def some_timeouts(**changes: int) -> Timeouts:
    """Timeouts long enough never to fire in a test that does not set them."""
    defaults = {
        "total_seconds": 60, "silence_seconds": 60, "peek_milliseconds": 5_000, "ping_seconds": 60,
        "retry_cutoff_seconds": 5, "start_seconds": 60,
    }  # fmt: skip
    return Timeouts(**{**defaults, **changes})


def a_table(*parts: PoolRoute | ClassRoute, generation: str = "g1") -> RoutingTable:
    """A table of these pools and classes."""
    return RoutingTable(
        generation=generation,
        pools=tuple(part for part in parts if isinstance(part, PoolRoute)),
        classes=tuple(part for part in parts if isinstance(part, ClassRoute)),
    )


def a_key(key: str, client: str, class_name: str, **changes: Any) -> KeyEntry:
    """A credential; `class_name` is its class."""
    return KeyEntry(
        **{
            "digest": sha256(key.encode()).hexdigest(), "client": client, "credential": "c1", "class_name": class_name,
            **changes,
        }
    )  # fmt: skip


def a_keyring(*entries: KeyEntry, generation: str = "k1") -> Keyring:
    """A keyring shard; without entries: one key for each of the three usual classes."""
    default = (
        a_key(INTERACTIVE_KEY, "web", "interactive"),
        a_key(AGENT_KEY, "coder", "agent"),
        a_key(BATCH_KEY, "nightly", "batch"),
    )
    return Keyring(generation=generation, keys=entries or default)
