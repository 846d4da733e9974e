"""The command line: the SGLang flags that change what the simulator does, and a few of its own."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NoReturn

from hlserve_capacity.engine.types import SchedulePolicy

HEADER_OVERRIDES_VARIABLE = "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES"
PRIORITY_POLICIES = ("fcfs",)
POLICIES = tuple(policy.value for policy in SchedulePolicy)
HUMAN_LESS_POLICY = SchedulePolicy.LPM
PRIORITY_RETRACTION = "priority"
STOCK_LPM_MAX_WAITING = 128
"""Above this many waiting requests SGLang 0.5.23 stops matching prefixes and serves in order of arrival."""

WITHOUT_EFFECT: Mapping[str, bool] = MappingProxyType(
    {
        "--attention-backend": True,
        "--chat-template": True,
        "--cuda-graph-max-bs": True,
        "--disable-cuda-graph": False,
        "--disable-overlap-schedule": False,
        "--download-dir": True,
        "--dtype": True,
        "--kv-cache-dtype": True,
        "--load-format": True,
        "--log-level": True,
        "--log-level-http": True,
        "--log-requests": False,
        "--quantization": True,
        "--random-seed": True,
        "--reasoning-parser": True,
        "--revision": True,
        "--sampling-backend": True,
        "--schedule-conservativeness": True,
        "--skip-server-warmup": False,
        "--tokenizer-path": True,
        "--tool-call-parser": True,
        "--trust-remote-code": False,
        "--watchdog-timeout": True,
    }
)
"""SGLang flags of common launch lines that change nothing here, and whether they take a value. Taken, so that one manifest
serves both; `/server_info` lists those that were given."""


class FlagError(ValueError):
    """A command line that cannot be served. The message is one sentence that says what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """A parsed command line. Sizes are tokens, times seconds; None: not given, so a default is derived."""

    host: str
    port: int
    model_path: str
    served_model_name: str
    device: str
    model_shape: str
    tensor_parallel: int
    context_length: int
    max_total_tokens: int | None
    mem_fraction_static: float | None
    throughput_memfloor: float | None
    chunked_prefill_size: int | None
    max_prefill_tokens: int
    enable_mixed_chunk: bool
    schedule_policy: SchedulePolicy
    max_running_requests: int
    max_queued_requests: int | None
    enable_priority_scheduling: bool
    schedule_low_priority_values_first: bool
    abort_on_priority_when_disabled: bool
    default_priority_value: int
    retraction_policy: str
    enable_throughput_mode: bool
    enable_two_stage_mixing: bool
    disable_radix_cache: bool
    stream_response_default_include_usage: bool
    enable_cache_report: bool
    enable_metrics: bool
    enable_response_store: bool
    api_key: str | None
    admin_api_key: str | None
    header_overrides: bool
    kv_admission: str
    session_idle_seconds: float
    lpm_max_waiting: int | None
    time_scale: float
    seed: int
    state_file: str | None
    ignored: tuple[str, ...]
    """Flags that were given and have no effect in a simulation."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            unknown = message.removeprefix("unrecognized arguments: ")
            message = (
                f"{unknown} is no flag of the simulator: it knows only the SGLang flags that change scheduling, "
                "memory or the HTTP surface; leave it out or see --help for the list"
            )
        raise FlagError(message)


class _Ignored(argparse.Action):
    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        namespace.ignored = [*namespace.ignored, option]


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is too small: give at least 1")
    return value


def _chunk(text: str) -> int:
    value = int(text)
    if value == 0 or value < -1:
        raise argparse.ArgumentTypeError(f"{value} is no chunk size: give at least 1, or -1 for no chunking")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 < value <= 0.98:
        raise argparse.ArgumentTypeError(
            f"{value} is no share of the GPU's memory: give a number above 0 and up to 0.98"
        )
    return value


def _above_zero(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{value} is no factor: give a number above 0")
    return value


def build_parser() -> argparse.ArgumentParser:
    """The argument parser; abbreviations of flags are refused."""
    parser = _Parser(
        prog="hlserve-sim",
        description="A simulated SGLang 0.5.23 engine: its HTTP API over a modelled GPU, in real time.",
        allow_abbrev=False,
    )
    flag = parser.add_argument
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1")
    server.add_argument("--port", type=int, default=30000, help="0: a free port, printed when ready")
    server.add_argument("--model-path", "--model", default="simulated")
    server.add_argument("--served-model-name", help="default: the model path")
    server.add_argument("--api-key", help="clients must send it as a bearer token")
    server.add_argument("--admin-api-key", help="guards drain, aborts, cache flush and faults; default: --api-key")
    server.add_argument("--stream-response-default-include-usage", action="store_true")
    server.add_argument(
        "--enable-cache-report", action="store_true", help="usage says how many prompt tokens were cached"
    )
    server.add_argument("--enable-metrics", action="store_true", help="serve /metrics")
    server.add_argument("--enable-response-store", action="store_true", help="keep responses for GET and cancel")
    modelled = parser.add_argument_group("modelled hardware")
    modelled.add_argument("--device", default="A100-80G", help="a name of the device table")
    modelled.add_argument("--model-shape", default="llama-3.1-8b", help="a name of the model catalogue")
    modelled.add_argument("--tensor-parallel-size", "--tp-size", "--tp", dest="tp", type=_positive, default=1)
    modelled.add_argument("--pipeline-parallel-size", "--pp-size", "--pp", dest="pp", type=_positive, default=1)
    modelled.add_argument("--mem-fraction-static", type=_fraction)
    modelled.add_argument(
        "--throughput-memfloor", type=_fraction, help="least --mem-fraction-static in throughput mode"
    )
    modelled.add_argument("--max-total-tokens", type=_positive, help="KV pool; default: what fits beside the weights")
    modelled.add_argument("--context-length", type=_positive, default=131_072)
    flag("--chunked-prefill-size", type=_chunk, help="-1: no chunking; default: SGLang's for the device's memory")
    flag("--max-prefill-tokens", type=_positive, default=16_384)
    flag("--enable-mixed-chunk", action="store_true")
    flag("--schedule-policy", choices=POLICIES, help="default: fcfs, lpm in throughput mode")
    flag("--max-running-requests", type=_positive, default=64)
    flag("--max-queued-requests", type=_positive)
    flag("--enable-priority-scheduling", action="store_true")
    flag("--schedule-low-priority-values-first", action="store_true")
    flag("--abort-on-priority-when-disabled", action="store_true")
    flag("--default-priority-value", type=int, default=0)
    flag("--retraction-policy", choices=("length", PRIORITY_RETRACTION), default="length")
    flag("--enable-throughput-mode", action="store_true", help="HlServe's human-less mode")
    flag("--enable-two-stage-mixing", action="store_true", help="stop prefill while KV is scarce, with hysteresis")
    flag("--disable-radix-cache", action="store_true")
    for name, takes_value in WITHOUT_EFFECT.items():
        parser.add_argument(name, action=_Ignored, nargs=None if takes_value else 0, help=argparse.SUPPRESS)
    parser.set_defaults(ignored=[])
    own = parser.add_argument_group("simulation")
    own.add_argument(
        "--time-scale", type=_above_zero, default=1.0, help="engine seconds per second: 10 runs ten times faster"
    )
    own.add_argument("--seed", type=int, default=0, help="reply lengths and words follow from it and the request")
    own.add_argument(
        "--session-idle-timeout",
        type=_above_zero,
        default=5.0,
        help="seconds that KV-aware admission holds an idle session",
    )
    own.add_argument(
        "--kv-admission",
        choices=("reserve", "ratio"),
        default="reserve",
        help="ratio: admit by a new-token ratio and retract",
    )
    own.add_argument(
        "--lpm-max-waiting",
        type=_positive,
        help=f"above this many waiting requests LPM falls back to FCFS; default: {STOCK_LPM_MAX_WAITING} as in SGLang, "
        "never in throughput mode",
    )
    own.add_argument("--state-file", help="where to write the final state when the process ends")
    return parser


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> Flags:
    """The flags that `arguments` give. Raises FlagError with one sentence."""
    given = build_parser().parse_args(list(arguments))
    throughput: bool = given.enable_throughput_mode
    policy = SchedulePolicy(given.schedule_policy or (HUMAN_LESS_POLICY if throughput else SchedulePolicy.FCFS))
    if given.pp != 1:
        raise FlagError(
            f"--pp {given.pp}: pipeline parallelism is not modelled; use --tp to spread the model over GPUs"
        )
    if given.enable_priority_scheduling and policy.value not in PRIORITY_POLICIES:
        raise FlagError(
            f"To use priority scheduling, schedule_policy must be 'fcfs'. '{policy.value}' is not supported: "
            "drop --enable-priority-scheduling or give --schedule-policy fcfs"
        )
    if given.retraction_policy == PRIORITY_RETRACTION and not given.enable_priority_scheduling:
        raise FlagError("--retraction-policy priority requires --enable-priority-scheduling")
    if given.throughput_memfloor is not None and not throughput:
        raise FlagError("--throughput-memfloor has no effect without --enable-throughput-mode: give both or neither")
    if not 0 <= given.port <= 65_535:
        raise FlagError(f"--port {given.port} is no port: give 0 to 65535")
    return Flags(
        host=given.host,
        port=given.port,
        model_path=given.model_path,
        served_model_name=given.served_model_name or given.model_path,
        device=given.device,
        model_shape=given.model_shape,
        tensor_parallel=given.tp,
        context_length=given.context_length,
        max_total_tokens=given.max_total_tokens,
        mem_fraction_static=given.mem_fraction_static,
        throughput_memfloor=given.throughput_memfloor,
        chunked_prefill_size=given.chunked_prefill_size,
        max_prefill_tokens=given.max_prefill_tokens,
        enable_mixed_chunk=given.enable_mixed_chunk,
        schedule_policy=policy,
        max_running_requests=given.max_running_requests,
        max_queued_requests=given.max_queued_requests,
        enable_priority_scheduling=given.enable_priority_scheduling,
        schedule_low_priority_values_first=given.schedule_low_priority_values_first,
        abort_on_priority_when_disabled=given.abort_on_priority_when_disabled,
        default_priority_value=given.default_priority_value,
        retraction_policy=given.retraction_policy,
        enable_throughput_mode=throughput,
        enable_two_stage_mixing=given.enable_two_stage_mixing,
        disable_radix_cache=given.disable_radix_cache,
        stream_response_default_include_usage=given.stream_response_default_include_usage,
        enable_cache_report=given.enable_cache_report,
        enable_metrics=given.enable_metrics,
        enable_response_store=given.enable_response_store,
        api_key=given.api_key,
        admin_api_key=given.admin_api_key,
        header_overrides=environment.get(HEADER_OVERRIDES_VARIABLE, "1").lower() in ("1", "true", "yes", "y"),
        kv_admission=given.kv_admission,
        session_idle_seconds=given.session_idle_timeout,
        lpm_max_waiting=given.lpm_max_waiting or (None if throughput else STOCK_LPM_MAX_WAITING),
        time_scale=given.time_scale,
        seed=given.seed,
        state_file=given.state_file,
        ignored=tuple(given.ignored),
    )
