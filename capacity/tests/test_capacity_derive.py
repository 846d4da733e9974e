"""From a ServingPool to engine flags and router caps, with provenance."""

from typing import Any

import pytest

from hlserve_api.conditions import ConditionType, reasons_of
from hlserve_api.routing import PriorityOrder
from hlserve_api.v1alpha1 import ServingPool
from hlserve_api.v1alpha1.pool_status import DerivedSource
from hlserve_capacity import devices, shapes
from hlserve_capacity.calibration import CalibrationDocument, FitErrors, from_document
from hlserve_capacity.derive import derive, engine_args
from hlserve_capacity.derive_types import DerivedPool
from hlserve_capacity.roofline import Roofline
from hlserve_capacity.verdicts import SloReason

CHAT_TRAFFIC = {"inputTokensP95": 4000, "outputTokensP95": 800}
AGENT_TRAFFIC = {"inputTokensP95": 32_000, "outputTokensP95": 768}


def pool(
    mode: str = "Interactive",
    *,
    slo: dict[str, Any] | None = None,
    accelerator: str | None = "A100-80G",
    shape: dict[str, Any] | None = None,
    traffic: dict[str, Any] | None = None,
    **spec: Any,
) -> ServingPool:
    wanted: dict[str, Any] = {
        "mode": mode,
        "model": {
            "name": "llama",
            "source": {"uri": "file:///models/llama"},
            "shape": shape or {"name": "llama-3.1-8b"},
        },
        "traffic": traffic or CHAT_TRAFFIC,
        **spec,
    }
    if accelerator is not None:
        wanted["hardware"] = {"accelerator": accelerator}
    if mode == "Interactive":
        wanted["slo"] = slo or {"ttftMilliseconds": 1000, "tpotMilliseconds": 20}
    return ServingPool.model_validate(
        {
            "apiVersion": "serving.hlserve.io/v1alpha1",
            "kind": "ServingPool",
            "metadata": {"name": "pool"},
            "spec": wanted,
        }
    )


def sources(derived: DerivedPool) -> dict[str, DerivedSource]:
    return {value.name: value.source for value in derived.values}


def test_a_chat_pool_on_an_a100_runs_21_requests_with_chunks_of_128() -> None:
    derived = derive(pool())
    assert (derived.max_running_requests, derived.chunked_prefill_size) == (21, 128)
    assert derived.max_queued_requests == 1
    assert derived.max_in_flight == 22
    assert derived.queue_ttl_milliseconds is not None
    assert 300 < derived.queue_ttl_milliseconds < 500
    assert derived.grace_seconds == 180
    assert derived.priority_order is PriorityOrder.HIGHER_FIRST
    assert derived.context_length == 131_072
    assert derived.slo_attainable is True
    assert derived.calibrated


def test_an_agents_pool_on_an_a100_runs_11_requests_of_32k() -> None:
    derived = derive(pool("HumanLess", traffic=AGENT_TRAFFIC))
    assert (derived.max_running_requests, derived.chunked_prefill_size) == (11, 8192)
    assert (derived.max_queued_requests, derived.queue_ttl_milliseconds) == (None, None)
    assert derived.max_in_flight == 11 + 128, "the engine must see the rounds that it shall keep together"
    assert derived.in_flight_tokens is None
    assert derived.grace_seconds == 600
    assert derived.priority_order is PriorityOrder.NONE
    assert derived.slo_attainable is None


def test_every_value_says_where_it_comes_from() -> None:
    derived = derive(pool(engine={"maxRunningRequests": 5}))
    found = sources(derived)
    assert found["maxRunningRequests"] is DerivedSource.USER
    assert found["chunkedPrefillSize"] is DerivedSource.ESTIMATE
    assert found["graceSeconds"] is DerivedSource.DEFAULT
    assert all(value.why for value in derived.values)
    chunk = next(value for value in derived.values if value.name == "chunkedPrefillSize")
    assert "roofline estimate of llama-3.1-8b on 1 × A100-80G" in chunk.why


def test_values_fit_the_status_fields() -> None:
    for derived in (derive(pool()), derive(pool("HumanLess")), derive(pool(accelerator="TPU"))):
        assert len(derived.values) <= 32
        assert all(len(value.value) <= 63 and len(value.why) <= 512 for value in derived.values)
        assert len({value.name for value in derived.values}) == len(derived.values)


@pytest.mark.parametrize(
    ("field", "value", "attribute"),
    [
        ("maxRunningRequests", 7, "max_running_requests"),
        ("maxQueuedRequests", 9, "max_queued_requests"),
        ("chunkedPrefillSize", 96, "chunked_prefill_size"),
        ("contextLength", 4096, "context_length"),
        ("inFlightTokensPerReplica", 1234, "in_flight_tokens"),
        ("priorityOrder", "LowerFirst", "priority_order"),
    ],
)
@pytest.mark.parametrize("accelerator", ["A100-80G", None], ids=["estimated", "not calibrated"])
def test_a_users_value_wins(field: str, value: object, attribute: str, accelerator: str | None) -> None:
    derived = derive(pool(engine={field: value}, accelerator=accelerator))
    assert getattr(derived, attribute) == value
    assert DerivedSource.USER in sources(derived).values()


