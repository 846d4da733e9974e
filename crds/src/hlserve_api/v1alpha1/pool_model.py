"""What a ServingPool serves and on what: model, source, cache, shape, and the goals and load that settings are derived from."""

from enum import IntEnum, StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from hlserve_api.v1alpha1.meta import (
    LIST_SET,
    ModelName,
    Node,
    ObjectName,
    Quantity,
    Rule,
    SecretKeyReference,
    int32,
)


class ModelSource(Node):
    """Where the model's files come from."""

    rules = (
        Rule(
            "self.uri.matches('^(hf|pvc|file)://[^ ]+$')",
            "the model source must start with hf://, pvc:// or file://; copy a model from elsewhere into a "
            "PersistentVolumeClaim and name that as pvc://CLAIM/PATH",
            ".uri",
        ),
        Rule(
            "!self.uri.startsWith('hf://') || has(self.revision) || "
            "(has(self.allowFloatingRevision) && self.allowFloatingRevision)",
            "set revision to a commit of the hf:// repository, so that every replica loads the same files; or set "
            "allowFloatingRevision: true",
        ),
    )

    uri: str = Field(
        description="`hf://OWNER/REPOSITORY` (downloaded by the engine), `pvc://CLAIM/PATH` or `file:///PATH` (mounted).",
        min_length=1,
        max_length=512,
    )
    revision: str | None = Field(
        default=None,
        description="Commit, tag or branch of an `hf://` repository. A commit never moves.",
        min_length=1,
        max_length=128,
    )
    allow_floating_revision: bool = Field(
        default=False,
        description="Accept an `hf://` source without a revision: replicas may then load different files.",
    )
    token_secret_ref: SecretKeyReference | None = Field(
        default=None,
        description="Secret with the download token. A changed token rolls only pods that have not loaded yet.",
    )


class CacheType(StrEnum):
    """Where downloaded model files are kept."""

    EMPTY_DIR = "EmptyDir"
    PERSISTENT_VOLUME_CLAIM = "PersistentVolumeClaim"
    HOST_PATH = "HostPath"


class ModelCache(Node):
    """Volume for model files."""

    rules = (
        Rule(
            "(has(self.type) && self.type == 'PersistentVolumeClaim') == has(self.claimName)",
            "set claimName if, and only if, the cache type is PersistentVolumeClaim",
            ".claimName",
        ),
        Rule(
            "(has(self.type) && self.type == 'HostPath') == has(self.hostPath)",
            "set hostPath if, and only if, the cache type is HostPath",
            ".hostPath",
        ),
    )

    type: CacheType = Field(default=CacheType.EMPTY_DIR, description="Kind of volume.")
    claim_name: ObjectName | None = Field(
        default=None, description="PersistentVolumeClaim to mount, for type PersistentVolumeClaim."
    )
    host_path: Annotated[str, StringConstraints(min_length=1, max_length=512, pattern=r"^/")] | None = Field(
        default=None, description="Absolute directory on the node, for type HostPath."
    )
    size_limit: Quantity | None = Field(default=None, description="Bound of an EmptyDir; unset: none.")


class ModelShape(Node):
    """Size of the model's parts, from which step times are estimated until the pool is calibrated."""

    rules = (
        Rule(
            "has(self.name) != has(self.parameters)",
            "give either the catalogue name of the model's shape or its numbers, not both",
        ),
        Rule(
            "!has(self.parameters) || (has(self.layers) && has(self.hiddenSize) && has(self.heads) && "
            "has(self.kvHeads) && has(self.headDim))",
            "a shape given by numbers needs parameters, layers, hiddenSize, heads, kvHeads and headDim",
        ),
    )

    name: str | None = Field(
        default=None,
        description="Catalogue name, such as `llama-3.1-8b`.",
        min_length=1,
        max_length=63,
    )
    parameters: int | None = Field(
        default=None, description="Parameters that one token passes, a count.", ge=1, le=10**14
    )
    layers: Annotated[int, int32(1, 1024)] | None = Field(default=None, description="Transformer layers.")
    hidden_size: Annotated[int, int32(1, 1_048_576)] | None = Field(default=None, description="Width of the model.")
    heads: Annotated[int, int32(1, 4096)] | None = Field(default=None, description="Attention heads.")
    kv_heads: Annotated[int, int32(1, 4096)] | None = Field(default=None, description="Key and value heads.")
    head_dim: Annotated[int, int32(1, 4096)] | None = Field(default=None, description="Width of one head.")
    bytes_per_parameter: float = Field(
        default=2.0, description="Bytes of one weight: 2 for BF16, 1 for FP8, 0.5 for 4 bits.", ge=0.125, le=8.0
    )


