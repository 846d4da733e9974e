"""What a request will hold before it has run: tokens of its prompt and reply, and how long it may wait. Pure."""

from collections.abc import Iterable
from typing import Final

from hlserve_api.routing import ClassRoute, FairnessBy, KeyEntry, PoolRoute, TargetRole
from hlserve_router.state import BodyFacts, Route

OUTPUT_TOKENS_DEFAULT: Final = 512
OUTPUT_TOKENS_CAP: Final = 4096
"""What a reply counts as in estimates: its limit, but not the ceiling that agents send and almost no reply reaches."""


def prompt_tokens(facts: BodyFacts, bytes_per_token: float) -> int:
    """Tokens of the prompt: exact where the client sent token ids."""
    exact = facts.exact_prompt_tokens
    return exact if exact is not None else int(facts.prompt_bytes / bytes_per_token)


def output_tokens(facts: BodyFacts, route: Route) -> int:
    """Tokens of the reply, all choices together; 0 on a route that generates none."""
    if not route.generates:
        return 0
    limit = facts.output_limit_tokens
    return (OUTPUT_TOKENS_DEFAULT if limit is None else min(limit, OUTPUT_TOKENS_CAP)) * facts.choices


def queue_ttl_seconds(route: ClassRoute, serving: Iterable[PoolRoute]) -> float:
    """How long a request may wait in its class's queue: the shortest of what the class and its own pools allow.

    A pool that the class only spills into has no say: batch work does not wait as short as chat does.
    """
    spill = {target.pool for target in route.targets if target.role is TargetRole.SPILL}
    own = [pool.queue_ttl_milliseconds for pool in serving if pool.name not in spill]
    return min((route.queue.ttl_milliseconds, *(ttl for ttl in own if ttl is not None))) / 1000


def flow_of(key: KeyEntry, route: ClassRoute) -> str:
    """Between whom the class shares its queue: the client, or its tenant."""
    return key.tenant if route.fairness is FairnessBy.TENANT and key.tenant else key.client