def test_a_users_batch_that_breaks_the_slo_is_kept_and_said() -> None:
    derived = derive(pool(engine={"maxRunningRequests": 60}))
    assert derived.max_running_requests == 60
    assert derived.slo_reason is SloReason.TPOT_INFEASIBLE
    assert "allow at most 22" in derived.slo_message or "allow at most 21" in derived.slo_message


def test_without_a_ttft_target_nothing_bounds_the_queue() -> None:
    derived = derive(pool(slo={"tpotMilliseconds": 20}))
    assert (derived.max_queued_requests, derived.queue_ttl_milliseconds, derived.max_in_flight) == (None, None, None)
    assert derived.grace_seconds == 179


@pytest.mark.parametrize(
    ("wanted", "grace_seconds", "source"),
    [
        (pool(traffic={**CHAT_TRAFFIC, "maxOutputTokens": 200_000}), 3600, DerivedSource.DEFAULT),
        (pool(drain={"timeoutSeconds": 5000}), 5000, DerivedSource.USER),
        (pool("HumanLess", drain={"timeoutSeconds": 0}), 0, DerivedSource.USER),
    ],
    ids=["no longer than an hour", "unless the user says so", "none at all in HumanLess"],
)
def test_the_grace_period_is_bounded_and_a_drain_timeout_wins(
    wanted: ServingPool, grace_seconds: int, source: DerivedSource
) -> None:
    derived = derive(wanted)
    assert derived.grace_seconds == grace_seconds
    assert sources(derived)["graceSeconds"] is source


def test_slo_verdicts_are_the_conditions_reasons() -> None:
    documented = {reason.reason.value for reason in reasons_of("ServingPool", ConditionType.SLO_ATTAINABLE)}
    assert set(SloReason) == documented


def test_without_a_tpot_target_memory_bounds_the_batch() -> None:
    derived = derive(pool(slo={"ttftMilliseconds": 30_000}, traffic=AGENT_TRAFFIC))
    assert derived.max_running_requests == 11
    assert derived.chunked_prefill_size == 8192
    assert derived.grace_seconds == 600


@pytest.mark.parametrize(("tensor", "running"), [(2, 256), (4, 512)])
def test_short_requests_fill_the_engines_largest_decode_graph(tensor: int, running: int) -> None:
    traffic = {"inputTokensP95": 300, "outputTokensP95": 200}
    derived = derive(pool(slo={"ttftMilliseconds": 10_000}, traffic=traffic, parallelism={"tensor": tensor}))
    assert derived.max_running_requests == running


def test_a_ttft_that_prefill_almost_takes_up_still_lets_one_request_wait() -> None:
    derived = derive(pool(slo={"ttftMilliseconds": 800, "tpotMilliseconds": 20}))
    queued = next(value for value in derived.values if value.name == "maxQueuedRequests")
    assert queued.value == "1"
    assert queued.why.startswith("(800 ms TTFT - 632 ms prefill) × 4.06 completions/s, at least 1")


def test_tokens_in_flight_are_nine_tenths_of_the_pool_and_a_queue_of_long_requests() -> None:
    derived = derive(pool())
    pool_tokens = Roofline(shapes.by_name("llama-3.1-8b"), devices.by_name("A100-80G")).pool_tokens
    assert derived.in_flight_tokens == int(0.9 * pool_tokens) + 1 * (4000 + 800)


@pytest.mark.parametrize(
    ("slo", "traffic", "running", "reason"),
    [
        ({"tpotMilliseconds": 10}, CHAT_TRAFFIC, 1, SloReason.TPOT_INFEASIBLE),
        ({"ttftMilliseconds": 1000}, AGENT_TRAFFIC, 11, SloReason.TTFT_INFEASIBLE),
    ],
    ids=["no batch keeps TPOT: one at a time", "no prefill keeps TTFT: as TPOT and memory allow"],
)
def test_a_slo_out_of_reach_is_served_and_said(
    slo: dict[str, Any], traffic: dict[str, Any], running: int, reason: SloReason
) -> None:
    derived = derive(pool(slo=slo, traffic=traffic))
    assert derived.max_running_requests == running
    assert derived.slo_attainable is False
    assert derived.slo_reason is reason
    assert derived.queue_ttl_milliseconds is None
    assert "out of reach" in derived.slo_message


@pytest.mark.parametrize(
    ("slo", "attainable"),
    [
        ({"tpotMilliseconds": 20, "enforcement": "Observe"}, True),
        ({"tpotMilliseconds": 5, "enforcement": "Observe"}, False),
    ],
    ids=["attainable", "out of reach"],
)
def test_observing_keeps_the_engines_defaults_and_reports(slo: dict[str, Any], attainable: bool) -> None:
    derived = derive(pool(slo=slo))
    assert (derived.max_running_requests, derived.chunked_prefill_size, derived.max_in_flight) == (None, 8192, None)
    assert derived.slo_attainable is attainable


