"""Each CEL rule's mutation of a valid object, and what is near a rule's edge: for our own checker and for a real API server."""

from dataclasses import dataclass
from typing import Any

from hlserve_api.testing.manifests import (
    a_client_key,
    a_human_less_pool,
    a_workload_class,
    an_interactive_pool,
    changed,
    without,
)

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Refused:
    """A valid object with one thing changed, and where the one complaint must stand and what it must say."""

    id: str
    given: Manifest
    want_path: str
    want_message: str
    old: Manifest | None = None


@dataclass(frozen=True)
class Accepted:
    """An object near a rule's edge that must pass."""

    id: str
    given: Manifest
    old: Manifest | None = None


CHAT, AGENTS, CLASS, KEY = an_interactive_pool(), a_human_less_pool(), a_workload_class(), a_client_key()
SHAPE = {"parameters": 8_030_000_000, "layers": 32, "hiddenSize": 4096, "heads": 32, "kvHeads": 8, "headDim": 128}
SPILLING = changed(CLASS, "spec.spill.enterQueueWaitMilliseconds", 1000)
FROM_SECRET = {"secretKeyRef": {"name": "hf", "key": "token"}}
OTHER_TARGET = {"name": "spill", "poolRef": {"name": "chat"}, "role": "Spill"}


def _scaled(pool: Manifest, **autoscaling: object) -> Manifest:
    return changed(pool, "spec.autoscaling", {"maxReplicas": 4, **autoscaling})


def _env(**variable: object) -> Manifest:
    return changed(AGENTS, "spec.engine.env", [variable])


def with_args(*arguments: str) -> Manifest:
    return changed(AGENTS, "spec.engine.extraArgs", list(arguments))


def _valid_between(start: str, end: str) -> Manifest:
    return changed(changed(KEY, "spec.credentials.0.notBefore", start), "spec.credentials.0.notAfter", end)


REFUSED = (
    Refused("an Interactive pool without slo", without(CHAT, "spec.slo"), "spec.slo", "an Interactive pool needs slo"),
    Refused("an Interactive pool with throughput", changed(CHAT, "spec.throughput", {}), "spec.throughput", "throughput is for HumanLess"),
    Refused("a HumanLess pool with slo", changed(AGENTS, "spec.slo.tpotMilliseconds", 20), "spec.slo", "has no latency targets"),
    Refused(
        "priorities in a HumanLess pool", changed(AGENTS, "spec.engine.priorityOrder", "HigherFirst"), "spec.engine.priorityOrder",
        "prefix-aware scheduling",
    ),
    Refused("an Interactive pool that may go to zero", _scaled(CHAT, minReplicas=0), "spec.autoscaling.minReplicas", "scales to zero"),
    Refused("a name that starts with a digit", an_interactive_pool("4chat"), "", "must start with a letter"),
    Refused("a pool name of 41 characters", an_interactive_pool("a" * 41), "", "at most 40 characters"),
    Refused("an slo without targets", changed(CHAT, "spec.slo", {"percentile": 99}), "spec.slo", "an SLO needs at least one target"),
    Refused(
        "another model name", changed(CHAT, "spec.model.name", "other"), "spec.model.name", "cannot change", old=CHAT,
    ),
    Refused("a source in S3", changed(CHAT, "spec.model.source.uri", "s3://bucket/model"), "spec.model.source.uri", "must start with hf://"),
    Refused("a repository without revision", without(CHAT, "spec.model.source.revision"), "spec.model.source", "set revision to a commit"),
    Refused(
        "a claim cache without claim", changed(CHAT, "spec.model.cache.type", "PersistentVolumeClaim"), "spec.model.cache.claimName",
        "set claimName if, and only if",
    ),
    Refused(
        "a host cache without path", changed(CHAT, "spec.model.cache.type", "HostPath"), "spec.model.cache.hostPath",
        "set hostPath if, and only if",
    ),
    Refused(
        "a shape by name and by numbers", changed(CHAT, "spec.model.shape", {"name": "llama-3.1-8b", **SHAPE}), "spec.model.shape",
        "either the catalogue name",
    ),
    Refused(
        "a shape with half its numbers", changed(CHAT, "spec.model.shape", {"parameters": 8_030_000_000, "layers": 32}), "spec.model.shape",
        "a shape given by numbers needs",
    ),
    Refused("an owned flag in extraArgs", with_args("--tp", "2"), "spec.engine.extraArgs", "must not hold a flag that the operator sets"),
    Refused(
        "a variable with two values", _env(name="A", value="1", valueFrom=FROM_SECRET), "spec.engine.env[0]",
        "either value or valueFrom",
    ),
    Refused("the operator's variable", _env(name="HLSERVE_MODE", value="1"), "spec.engine.env[0].name", "belong to the operator"),
    Refused("three GPUs on two nodes", changed(CHAT, "spec.parallelism", {"tensor": 3, "nodes": 2}), "spec.parallelism", "of nodes"),
    Refused(
        "more replicas at least than at most", _scaled(CHAT, minReplicas=5), "spec.autoscaling.minReplicas", "above maxReplicas",
    ),
    Refused("an HPA to zero", _scaled(AGENTS, provider="HPA", minReplicas=0), "spec.autoscaling.minReplicas", "cannot scale to zero"),
    Refused("a class name with a dot", a_workload_class("agent.v2"), "", "at most 63 lower-case letters"),
    Refused("a class name of 64 characters", a_workload_class("a" * 64), "", "at most 63 lower-case letters"),
    Refused(
        "only Spill targets", changed(CLASS, "spec.targets", [OTHER_TARGET]), "spec.targets", "must have role Primary",
    ),
    Refused("a target without a pool", changed(CLASS, "spec.targets", [{"name": "main"}]), "spec.targets[0]", "give exactly one"),
    Refused(
        "a spill that leaves above where it enters", changed(SPILLING, "spec.spill.leaveQueueWaitMilliseconds", 1000),
        "spec.spill.leaveQueueWaitMilliseconds", "must be above leaveQueueWaitMilliseconds",
    ),
    Refused(
        "a minimum above the maximum", changed(CLASS, "spec.share", {"minPercent": 60, "maxPercent": 50}), "spec.share.minPercent",
        "must not be above maxPercent",
    ),
    Refused(
        "a key that ends before it starts, across time zones", _valid_between("2027-01-01T00:00:00Z", "2027-01-01T00:30:00+01:00"),
        "spec.credentials[0].notAfter", "must be earlier than notAfter",
    ),
)  # fmt: skip