class PoolModel(Node):
    """The model that the pool serves."""

    name: Annotated[
        ModelName,
        Rule(
            "self == oldSelf",
            "model.name is what clients ask for and cannot change; make a new pool, or add the new name to aliases",
        ),
    ] = Field(description="Served model name: what clients put in `model`. Cannot change.")
    aliases: Annotated[tuple[ModelName, ...], LIST_SET] = Field(
        default=(), description="Other names that clients may use for the model.", max_length=16
    )
    source: ModelSource = Field(description="Where the model's files come from.")
    cache: ModelCache = Field(default=ModelCache(), description="Volume for model files.")
    shape: ModelShape | None = Field(
        default=None,
        description="Size of the model's parts. With `hardware.accelerator` it allows an estimate; without both, and "
        "without a calibration, settings keep the engine's defaults.",
    )


class Hardware(Node):
    """What the engines run on."""

    accelerator: str = Field(
        description="Name in the device table, such as `H200` or `A100-80G`.",
        min_length=1,
        max_length=63,
    )


class Percentile(IntEnum):
    """Percentile that latency targets are meant at."""

    P50 = 50
    P90 = 90
    P95 = 95
    P99 = 99


class SloEnforcement(StrEnum):
    """Whether derived settings keep the SLO (Enforce) or it is only reported (Observe)."""

    ENFORCE = "Enforce"
    OBSERVE = "Observe"


class Slo(Node):
    """Latency targets of an Interactive pool."""

    rules = (
        Rule(
            "has(self.ttftMilliseconds) || has(self.tpotMilliseconds)",
            "set ttftMilliseconds or tpotMilliseconds: an SLO needs at least one target",
        ),
    )

    ttft_milliseconds: Annotated[int, int32(1, 600_000)] | None = Field(
        default=None, description="Time to first token, in ms; unset: no target, and no bound of the queue from it."
    )
    tpot_milliseconds: Annotated[int, int32(1, 10_000)] | None = Field(
        default=None, description="Time per output token, in ms; unset: no target, and no ceiling of requests from it."
    )
    percentile: Percentile = Field(
        default=Percentile.P95, description="Percentile of requests that must meet the targets: 50, 90, 95 or 99."
    )
    enforcement: SloEnforcement = Field(
        default=SloEnforcement.ENFORCE,
        description="Enforce: settings are derived to keep the SLO. Observe: engine defaults, the SLO is only reported.",
    )


class Throughput(Node):
    """Goals of a HumanLess pool. No schema defaults here: an Interactive pool must be able to leave the object out."""

    request_timeout_seconds: Annotated[int, int32(1, 604_800)] | None = Field(
        default=None,
        description="Default of `timeouts.totalSeconds` of the classes that use the pool; unset: the class's intent decides.",
    )
    preemptible: bool | None = Field(
        default=None, description="Whether the pods may be evicted at any time; unset: true, and no disruption budget."
    )
    drain_backlog_target_seconds: Annotated[int, int32(1, 604_800)] | None = Field(
        default=None, description="Time in which the backlog should be worked off, the scaling goal; unset: 900."
    )


class Traffic(Node):
    """Lengths of the requests, for derivation until the pool is calibrated."""

    input_tokens_p95: Annotated[int, int32(1, 10_000_000)] = Field(
        default=4096, alias="inputTokensP95", description="95th percentile of prompt lengths, in tokens."
    )
    output_tokens_p95: Annotated[int, int32(1, 10_000_000)] = Field(
        default=1024, alias="outputTokensP95", description="95th percentile of reply lengths, in tokens."
    )
    max_output_tokens: Annotated[int, int32(1, 10_000_000)] = Field(
        default=8192, description="Longest reply, in tokens; sets the grace period of an Interactive pool."
    )
