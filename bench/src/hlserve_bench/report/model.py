"""The published schema of `report.json`. `python -m hlserve_bench.report.schema` writes it as JSON Schema.

Units are in the names. A value that was not measured is null, never 0.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Milliseconds = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Rate = Annotated[float, Field(ge=0)]


class Part(BaseModel):
    """Base of all parts: frozen, and unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Percentiles(Part):
    """Nearest-rank percentiles of one latency."""

    p50: Milliseconds = Field(description="Median.")
    p95: Milliseconds = Field(description="95th percentile.")
    p99: Milliseconds = Field(description="99th percentile.")
    samples: Count = Field(description="Requests that the percentiles rest on.")
    lower_bounds: Count = Field(
        description="How many of the samples had not ended when the run did and entered at their age then: with any, each "
        "percentile is a lower bound."
    )
    quantiles: list[Milliseconds] = Field(
        description="The 1 % to 100 % quantiles: the CDF.", min_length=100, max_length=100
    )


class ClassReport(Part):
    """One class of clients in one arm, within the measured window."""

    requests: Count = Field(
        description="Chat: every request scheduled in the window. Agents: every round that ended in the window."
    )
    ok: Count = Field(description="Of them, how many ended with the whole reply.")
    failed: Count = Field(description="Of them, how many ended in an error, a refusal included.")
    unfinished: Count = Field(
        description="Chat: of the requests, those not done when the drain ended. Agents: rounds still open when the window ended "
        "(not in `requests`)."
    )
    ttft_ms: Percentiles | None = Field(description="Scheduled time to first token. Null: no sample.")
    tpot_ms: Percentiles | None = Field(
        description="(last − first token) / (tokens − 1) of finished replies of two tokens or more. Null: no sample."
    )
    e2e_ms: Percentiles | None = Field(description="Scheduled time to the end of the reply. Null: no sample.")
    goodput_rps: Rate = Field(
        description="Requests a second that ended well and met the SLO, if the class has one (agents have none)."
    )
    goodput_share: Share | None = Field(
        description="Good requests over all requests of the window, the unfinished ones included. Null: no requests, or a class "
        "without SLO."
    )
    output_tokens_per_second: Rate = Field(description="Reply tokens that arrived in the window, a second.")
    input_tokens_per_second: Rate = Field(
        description="Prompt tokens of the requests whose first token came in the window, a second."
    )
    sessions_per_hour: Rate | None = Field(
        description="Agents: finished rounds, each counted as its fraction of its session, an hour. Null for chat."
    )
    prefix_hit_rate: Share | None = Field(
        description="Prompt tokens found in the prefix cache over all prompt tokens. Null: not reported."
    )
    requests_by_pool: dict[str, Count] = Field(description="Where the requests went. Key `none`: they reached no pool.")
    requests_by_outcome: dict[str, Count] = Field(description="Requests by how they ended.")
    spill_reasons: dict[str, Count] = Field(
        description="Why requests did not go to their class's first pool, or were answered by the router. Empty: all went there."
    )


class Classes(Part):
    """Both classes of one arm."""

    interactive: ClassReport = Field(description="Chat: open loop.")
    agent: ClassReport = Field(description="Agents: closed loop.")


class PoolReport(Part):
    """One pool of one arm, as it was configured."""

    mode: str = Field(description="Interactive or HumanLess.")
    replicas: Count = Field(description="Engines.")
    flags: list[str] = Field(description="What each engine was started with.")


class Series(Part):
    """Output tokens a second over the run, in bins."""

    bin_seconds: float = Field(gt=0, description="Width of a bin.")
    interactive: list[Rate] = Field(description="Chat, a value a bin from the start of the run.")
    agent: list[Rate] = Field(description="Agents.")


class ArmReport(Part):
    """One way to run the same load on the same number of GPUs."""

    name: str = Field(description="Name for people.")
    description: str = Field(description="What this arm is, in a sentence.")
    pools: dict[str, PoolReport] = Field(description="Pools by name.")
    classes: Classes = Field(description="Figures by class.")
    series: Series = Field(description="Throughput over time.")
    client_lag_ms: Percentiles | None = Field(
        description="How late the client itself sent. Null: virtual time has no lag."
    )


