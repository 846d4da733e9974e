"""How a ServingPool's engines are started: image, settings that override derived ones, arguments, environment, TLS."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from hlserve_api.routing import PriorityOrder
from hlserve_api.v1alpha1.meta import (
    LIST_ATOMIC,
    LocalReference,
    Node,
    Rule,
    SecretKeyReference,
    int32,
    list_map,
)

OWNED_FLAGS: Final = (
    "--api-key",
    "--chunked-prefill-size",
    "--config",
    "--context-length",
    "--enable-metrics",
    "--enable-mixed-chunk",
    "--enable-priority-scheduling",
    "--enable-throughput-mode",
    "--host",
    "--max-prefill-tokens",
    "--max-queued-requests",
    "--max-running-requests",
    "--model",
    "--model-path",
    "--nnodes",
    "--node-rank",
    "--pipeline-parallel-size",
    "--port",
    "--pp-size",
    "--schedule-low-priority-values-first",
    "--schedule-policy",
    "--served-model-name",
    "--stream-response-default-include-usage",
    "--tensor-parallel-size",
    "--throughput-memfloor",
    "--tp-size",
)
"""Engine flags that the operator sets itself, in every spelling of SGLang 0.5.23; argparse takes any unique prefix too."""


def refuse_owned_flags() -> Rule:
    """The rule on `extraArgs`: an argument whose part before `=` is a prefix of an owned flag is refused.

    argparse accepts unique prefixes (`--max-run 4`) and `--flag=value`; a prefix that is not unique would stop the engine anyway.
    """
    flags = ", ".join(f"'{flag}'" for flag in OWNED_FLAGS)
    return Rule(
        f"!has(self.extraArgs) || self.extraArgs.all(a, !a.startsWith('--') || ![{flags}].exists(f, "
        "f.startsWith(a.split('=')[0].replace('_', '-'))))",
        "extraArgs must not hold a flag that the operator sets, nor an abbreviation of one: use the fields of model, "
        "parallelism and engine (maxRunningRequests, maxQueuedRequests, chunkedPrefillSize, contextLength, priorityOrder, "
        "apiKeySecretRef)",
        ".extraArgs",
    )


class ImagePullPolicy(StrEnum):
    """When the node pulls the image."""

    ALWAYS = "Always"
    IF_NOT_PRESENT = "IfNotPresent"
    NEVER = "Never"


class EnvValueSource(Node):
    """Where the value of a variable comes from."""

    secret_key_ref: SecretKeyReference = Field(description="Key of a Secret in the same namespace.")


class EnvVar(Node):
    """One environment variable of the engine."""

    rules = (
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            "give a variable either value or valueFrom, not both",
        ),
        Rule(
            "!self.name.matches('^(SGLANG_PLUGINS|SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES|PYTHONPATH|HLSERVE_.*)$')",
            "SGLANG_PLUGINS, SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES, PYTHONPATH and HLSERVE_* belong to the operator: "
            "remove the variable",
            ".name",
        ),
    )

    name: Annotated[str, StringConstraints(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        description="Name of the variable."
    )
    value: str | None = Field(
        default=None, description="Value as text; unset without `valueFrom`: empty.", max_length=4096
    )
    value_from: EnvValueSource | None = Field(default=None, description="Take the value from a Secret.")


class EngineTls(Node):
    """TLS between router and engine."""

    secret_name: str = Field(
        description="Secret of type kubernetes.io/tls with the engine's certificate and key.",
        min_length=1,
        max_length=253,
    )
    ca_secret_ref: SecretKeyReference | None = Field(
        default=None, description="CA that the router trusts for the engine; unset: `ca.crt` of `secretName`."
    )


class Engine(Node):
    """How the engines are started. A value that is set wins over the derived one and is reported with source User."""

    rules = (refuse_owned_flags(),)

    image: str | None = Field(
        default=None,
        description="Engine image; unset: the chart's. A digest is best: a tag is reported as FloatingImageTag.",
        min_length=1,
        max_length=512,
    )
    image_pull_policy: ImagePullPolicy | None = Field(
        default=None, description="When the node pulls the image; unset: Kubernetes' own rule."
    )
    image_pull_secrets: Annotated[tuple[LocalReference, ...], list_map("name")] = Field(
        default=(), description="Secrets for pulling the image.", max_length=8
    )
    max_running_requests: Annotated[int, int32(1, 65_536)] | None = Field(
        default=None, description="Requests in the running batch of a replica; unset: derived."
    )
    max_queued_requests: Annotated[int, int32(1, 1_000_000)] | None = Field(
        default=None, description="Requests that may wait inside a replica; unset: derived."
    )
    chunked_prefill_size: Annotated[int, int32(1, 1_048_576)] | None = Field(
        default=None, description="Prompt tokens of one step, in tokens; unset: derived."
    )
    context_length: Annotated[int, int32(1, 16_777_216)] | None = Field(
        default=None, description="Longest prompt plus reply, in tokens; unset: the model's own."
    )
    in_flight_tokens_per_replica: Annotated[int, int32(1, 2_000_000_000)] | None = Field(
        default=None, description="Tokens that the router keeps in flight per replica; unset: derived."
    )
    priority_order: PriorityOrder | None = Field(
        default=None,
        description="Which way the engine's priority counts; unset: HigherFirst in Interactive, None in HumanLess.",
    )
    api_key_secret_ref: SecretKeyReference | None = Field(
        default=None, description="Key that engines ask of the router; unset: none."
    )
    tls: EngineTls | None = Field(default=None, description="TLS between router and engine; unset: plain HTTP.")
    extra_args: Annotated[tuple[Annotated[str, StringConstraints(min_length=1, max_length=1024)], ...], LIST_ATOMIC] = (
        Field(
            default=(),
            description="Further arguments of the engine, before those that the operator sets. Flags of the operator are refused.",
            max_length=64,
        )
    )
    env: Annotated[tuple[EnvVar, ...], list_map("name")] = Field(
        default=(), description="Environment variables of the engine.", max_length=64
    )
