import pytest

from hlserve_capacity.engine.types import SchedulePolicy
from hlserve_sim.engine_setup import resolve
from hlserve_sim.flags import FlagError, parse

REFUSED = [
    ("an unknown flag", ["--enable-dp-attention"], "--enable-dp-attention is no flag of the simulator"),
    ("an abbreviated flag", ["--sched", "lpm"], "--sched lpm is no flag of the simulator"),
    (
        "LPM with priorities",
        ["--schedule-policy", "lpm", "--enable-priority-scheduling"],
        "schedule_policy must be 'fcfs'",
    ),
    (
        "throughput mode's LPM with priorities",
        ["--enable-throughput-mode", "--enable-priority-scheduling"],
        "schedule_policy must be 'fcfs'",
    ),
    ("priority retraction alone", ["--retraction-policy", "priority"], "requires --enable-priority-scheduling"),
    ("a memory floor without its mode", ["--throughput-memfloor", "0.9"], "without --enable-throughput-mode"),
    ("a chunk of nothing", ["--chunked-prefill-size", "0"], "give at least 1, or -1"),
    ("a policy that is not simulated", ["--schedule-policy", "hrrn"], "invalid choice"),
    ("a time that stands still", ["--time-scale", "0"], "give a number above 0"),
    ("more memory than there is", ["--mem-fraction-static", "1.2"], "share of the GPU's memory"),
    ("several pipeline stages", ["--pp", "2"], "pipeline parallelism is not modelled"),
    ("a port that is none", ["--port", "70000"], "give 0 to 65535"),
]
UNFIT = [
    ("an unknown GPU", ["--device", "A1000"], "unknown device 'A1000'"),
    ("an unknown model", ["--model-shape", "llama-9"], "unknown model shape 'llama-9'"),
    ("a model larger than its GPU", ["--model-shape", "llama-3.1-70b"], "does not fit on 1 x A100-80G"),
    ("an odd parallelism", ["--tp", "3"], "use one of 1, 2, 4, 8"),
]


@pytest.mark.parametrize(("arguments", "sentence"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_bad_command_line_is_refused_with_a_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(FlagError, match=sentence.replace("(", r"\(")):
        parse(arguments)


@pytest.mark.parametrize(("arguments", "sentence"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT])
def test_an_engine_that_cannot_exist_is_refused_with_a_sentence(arguments: list[str], sentence: str) -> None:
    with pytest.raises(FlagError, match=sentence):
        resolve(parse(arguments))


def test_throughput_mode_lifts_the_scheduling_bounds_and_keeps_the_memory_ones() -> None:
    arguments = ["--enable-throughput-mode", "--chunked-prefill-size", "8192", "--max-running-requests", "11"]
    setup = resolve(parse(arguments))
    assert setup.config.throughput_mode
    assert setup.config.kv_aware_admission
    assert setup.config.mixed_chunk
    assert setup.config.schedule_policy is SchedulePolicy.LPM
    assert setup.config.max_running_requests == 11
    caps = {cap.name: cap.value for cap in setup.caps}
    assert caps["chunked_prefill_size"] is None
    assert caps["max_total_num_tokens"] == setup.config.pool_tokens


def test_an_interactive_engine_keeps_its_chunk_and_order() -> None:
    config = resolve(
        parse(["--chunked-prefill-size", "128", "--enable-mixed-chunk", "--max-running-requests", "21"])
    ).config
    assert (config.chunked_prefill_size, config.mixed_chunk, config.max_running_requests) == (128, True, 21)
    assert config.schedule_policy is SchedulePolicy.FCFS
    assert not config.kv_aware_admission


def test_without_chunking_mixing_is_off_as_in_sglang() -> None:
    config = resolve(parse(["--chunked-prefill-size", "-1", "--enable-mixed-chunk"])).config
    assert config.chunked_prefill_size is None
    assert not config.mixed_chunk


def test_the_pool_follows_the_memory_fraction_and_its_floor() -> None:
    automatic = resolve(parse([]))
    assert automatic.config.pool_tokens == automatic.cost.pool_tokens
    smaller = resolve(parse(["--mem-fraction-static", "0.5"])).config.pool_tokens
    floor = resolve(parse(["--enable-throughput-mode", "--throughput-memfloor", "0.95"])).config.pool_tokens
    assert smaller < automatic.config.pool_tokens < floor
    given = resolve(
        parse(["--enable-throughput-mode", "--throughput-memfloor", "0.95", "--mem-fraction-static", "0.5"])
    )
    assert given.config.pool_tokens == smaller


def test_priorities_decide_on_retraction_only_when_asked() -> None:
    by_length = resolve(parse(["--enable-priority-scheduling", "--retraction-policy", "length"])).config
    by_priority = resolve(parse(["--enable-priority-scheduling", "--retraction-policy", "priority"])).config
    assert (by_length.priority_scheduling, by_length.priority_retraction) == (True, False)
    assert by_priority.priority_retraction


@pytest.mark.parametrize(
    ("arguments", "bound"),
    [
        (["--schedule-policy", "lpm"], 128),
        (["--schedule-policy", "lpm", "--lpm-max-waiting", "5"], 5),
        (["--enable-throughput-mode"], None),
    ],
    ids=["stock", "given", "throughput mode"],
)
def test_lpm_gives_up_above_a_number_of_waiting_requests_as_in_sglang(arguments: list[str], bound: int | None) -> None:
    assert resolve(parse(arguments)).config.lpm_max_waiting == bound


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("true", True), ("0", False), ("", False)])
def test_header_overrides_follow_sglangs_variable(value: str, expected: bool) -> None:
    assert parse([], {"SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES": value}).header_overrides is expected
    assert parse([], {}).header_overrides


def test_common_flags_that_change_nothing_here_are_taken_and_named() -> None:
    flags = parse(["--trust-remote-code", "--tool-call-parser", "qwen25", "--dtype=bfloat16", "--seed", "3"])
    assert flags.ignored == ("--trust-remote-code", "--tool-call-parser", "--dtype")
    assert flags.seed == 3
    assert parse([]).ignored == ()