class Arms(Part):
    """The two arms of the comparison."""

    class_blind: ArmReport = Field(description="One shared pool with the largest settings that keep the SLO.")
    hlserve: ArmReport = Field(description="A pool for each class.")


class Slo(Part):
    """What a good chat request meets; both bounds at once."""

    ttft_ms: Milliseconds = Field(description="Bound on the time to the first token.")
    tpot_ms: Milliseconds = Field(description="Bound on the time per output token.")


class Window(Part):
    """Times of each arm's run, in seconds."""

    warmup_seconds: float = Field(ge=0, description="Not measured.")
    measured_seconds: float = Field(gt=0, description="The window.")
    drain_seconds: float = Field(ge=0, description="How long open chat requests may still end after the window.")


class Comparison(Part):
    """The two arms against each other."""

    agent_output_ratio: float | None = Field(
        ge=0, description="Agents' output tokens a second, HlServe over class-blind."
    )
    agent_sessions_ratio: float | None = Field(ge=0, description="Agents' sessions an hour, HlServe over class-blind.")
    chat_goodput_difference: float | None = Field(
        ge=-1, le=1, description="Chat goodput share, HlServe minus class-blind."
    )


class Check(Part):
    """One claim that was checked against the figures."""

    name: str = Field(description="Stable name.")
    passed: bool = Field(description="Whether it holds.")
    sentence: str = Field(description="The claim with its figures.")


class SeedResult(Part):
    """The comparison at one seed of a virtual run."""

    seed: int = Field(description="The seed.")
    workload_sha256: str = Field(description="Hash of the workload.")
    chat_goodput_class_blind: Share | None = Field(description="Chat goodput share, class-blind.")
    chat_goodput_hlserve: Share | None = Field(description="Chat goodput share, HlServe.")
    agent_output_ratio: float | None = Field(description="Agents' output tokens a second, HlServe over class-blind.")
    agent_sessions_ratio: float | None = Field(description="Agents' sessions an hour, HlServe over class-blind.")


class Manifest(Part):
    """What it takes to run this again."""

    created: str = Field(description="UTC time, ISO 8601.")
    clock: Literal["real", "virtual"] = Field(
        description="real: HTTP and processes. virtual: the same engines without a clock."
    )
    seed: int = Field(description="Seed of the load.")
    versions: dict[str, str] = Field(description="Versions of our distributions, of the SDK and of Python.")
    commit: str | None = Field(description="Commit of the source tree; null outside one.")
    uncommitted_changes: bool | None = Field(description="Whether the tree differed from the commit; null outside one.")
    device: str = Field(description="The modelled accelerator, and how many.")
    model: str = Field(description="The modelled model.")
    machine: str = Field(description="What the run itself ran on.")
    workload_sha256: str = Field(description="Hash of the workload: equal for both arms.")
    flags: dict[str, dict[str, list[str]]] | None = Field(
        default=None, description="Engine flags by arm and pool; null where they were not recorded here."
    )
    load: dict[str, float] = Field(description="The load's parameters.")
    rules: list[str] = Field(description="How the traces were cut and scaled.")
    traces: list[str] = Field(description="Traces, with licence and attribution.")


class Report(Part):
    """The whole report."""

    schema_version: Literal[1] = Field(default=1, description="Version of this schema.")
    basis: Literal["simulated"] = Field(default="simulated", description="All figures come from simulated engines.")
    statement: str = Field(description="What bought what, in a sentence.")
    slo: Slo = Field(description="Chat's SLO.")
    window: Window = Field(description="What was measured when.")
    arms: Arms = Field(description="Both arms.")
    comparison: Comparison = Field(description="The arms against each other.")
    seeds: list[SeedResult] = Field(
        description="Virtual runs of several seeds: one entry a seed. The arms above are the first's."
    )
    checks: list[Check] = Field(description="What had to hold.")
    manifest: Manifest = Field(description="How to run it again.")