@pytest.mark.parametrize(
    ("accelerator", "shape", "words"),
    [
        (None, None, "calibrationRef"),
        ("TPU-v9", None, "unknown device 'TPU-v9'"),
        ("H200", {"name": "gpt-9"}, "unknown model shape 'gpt-9'"),
        ("H100", {"name": "llama-3.1-70b"}, "do not fit"),
    ],
    ids=["no hardware", "unknown device", "unknown shape", "weights too large"],
)
@pytest.mark.parametrize("mode", ["Interactive", "HumanLess"])
def test_what_cannot_be_estimated_runs_on_defaults_and_says_why(
    mode: str, accelerator: str | None, shape: dict[str, Any] | None, words: str
) -> None:
    derived = derive(pool(mode, accelerator=accelerator, shape=shape))
    assert not derived.calibrated
    assert derived.max_running_requests is None
    assert derived.slo_reason is SloReason.UNKNOWN
    assert words in derived.slo_message
    assert set(sources(derived).values()) == {DerivedSource.DEFAULT}


def test_a_shape_given_by_numbers_derives_like_its_name() -> None:
    numbers = {
        "parameters": 8_030_257_152,
        "layers": 32,
        "hiddenSize": 4096,
        "heads": 32,
        "kvHeads": 8,
        "headDim": 128,
    }
    derived = derive(pool(shape=numbers))
    assert (derived.max_running_requests, derived.chunked_prefill_size) == (21, 128)


def test_an_unmodelled_tensor_parallelism_is_not_calibrated() -> None:
    derived = derive(pool(parallelism={"tensor": 3}))
    assert not derived.calibrated
    assert "use one of 1, 2, 4, 8" in derived.slo_message


def test_a_calibration_wins_over_the_estimate() -> None:
    document = CalibrationDocument(
        engine="sglang 0.5.23",
        device="A100-80G",
        model="llama-3.1-8b",
        t0_us=2000,
        weight_pass_us=8000,
        sequence_us=100,
        context_token_us=0,
        prefill_token_us=10,
        chunk_boundary_us=0,
        pool_tokens=400_000,
        fit_errors=FitErrors(median_percent=1, max_percent=3),
    )
    derived = derive(pool(slo={"tpotMilliseconds": 20}, traffic=CHAT_TRAFFIC), from_document(document))
    # 18 ms = 10 ms + B · (0.1 ms + 5 prompt tokens · 0.01 ms), so 53; 20 - 10 - 5.3 ms leave 470 prompt tokens beside 52 others.
    assert derived.max_running_requests == 53
    assert derived.chunked_prefill_size == 512
    assert sources(derived)["maxRunningRequests"] is DerivedSource.CALIBRATION


def args_of(wanted: ServingPool) -> list[str]:
    return list(engine_args(wanted, derive(wanted)))


def test_interactive_engines_get_their_flags() -> None:
    assert args_of(pool()) == [
        *("--served-model-name", "llama"),
        *("--max-running-requests", "21"),
        *("--max-queued-requests", "22"),
        *("--chunked-prefill-size", "128"),
        *("--enable-mixed-chunk", "--schedule-policy", "fcfs", "--enable-priority-scheduling"),
        *("--enable-metrics", "--stream-response-default-include-usage"),
    ]


def test_human_less_engines_get_theirs() -> None:
    assert args_of(pool("HumanLess", traffic=AGENT_TRAFFIC)) == [
        *("--served-model-name", "llama"),
        *("--max-running-requests", "11"),
        *("--chunked-prefill-size", "8192"),
        *("--enable-mixed-chunk", "--schedule-policy", "lpm", "--enable-throughput-mode"),
        *("--enable-metrics", "--stream-response-default-include-usage"),
    ]


def test_a_users_arguments_come_first_so_that_ours_win() -> None:
    args = args_of(
        pool(
            parallelism={"tensor": 2, "pipeline": 2},
            engine={"extraArgs": ["--log-level", "debug"], "priorityOrder": "LowerFirst", "contextLength": 9000},
        )
    )
    assert args[:2] == ["--log-level", "debug"]
    text = " ".join(args)
    assert "--tensor-parallel-size 2 --pipeline-parallel-size 2" in text
    assert "--enable-priority-scheduling --schedule-low-priority-values-first" in text
    assert "--context-length 9000" in text


def test_a_users_bound_of_the_engines_queue_reaches_it_as_it_is() -> None:
    args = args_of(pool(engine={"maxQueuedRequests": 9}))
    assert args[args.index("--max-queued-requests") + 1] == "9"


def test_priorities_can_be_switched_off() -> None:
    assert "--enable-priority-scheduling" not in args_of(pool(engine={"priorityOrder": "None"}))


def test_values_that_nobody_set_leave_the_engines_own() -> None:
    args = args_of(pool(accelerator=None))
    assert not {"--max-running-requests", "--max-queued-requests", "--chunked-prefill-size"} & set(args)
