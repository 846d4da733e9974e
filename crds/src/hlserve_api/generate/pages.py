"""The reference pages of conditions, headers, answers, metrics and the router's documents."""

import json
from typing import Any

from pydantic import BaseModel

from hlserve_api.answers import (
    ANSWERS,
    ANTHROPIC_ERROR_TYPES,
    OPENAI_ERROR_TYPES,
    OUTCOME_MEANINGS,
    REASON_MEANINGS,
    Answer,
    Outcome,
)
from hlserve_api.compile import CLASS_DEFAULTS
from hlserve_api.conditions import CONDITIONS
from hlserve_api.generate.markdown import page, table
from hlserve_api.headers import FORWARDED_TO_ENGINE, HEADERS, PASSED_TO_CLIENT, PASSED_TO_CLIENT_PREFIXES
from hlserve_api.metrics import BENCH, ENGINE, METRICS, OPERATOR, OTHER, ROUTER, Label, Metric
from hlserve_api.routing import (
    DEFAULT_KEYRING_SHARDS,
    ENGINE_CREDENTIALS_KEY,
    ENGINE_CREDENTIALS_SECRET,
    KEYRING_KEY,
    KEYRING_SECRET_PREFIX,
    SCHEMA_VERSION,
    TABLE_CONFIG_MAP,
    TABLE_KEY,
    EngineCredentials,
    Keyring,
    RoutingTable,
)


def conditions_page() -> str:
    """Every condition type of every kind with its reasons."""
    blocks = [
        "Types and reasons are part of the API: they change only with a changelog entry. True is good for every type but `Progressing`, "
        "which is True while something moves. Messages carry the numbers and the next step, and are for people.",
    ]
    kind = ""
    for doc in CONDITIONS:
        if doc.kind != kind:
            kind = doc.kind
            blocks.append(f"## {kind}")
        blocks.append(f"### {kind}: {doc.type}")
        blocks.append(doc.meaning)
        rows = [(reason.status, f"`{reason.reason}`", reason.meaning) for reason in doc.reasons]
        blocks.append(table(("Status", "Reason", "Meaning"), rows))
    return page("Conditions", *blocks)


def headers_page() -> str:
    """Every header in and out."""
    rows = [(", ".join(f"`{name}`" for name in doc.names), doc.direction, doc.meaning) for doc in HEADERS]
    passed = ", ".join(f"`{name}`" for name in sorted(FORWARDED_TO_ENGINE))
    answered = ", ".join(f"`{name}`" for name in sorted(PASSED_TO_CLIENT))
    families = ", ".join(f"`{prefix}`" for prefix in PASSED_TO_CLIENT_PREFIXES)
    return page(
        "Headers",
        table(("Header", "Direction", "Meaning"), rows),
        "## To the engine",
        f"Only these request headers of a client pass: {passed}. Everything else stops at the router.",
        "## To the client",
        f"Only these headers of an engine's answer pass: {answered}; and those that begin with {families}. Everything else stops at "
        "the router, as does any header that holds the engine's own key.",
    )


def _advice(answer: Answer) -> str:
    parts = ["`Retry-After`"] if answer.retry_after else []
    if answer.no_retry:
        parts.append("`x-should-retry: false`")
    return ", ".join(parts)


def answers_page() -> str:
    """Every answer that the router gives itself, and every outcome."""
    rows = [
        (answer.status, f"`{reason}`", f"`{answer.outcome}`", _advice(answer), REASON_MEANINGS[reason])
        for reason, answer in sorted(ANSWERS.items(), key=lambda item: item[1].status)
    ]
    types = [(status, f"`{name}`", f"`{ANTHROPIC_ERROR_TYPES[status]}`") for status, name in OPENAI_ERROR_TYPES.items()]
    return page(
        "Answers and outcomes",
        "Answers of the router's own have OpenAI's shape (`error.code` is the reason), or Anthropic's (`error.details.error_code`) on "
        "`/v1/messages*` and for requests with an `anthropic-version` header.",
        "## Reasons",
        table(("Status", "Reason", "Outcome", "Retry advice", "Meaning"), rows),
        "## Outcomes",
        "Every request ends in exactly one, which is a metric label and a log field.",
        table(("Outcome", "Meaning"), [(f"`{outcome}`", OUTCOME_MEANINGS[outcome]) for outcome in Outcome]),
        "## Error types",
        table(("Status", "OpenAI `error.type`", "Anthropic `error.type`"), types),
        "After the first byte the status cannot change: the stream gets one error event in its shape, and no `[DONE]` or "
        "`message_stop` follows.",
    )


