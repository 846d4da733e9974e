"""Step 3: which WorkloadClass a request runs in. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute, HeaderOverride, Intent, KeyEntry
from hlserve_router.errors import Refusal


class Rule(StrEnum):
    """What decided the class."""

    KEY = "key"
    HEADER = "header"
    CLAMPED = "clamped"
    DEMOTED = "demoted"


@dataclass(frozen=True, slots=True)
class Classified:
    """The class, and the rule that decided it."""

    route: ClassRoute
    rule: Rule


def classify(
    key: KeyEntry, asked: str | None, classes: Mapping[str, ClassRoute], *, demoted: bool = False
) -> Classified:
    """The class of a request of `key` whose `x-hlserve-class` is `asked`.

    Raises Refusal: class_missing (503), unknown_class (400), class_not_allowed (403).
    """
    own = classes.get(key.class_name)
    if own is None:
        raise Refusal(
            Reason.CLASS_MISSING,
            f"The class {key.class_name!r} of this key is not there: the platform team must create the WorkloadClass.",
        )
    if demoted:
        return Classified(lowest(key, own, classes), Rule.DEMOTED)
    if asked is None or asked == own.name:
        return Classified(own, Rule.KEY)
    wanted = classes.get(asked)
    if wanted is None:
        raise Refusal(
            Reason.UNKNOWN_CLASS,
            f"There is no class {asked[:63]!r}: leave x-hlserve-class out, or name an existing class.",
            param="x-hlserve-class",
        )
    if wanted.intent.rank <= own.intent.rank:
        return Classified(own, Rule.CLAMPED)
    if own.header_override is HeaderOverride.DENY:
        raise Refusal(
            Reason.CLASS_NOT_ALLOWED,
            f"The class {own.name!r} does not let requests choose another: leave x-hlserve-class out.",
            param="x-hlserve-class",
        )
    if key.allowed_classes and asked not in key.allowed_classes:
        raise Refusal(
            Reason.CLASS_NOT_ALLOWED,
            f"This key may not use the class {asked!r}: ask for it in the ClientKey's allowedClasses.",
            param="x-hlserve-class",
        )
    return Classified(wanted, Rule.HEADER)


def lowest(key: KeyEntry, own: ClassRoute, classes: Mapping[str, ClassRoute]) -> ClassRoute:
    """The least urgent class that the key may use (where an exhausted budget with `Demote` sends it)."""
    allowed = [classes[name] for name in key.allowed_classes if name in classes]
    return max((own, *allowed), key=lambda route: (route.intent.rank, -route.priority))


_AGENT_PROGRAMS = ("claude-cli", "claude-code", "codex", "opencode", "aider", "mini-swe-agent", "openhands", "cline")


def advise(user_agent: str, has_session: bool) -> Intent | None:
    """What a request's sender says it is; None: nothing. Only ever a metric: it shows keys whose class does not fit their traffic."""
    return Intent.AGENT if has_session or _is_agent_program(user_agent) else None


@lru_cache(maxsize=1024)
def _is_agent_program(user_agent: str) -> bool:
    agent = user_agent.lower()
    return any(name in agent for name in _AGENT_PROGRAMS)
