"""The documents that our router runs with in the benchmark: nothing is switched off, and no bound is ever reached."""

import hashlib
import json
from pathlib import Path
from typing import Final

from hlserve_api.routing import (
    ClassLimits,
    ClassRoute,
    Endpoint,
    Intent,
    KeyEntry,
    KeyLimits,
    Keyring,
    Mode,
    PoolRoute,
    QueueRule,
    RoutingTable,
    ShareRule,
    SpillRule,
    Target,
    TargetRole,
    Timeouts,
)

MODEL: Final = "mock-model"
AGENT_KEY: Final = "hls_benchmark_agent_0123456789abcdef0123456789"
INTERACTIVE_KEY: Final = "hls_benchmark_chat_0123456789abcdef0123456789a"
SHARDS: Final = 4
OTHER_KEYS: Final = 1000
DESCRIPTION: Final = (
    "two pools of two engines; three classes with queue bounds, shares, spill rules, caps of tokens and of concurrency; "
    f"{OTHER_KEYS + 2} keys in {SHARDS} shards with limits of requests, tokens and concurrency; the measured key is an agent's, so that "
    "affinity works on every request"
)

_LIMITS: Final = KeyLimits(requests_per_minute=10**9, tokens_per_minute=10**13, max_concurrent=100_000)


def routing_table(engine_urls: tuple[str, ...]) -> RoutingTable:
    """Three classes over two pools that share the engines."""
    return RoutingTable(
        generation="benchmark",
        pools=(
            _pool("chat", Mode.INTERACTIVE, engine_urls),
            _pool("agents", Mode.HUMAN_LESS, engine_urls),
        ),
        classes=(
            _class("interactive", Intent.INTERACTIVE, ("chat",), _timeouts(600, 60, 2000, 5, 30)),
            _class("agent", Intent.AGENT, ("agents", "chat"), _timeouts(3600, 600, 5000, 30, 600)),
            _class("batch", Intent.BATCH, ("agents",), _timeouts(21600, 1800, 5000, 60, 1800)),
        ),
    )


def _pool(name: str, mode: Mode, urls: tuple[str, ...]) -> PoolRoute:
    return PoolRoute(
        name=name,
        mode=mode,
        model=MODEL,
        aliases=(f"{name}-model",),
        endpoints=tuple(Endpoint(url=url, id=f"{name}-{index}") for index, url in enumerate(urls)),
        max_in_flight=10_000,
        in_flight_tokens=10**9,
        queue_ttl_milliseconds=60_000,
        context_length=2_000_000,
    )


def _timeouts(total: int, silence: int, peek_milliseconds: int, retry_cutoff: int, start: int) -> Timeouts:
    return Timeouts(
        total_seconds=total, silence_seconds=silence, peek_milliseconds=peek_milliseconds, ping_seconds=15,
        retry_cutoff_seconds=retry_cutoff, start_seconds=start,
    )  # fmt: skip


def _class(name: str, intent: Intent, pools: tuple[str, ...], timeouts: Timeouts) -> ClassRoute:
    targets = (Target(pool=pools[0]), *(Target(pool=pool, role=TargetRole.SPILL) for pool in pools[1:]))
    return ClassRoute(
        name=name,
        intent=intent,
        priority=30 - 10 * intent.rank,
        targets=targets,
        spill=SpillRule(),
        queue=QueueRule(max_depth=1000, max_bytes=256 * 1024 * 1024, ttl_milliseconds=60_000),
        share=ShareRule(min_percent=60 - 20 * intent.rank),
        limits=ClassLimits(max_input_tokens=1_000_000, max_output_tokens=100_000, max_concurrent_per_client=10_000),
        timeouts=timeouts,
    )


def keyrings() -> tuple[Keyring, ...]:
    """The measured keys among many others, by digest into shards."""
    entries = [_entry(AGENT_KEY, "coder", "agent"), _entry(INTERACTIVE_KEY, "web", "interactive")]
    classes = ("interactive", "agent", "batch")
    entries += [
        _entry(f"hls_other_{index:04}_0123456789abcdef0123456789", f"client-{index}", classes[index % 3])
        for index in range(OTHER_KEYS)
    ]
    shards: list[list[KeyEntry]] = [[] for _ in range(SHARDS)]
    for entry in entries:
        shards[int(entry.digest[:8], 16) % SHARDS].append(entry)
    return tuple(Keyring(generation=f"benchmark-{index}", keys=tuple(keys)) for index, keys in enumerate(shards))


def _entry(key: str, client: str, class_name: str) -> KeyEntry:
    return KeyEntry(
        digest=hashlib.sha256(key.encode()).hexdigest(),
        client=client,
        credential="one",
        tenant=f"tenant-{len(client) % 7}",
        class_name=class_name,
        models=(MODEL,),
        limits=_LIMITS,
    )


def write_documents(folder: Path, engine_urls: tuple[str, ...]) -> tuple[Path, tuple[Path, ...]]:
    """Writes table and keyrings; returns their paths."""
    table = folder / "table.json"
    table.write_text(_json(routing_table(engine_urls)))
    paths = []
    for index, keyring in enumerate(keyrings()):
        path = folder / f"keyring-{index}.json"
        path.write_text(_json(keyring))
        paths.append(path)
    return table, tuple(paths)


def _json(document: RoutingTable | Keyring) -> str:
    return json.dumps(document.model_dump(mode="json", by_alias=True))