ACCEPTED = (
    Accepted("the Interactive pool", CHAT),
    Accepted("the HumanLess pool", AGENTS),
    Accepted("the class", CLASS),
    Accepted("the key", KEY),
    Accepted("a pool name of 40 characters", an_interactive_pool("a" * 40)),
    Accepted("a class name of 63 characters", a_workload_class("a" * 63)),
    Accepted("throughput in a HumanLess pool", changed(AGENTS, "spec.throughput", {})),
    Accepted("priorityOrder None in a HumanLess pool", changed(AGENTS, "spec.engine.priorityOrder", "None")),
    Accepted("priorities in an Interactive pool", changed(CHAT, "spec.engine.priorityOrder", "LowerFirst")),
    Accepted("an Interactive pool that may start cold", _scaled(CHAT, minReplicas=0, allowColdStart=True)),
    Accepted("a HumanLess pool at zero with KEDA", _scaled(AGENTS, minReplicas=0)),
    Accepted("an HPA with one replica at least", _scaled(CHAT, provider="HPA")),
    Accepted("an slo with one target", without(CHAT, "spec.slo.ttftMilliseconds")),
    Accepted("the same model name", changed(CHAT, "spec.slo.tpotMilliseconds", 30), old=CHAT),
    Accepted("a mounted model without revision", changed(CHAT, "spec.model.source", {"uri": "pvc://models/llama"})),
    Accepted("a floating revision that is meant", changed(CHAT, "spec.model.source", {"uri": "hf://a/b", "allowFloatingRevision": True})),
    Accepted("a claim cache", changed(CHAT, "spec.model.cache", {"type": "PersistentVolumeClaim", "claimName": "models"})),
    Accepted("a host cache", changed(CHAT, "spec.model.cache", {"type": "HostPath", "hostPath": "/var/models"})),
    Accepted("a shape by name", changed(CHAT, "spec.model.shape.name", "llama-3.1-8b")),
    Accepted("a shape by numbers", changed(CHAT, "spec.model.shape", SHAPE)),
    Accepted("four GPUs on two nodes", changed(CHAT, "spec.parallelism", {"tensor": 4, "nodes": 2})),
    Accepted("a variable from a Secret", _env(name="HF_TOKEN", valueFrom=FROM_SECRET)),
    Accepted("flags of the user's own", with_args("--dtype", "bfloat16", "--quantization=fp8", "--enable-metrics-for-all-schedulers")),
    Accepted("a value that looks like no flag", with_args("--tool-call-parser", "model")),
    Accepted("pools by label", changed(CLASS, "spec.targets", [{"name": "all", "poolSelector": {"matchLabels": {"gpu": "h200"}}}])),
    Accepted("a primary and a spill target", changed(CLASS, "spec.targets", [*CLASS["spec"]["targets"], OTHER_TARGET])),
    Accepted("equal shares", changed(CLASS, "spec.share", {"minPercent": 50, "maxPercent": 50})),
    Accepted("a key that starts in another time zone", _valid_between("2027-01-01T00:30:00+01:00", "2027-01-01T00:00:00Z")),
    Accepted("a credential whose Secret will be made", without(KEY, "spec.credentials.0.secretRef")),
)  # fmt: skip