def _label(label: Label) -> str:
    if not label.values:
        return f"`{label.name}` (at most {label.cap})"
    if len(label.values) > 10:
        return f"`{label.name}`"
    return f"`{label.name}` ({', '.join(value or '(empty)' for value in label.values)})"


def _metric_table(metrics: tuple[Metric, ...]) -> str:
    rows = [
        (f"`{metric.name}`", metric.type, metric.unit, ", ".join(map(_label, metric.labels)), metric.help)
        for metric in metrics
    ]
    return table(("Metric", "Type", "Unit", "Labels", "Meaning"), rows)


def metrics_page() -> str:
    """Every metric with its labels."""
    labels = {label: None for metric in METRICS for label in metric.labels}
    label_rows = [(_label(label), label.help) for label in labels]
    return page(
        "Metrics",
        "Dashboards and alerts use only metrics of this page. No label takes a client's text: a label has a closed set of values, or a "
        f"cap, after which the value is `{OTHER}`. `hlserve_router_*` are on the router's admin port, `hlserve_engine_*` come from the "
        "engine plugin and the simulator.",
        "## Router",
        _metric_table(ROUTER),
        "## Engine",
        _metric_table(ENGINE),
        "## Operator",
        _metric_table(OPERATOR),
        "## Measuring tools",
        _metric_table(BENCH),
        "## Labels",
        table(("Label", "Meaning"), label_rows),
    )


def _defaults_table() -> str:
    rows = []
    for intent, defaults in CLASS_DEFAULTS.items():
        times = defaults.timeouts
        rows.append(
            (
                intent,
                times.total_seconds,
                times.silence_seconds,
                times.peek_milliseconds,
                times.ping_seconds,
                times.retry_cutoff_seconds,
                times.start_seconds,
                defaults.queue_ttl_milliseconds,
            )
        )
    head = ("Intent", "totalSeconds", "silenceSeconds", "peekMilliseconds", "pingSeconds", "retryCutoffSeconds", "startSeconds",
            "queue.ttlMilliseconds")  # fmt: skip
    return table(head, rows)


def routing_table_page() -> str:
    """The documents between operator and router."""
    return page(
        "Routing table and keyring",
        "What the operator (or `hlserve up`) writes and routers read. Readers ignore unknown fields and refuse a higher `schemaVersion` "
        f"than they know (now {SCHEMA_VERSION}), while they keep the last good document.",
        table(
            ("Document", "Where", "Schema"),
            [
                (
                    "RoutingTable",
                    f"ConfigMap `{TABLE_CONFIG_MAP}`, key `{TABLE_KEY}`",
                    "[JSON schema](schemas/routing-table.schema.json)",
                ),
                (
                    "Keyring",
                    f"Secrets `{KEYRING_SECRET_PREFIX}0` to `{KEYRING_SECRET_PREFIX}{DEFAULT_KEYRING_SHARDS - 1}` (a chart value), key "
                    f"`{KEYRING_KEY}`",
                    "[JSON schema](schemas/keyring.schema.json)",
                ),
                (
                    "EngineCredentials",
                    f"Secret `{ENGINE_CREDENTIALS_SECRET}`, key `{ENGINE_CREDENTIALS_KEY}`",
                    "[JSON schema](schemas/engine-credentials.schema.json)",
                ),
            ],
        ),
        "Generations are SHA-256 over the canonical content (sorted keys, no spaces, without the generation itself). A key is looked up by "
        "the SHA-256 of its UTF-8 bytes; its shard is the first eight bytes of that digest modulo the number of shards. Two credentials "
        "with the same key are both refused.",
        "## Defaults by intent",
        "Where a WorkloadClass leaves them out. An Interactive class waits at most its pools' TTFT target, if they have one; a pool's "
        "`throughput.requestTimeoutSeconds` is the default of its classes' `totalSeconds`.",
        _defaults_table(),
    )


def document_schema(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a document, as its readers see it."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **model.model_json_schema(by_alias=True)}


def schema_files() -> dict[str, str]:
    """JSON schemas by file name."""
    models: dict[str, type[BaseModel]] = {
        "routing-table.schema.json": RoutingTable,
        "keyring.schema.json": Keyring,
        "engine-credentials.schema.json": EngineCredentials,
    }
    return {
        name: json.dumps(document_schema(model), indent=2, ensure_ascii=False) + "\n" for name, model in models.items()
    }
