"""The revision of a pool: a hash over versioned, named fields of what its pods are made from.

Hashing the rendered pod template instead would roll every GPU pod whenever a newer operator renders it differently. So the
fields are named here, a field at its empty value is left out, and a field that is added later is empty for old pools: their
revision stays. `SCHEMA` is only raised when all pods must roll.
"""

import hashlib
import json
from typing import Any

from hlserve_operator.state import EnginePlan

SCHEMA = 1
HASH_CHARACTERS = 8


def revision_fields(engine: EnginePlan) -> dict[str, Any]:
    """What the revision depends on: named, JSON-like, without empty values.

    Replicas, traffic hints, autoscaling, rollout and class settings are absent: changing them moves no pod. The secrets that a
    pool refers to are absent too, by content: only their names count.
    """
    spec = engine.pool.spec
    fields: dict[str, Any] = {
        "arguments": list(engine.arguments),
        "cache": spec.model.cache.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "engineApiKey": _reference(spec.engine.api_key_secret_ref),
        "env": [v.model_dump(mode="json", by_alias=True, exclude_defaults=True) for v in spec.engine.env],
        "graceSeconds": engine.grace_seconds,
        "image": engine.image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "imagePullSecrets": sorted(r.name for r in spec.engine.image_pull_secrets),
        "mode": spec.mode,
        "podPatch": spec.pod_patch,
        "parallelism": spec.parallelism.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "resources": spec.resources.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "scheduling": spec.scheduling.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "source": spec.model.source.model_dump(mode="json", by_alias=True, exclude_defaults=True),
        "startupSeconds": spec.startup.timeout_seconds,
        "tls": spec.engine.tls.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        if spec.engine.tls
        else None,
    }
    return {name: value for name, value in fields.items() if value not in (None, [], {}, "")}


def revision(engine: EnginePlan) -> str:
    """The first characters of the SHA-256 of the fields' canonical JSON, in lower-case hexadecimal."""
    content = json.dumps(
        {"schema": SCHEMA, **revision_fields(engine)}, sort_keys=True, separators=(",", ":"), ensure_ascii=False
    )
    return hashlib.sha256(content.encode()).hexdigest()[:HASH_CHARACTERS]


def _reference(reference: Any) -> dict[str, str] | None:
    return None if reference is None else {"name": reference.name, "key": reference.key}
