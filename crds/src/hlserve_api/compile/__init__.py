"""From custom resources and derived values to the router's documents. Pure: the operator and `hlserve up` use the same code.

`table` compiles pools and classes to the `RoutingTable`, `targets` says which pools a class may use and what does not fit together,
`keyring` compiles ClientKeys and Secrets to keyring shards, `canonical` gives documents their generation. Deriving the values
themselves belongs in `hlserve_capacity`; reading Secrets belongs to callers.
"""

from hlserve_api.compile.canonical import canonical_json, document_json
from hlserve_api.compile.keyring import (
    CompiledKeys,
    KeyProblem,
    KeyProblemReason,
    compile_keyrings,
    digest,
    fingerprint,
    shard_of,
)
from hlserve_api.compile.table import (
    CLASS_DEFAULTS,
    ClassDefaults,
    PoolRuntime,
    compile_class,
    compile_pool,
    compile_table,
)
from hlserve_api.compile.targets import (
    Overcommitment,
    TargetProblem,
    TargetProblemReason,
    mode_mismatches,
    overcommitments,
    resolve_targets,
    selects,
)

__all__ = [
    "CLASS_DEFAULTS",
    "ClassDefaults",
    "CompiledKeys",
    "KeyProblem",
    "KeyProblemReason",
    "Overcommitment",
    "PoolRuntime",
    "TargetProblem",
    "TargetProblemReason",
    "canonical_json",
    "compile_class",
    "compile_keyrings",
    "compile_pool",
    "compile_table",
    "digest",
    "document_json",
    "fingerprint",
    "mode_mismatches",
    "overcommitments",
    "resolve_targets",
    "selects",
    "shard_of",
]
