"""Every metric of HlServe, declared once: name, type, help, unit, labels with their values or cap, buckets.

The programs create their metrics from these declarations, the reference page is generated from them, and dashboards and alerts may
use only names found here. No label takes text of a client: a label either has a closed set of values, or a cap beyond which the
value is `other`. Histograms are classic ones; the client library has no native histograms.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from hlserve_api.answers import Outcome, Reason
from hlserve_api.routing import Intent, Mode


class MetricType(StrEnum):
    """Prometheus metric types."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Label:
    """One label: `values` is its closed set; without it, at most `cap` values appear and the rest become `other`."""

    name: str
    help: str
    values: tuple[str, ...] = ()
    cap: int = 0


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `name` is the exposed one, with `_total` for counters; `buckets` are upper bounds in `unit`."""

    name: str
    type: MetricType
    help: str
    unit: str
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        """Names of the labels in declared order."""
        return tuple(label.name for label in self.labels)


OTHER: Final = "other"
"""Value of a capped label once its cap is reached."""

CLASS: Final = Label("class", "WorkloadClass that the request ran in; empty before it is known.", cap=64)
POOL: Final = Label("pool", "ServingPool that the request went to; empty if it went to none.", cap=64)
OUTCOME: Final = Label("outcome", "How the request ended.", values=tuple(Outcome))
REASON: Final = Label("reason", "Why the router answered itself; empty if it did not.", values=("", *Reason))
CLIENT: Final = Label("client", "ClientKey name.", cap=200)
ENDPOINT: Final = Label("endpoint", "Replica of the pool, by its pod's name, else by id.", cap=512)
MODE: Final = Label("mode", "Mode of the pool.", values=tuple(Mode))
DOCUMENTS: Final = ("table", "keyring", "engine_credentials", "certificate")
"""What the router reads and may refuse."""
SOURCES: Final = ("table", "keyring", "engine_credentials", "endpoints")
"""What the router hears of again and again."""
RECONCILED: Final = Label(
    "kind",
    "ServingPool: one pool; access: the routing table, the keyrings and all classes and keys.",
    ("ServingPool", "access"),
)
INTENT: Final = Label("intent", "Intent of the class.", values=tuple(Intent))

LATENCY_SECONDS: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0,
)  # fmt: skip
TPOT_SECONDS: Final = (
    0.002, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.0175, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0,
)  # fmt: skip
E2E_SECONDS: Final = (
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    20.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    1800.0,
    3600.0,
    21600.0,
)
STEP_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
OVERHEAD_SECONDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5)


def _counter(name: str, text: str, *labels: Label, unit: str = "") -> Metric:
    return Metric(name, MetricType.COUNTER, text, unit, labels)


def _gauge(name: str, text: str, *labels: Label, unit: str = "") -> Metric:
    return Metric(name, MetricType.GAUGE, text, unit, labels)


def _seconds(name: str, text: str, buckets: tuple[float, ...], *labels: Label) -> Metric:
    return Metric(name, MetricType.HISTOGRAM, text, "seconds", labels, buckets)


ROUTER: Final = (
    _counter(
        "hlserve_router_requests_total", "Requests that ended, each exactly once.", CLASS, POOL, OUTCOME, REASON
    ),
    _counter("hlserve_router_client_requests_total", "Requests that ended, by client.", CLIENT, CLASS, OUTCOME),
    _gauge("hlserve_router_in_flight_requests", "Requests at an engine now.", CLASS, POOL),
    _gauge("hlserve_router_in_flight_tokens", "Estimated tokens of the requests at an engine now.", CLASS, POOL, unit="tokens"),
    _gauge("hlserve_router_queue_depth", "Requests that wait in the class queue now.", CLASS),
    _gauge("hlserve_router_queue_bytes", "Bytes of the bodies that wait in the class queue now.", CLASS, unit="bytes"),
    _seconds("hlserve_router_queue_wait_seconds", "Time in the class queue, of those that left it for an engine.", LATENCY_SECONDS, CLASS),
    _seconds("hlserve_router_ttft_seconds", "From arrival to the first token of a streamed reply.", LATENCY_SECONDS, CLASS, POOL),
    _seconds("hlserve_router_tpot_seconds", "Mean time per output token after the first, of one request.", TPOT_SECONDS, CLASS, POOL),
    _seconds("hlserve_router_e2e_seconds", "From arrival to the last byte.", E2E_SECONDS, CLASS, POOL),
    _seconds(
        "hlserve_router_overhead_seconds", "The router's own time before the request leaves for an engine, without the queue.",
        OVERHEAD_SECONDS, CLASS,
    ),
    _counter("hlserve_router_input_tokens_total", "Prompt tokens, as the engine counted them.", CLASS, POOL, unit="tokens"),
    _counter("hlserve_router_cached_tokens_total", "Prompt tokens that the engine found in its prefix cache.", CLASS, POOL, unit="tokens"),
    _counter("hlserve_router_output_tokens_total", "Reply tokens, as the engine counted them.", CLASS, POOL, unit="tokens"),
    _counter("hlserve_router_client_tokens_total", "Prompt plus reply tokens, by client.", CLIENT, unit="tokens"),
    _counter(
        "hlserve_router_affinity_total", "Placements by how affinity came out.", CLASS, POOL,
        Label("result", "hit: the remembered replica; miss: none known; escaped: too busy.", ("hit", "miss", "escaped", "none")),
    ),
    _counter(
        "hlserve_router_retries_total", "Further tries before the first byte.", POOL,
        Label("cause", "What the former try ended with.", ("connect", "reset", "busy")),
    ),
    _counter(
        "hlserve_router_spills_total", "Requests that went to a Spill target.", CLASS, POOL,
        Label("cause", "Why.", ("queue_wait", "unavailable")),
    ),
    _counter("hlserve_router_shed_total", "Requests refused for lack of capacity.", CLASS, REASON),
    _counter(
        "hlserve_router_class_clamped_total", "Requests whose header asked for a class that is not lower; they ran in the key's.", CLASS
    ),
    _counter(
        "hlserve_router_class_advice_total", "Requests that look like another class than theirs; advice only.", CLASS,
        Label("looks_like", "Intent that the heuristics see.", tuple(Intent)),
        Label(
            "evidence", "program: an agent program's name or session header; pace: the think time of the session's rounds.",
            ("program", "pace"),
        ),
    ),
    _counter(
        "hlserve_router_client_gone_total", "Clients that went away, by how far the request was.", CLASS,
        Label("stage", "Where the request was.", ("queue", "prefill", "stream")),
    ),
    _gauge("hlserve_router_zombie_requests", "Requests abandoned by the router that the engine still seems to run.", POOL),
    _gauge("hlserve_router_endpoint_up", "1 if the replica answers its probes, else 0.", POOL, ENDPOINT),
    _gauge(
        "hlserve_router_endpoint_breaker", "1 for the state that the replica's circuit breaker is in, else 0.", POOL, ENDPOINT,
        Label("state", "State of the breaker.", ("closed", "open", "half_open")),
    ),
    _gauge("hlserve_router_endpoint_in_flight_requests", "Requests at the replica now.", POOL, ENDPOINT),
    _gauge("hlserve_router_pool_endpoints", "Replicas that may get new requests.", POOL),
    _gauge(
        "hlserve_router_table_info", "1 for the generation of the routing table in force.",
        Label("generation", "First 12 digits of the table's generation; the former one disappears.", cap=1),
    ),
    _gauge("hlserve_router_table_applied_timestamp_seconds", "When the table in force was applied, Unix time.", unit="seconds"),
    _counter(
        "hlserve_router_document_errors_total", "Documents that were refused; the last good one stays in force.",
        Label("document", "Which.", DOCUMENTS),
    ),
    _gauge(
        "hlserve_router_source_age_seconds", "Since the source was last read or heard of; what was known stays in force meanwhile.",
        Label("source", "Which; of several of a kind the one that is oldest.", SOURCES), unit="seconds",
    ),
    _counter(
        "hlserve_router_watch_restarts_total", "Watches of the Kubernetes API that ended before their time.",
        Label("source", "What was watched.", SOURCES),
        Label("cause", "closed: by the server; gone: it was too old; silent: nothing came; failed: anything else.",
              ("closed", "gone", "silent", "failed")),
    ),
    _gauge("hlserve_router_keys", "Credentials in the keyring in force."),
    _gauge("hlserve_router_limits_store_up", "1 while the shared store of limits answers, else 0; absent without one."),
    _gauge("hlserve_router_limits_routers", "Router processes that share limits, as last known."),
    _seconds("hlserve_router_limits_store_seconds", "Time of one message to the store of limits and back.", OVERHEAD_SECONDS),
    _counter("hlserve_router_limits_store_errors_total", "Messages to the store of limits that got no answer."),
    _counter("hlserve_router_limits_waits_total", "Requests that waited for a new lease of their client's limits.", CLASS),
    _counter("hlserve_router_internal_errors_total", "Faults of the router itself; each is logged with its traceback."),
)  # fmt: skip

ENGINE: Final = (
    _gauge(
        "hlserve_engine_stage_info", "1 for the stage that the batching is in, else 0.",
        Label("stage", "fill: prefill first until the batch is full; mixed: decode with a chunk; decode: decode alone.",
              ("fill", "mixed", "decode", "idle")),
    ),
    _counter("hlserve_engine_stage_flips_total", "Changes between the stages of two-stage mixing."),
    _gauge("hlserve_engine_token_budget", "Prompt tokens that the next step may take.", unit="tokens"),
    _gauge(
        "hlserve_engine_policy_info", "1 for the scheduling policy that is in effect, which the engine may choose itself under load.",
        Label("policy", "Policy in effect.", ("fcfs", "lpm", "dfs-weight", "lof", "random", "priority")),
    ),
    _gauge("hlserve_engine_throughput_mode", "1 if the engine runs in throughput mode, else 0."),
    _gauge("hlserve_engine_hooks_active", "Hooks of the plugin that are live; the process ends if one is not."),
    _gauge("hlserve_engine_max_running_requests", "Cap of the running batch in effect."),
    _gauge("hlserve_engine_draining", "1 while the engine is asked to take no new requests, else 0."),
    _gauge(
        "hlserve_engine_queue_reason_requests", "Waiting requests by what keeps the first of them out of the batch.",
        Label("reason", "What is short.", ("none", "slots", "admission", "kv", "budget", "drain")),
    ),
    _gauge("hlserve_engine_kv_admission_tokens", "Tokens that admitted requests may come to need in the KV pool.", unit="tokens"),
    _counter("hlserve_engine_retractions_total", "Running requests put back into the queue because the KV pool was full."),
    _counter(
        "hlserve_engine_aborts_total", "Requests ended on demand.",
        Label("stage", "Where the request was.", ("queue", "prefill", "decode")),
    ),
    _seconds("hlserve_engine_step_seconds", "Time of one scheduler step.", STEP_SECONDS),
)  # fmt: skip

OPERATOR: Final = (
    _counter(
        "hlserve_operator_reconciles_total", "Reconciles that ended, each exactly once.",
        RECONCILED,
        Label(
            "outcome", "How it ended: nothing to write; something written; the API server out of reach or busy; something failed.",
            ("unchanged", "changed", "retry", "failed"),
        ),
    ),
    _seconds(
        "hlserve_operator_reconcile_seconds", "Time of one reconcile.", LATENCY_SECONDS, RECONCILED,
    ),
    _gauge("hlserve_operator_queue_depth", "Objects that wait to be reconciled."),
    _counter("hlserve_operator_api_writes_total", "Writes to the Kubernetes API that succeeded."),
    _gauge("hlserve_operator_watch_age_seconds", "Since the watch brought an event, a bookmark or a list.",
           Label("resource", "Kind that is watched.", cap=16), unit="seconds"),
    _gauge("hlserve_operator_is_leader", "1 if this replica holds the Lease, else 0."),
    _gauge("hlserve_operator_pool_replicas", "Replicas of a pool, by state.", POOL,
           Label("state", "State of the replica.", ("desired", "ready", "updated", "draining"))),
    _gauge("hlserve_operator_pool_wanted_replicas", "Replicas that the load of a pool asks for; autoscalers read it.", POOL),
    _gauge("hlserve_operator_pool_condition", "1 if the condition is True, 0 if False, -1 if Unknown.", POOL,
           Label("condition", "Type of the condition.", cap=16)),
    _gauge("hlserve_operator_pool_slo_target_seconds", "Latency target of an Interactive pool.", POOL,
           Label("target", "Which.", ("ttft", "tpot")), unit="seconds"),
    _counter("hlserve_operator_api_errors_total", "Kubernetes API calls that failed, by status class.",
             Label("status", "Status class, or timeout.", ("4xx", "409", "429", "5xx", "timeout", "connection"))),
    _gauge("hlserve_operator_keyring_revision_timestamp_seconds", "When the keyring was last written, Unix time.", unit="seconds"),
)  # fmt: skip

BENCH: Final = (
    _counter("hlserve_bench_requests_total", "Requests that the load generator sent and saw end.",
             Label("arm", "Arm of the comparison.", cap=8), INTENT, OUTCOME),
    _seconds("hlserve_bench_ttft_seconds", "From the scheduled send time to the first token.", LATENCY_SECONDS,
             Label("arm", "Arm of the comparison.", cap=8), INTENT),
    _seconds("hlserve_bench_tpot_seconds", "Mean time per output token after the first, of one request.", TPOT_SECONDS,
             Label("arm", "Arm of the comparison.", cap=8), INTENT),
    _seconds("hlserve_bench_send_lag_seconds", "How late the load generator itself was.", OVERHEAD_SECONDS,
             Label("arm", "Arm of the comparison.", cap=8)),
)  # fmt: skip

METRICS: Final = (*ROUTER, *ENGINE, *OPERATOR, *BENCH)


def metric(name: str) -> Metric:
    """The declaration with this name. Raises KeyError for a name that is not declared."""
    for declared in METRICS:
        if declared.name == name:
            return declared
    raise KeyError(f"metric {name} is not declared in hlserve_api.metrics")
