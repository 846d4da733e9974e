"""Step 3: the class of a request."""

from dataclasses import dataclass

import pytest

from hlserve_api.answers import Reason
from hlserve_api.routing import ClassRoute, HeaderOverride, Intent
from hlserve_router.classify import Rule, advise, classify
from hlserve_router.errors import Refusal
from hlserve_router.testing.documents import AGENT_KEY, a_class, a_key

CLASSES: dict[str, ClassRoute] = {
    route.name: route
    for route in (
        a_class("interactive"),
        a_class("vip", intent=Intent.INTERACTIVE),
        a_class("strict", intent=Intent.INTERACTIVE, header_override=HeaderOverride.DENY),
        a_class("agent"),
        a_class("batch"),
        a_class("slow", intent=Intent.BATCH, priority=-10),
    )
}


@dataclass(frozen=True)
class Case:
    id: str
    own: str
    asked: str | None = None
    allowed: tuple[str, ...] = ()
    want: str | Reason = ""
    rule: Rule = Rule.KEY


CASES = [
    Case("without a header the key's class holds", "agent", None, want="agent"),
    Case("the key's own class may be named", "agent", "agent", want="agent"),
    Case("a lower intent is taken when nothing is listed", "interactive", "agent", want="agent", rule=Rule.HEADER),
    Case("two steps down are taken", "interactive", "batch", want="batch", rule=Rule.HEADER),
    Case("a listed lower class is taken", "interactive", "batch", ("batch",), "batch", Rule.HEADER),
    Case("a lower class that is not listed is 403", "interactive", "agent", ("batch",), Reason.CLASS_NOT_ALLOWED),
    Case("a higher intent is clamped", "batch", "interactive", want="batch", rule=Rule.CLAMPED),
    Case("a higher intent is clamped even if listed", "batch", "agent", ("agent",), "batch", Rule.CLAMPED),
    Case("an equal intent is clamped", "interactive", "vip", want="interactive", rule=Rule.CLAMPED),
    Case("an unknown class is 400", "agent", "nope", want=Reason.UNKNOWN_CLASS),
    Case("a class that denies the header is 403", "strict", "agent", want=Reason.CLASS_NOT_ALLOWED),
    Case("a class that denies the header may be named", "strict", "strict", want="strict"),
    Case("a denying class still clamps what is not lower", "strict", "vip", want="strict", rule=Rule.CLAMPED),
    Case("the key's class being gone is 503", "gone", None, want=Reason.CLASS_MISSING),
    Case("the key's class being gone wins over the header", "gone", "agent", want=Reason.CLASS_MISSING),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_classify(case: Case) -> None:
    key = a_key(AGENT_KEY, "coder", case.own, allowed_classes=case.allowed)
    if isinstance(case.want, Reason):
        with pytest.raises(Refusal) as refusal:
            classify(key, case.asked, CLASSES)
        assert refusal.value.reason is case.want
    else:
        found = classify(key, case.asked, CLASSES)
        assert (found.route.name, found.rule) == (case.want, case.rule)


@pytest.mark.parametrize("own", list(CLASSES))
@pytest.mark.parametrize("asked", list(CLASSES))
def test_no_header_ever_raises_the_intent(own: str, asked: str) -> None:
    try:
        found = classify(a_key(AGENT_KEY, "c", own), asked, CLASSES)
    except Refusal:
        return
    assert found.route.intent.rank >= CLASSES[own].intent.rank


def test_a_demoted_key_runs_in_its_lowest_allowed_class() -> None:
    key = a_key(AGENT_KEY, "c", "interactive", allowed_classes=("agent", "slow", "batch"))
    found = classify(key, None, CLASSES, demoted=True)
    assert (found.route.name, found.rule) == ("slow", Rule.DEMOTED)


@pytest.mark.parametrize(
    ("agent", "session", "looks_like"),
    [
        pytest.param("curl/8", False, None, id="nothing is known of curl"),
        pytest.param("claude-cli/2.1", False, Intent.AGENT, id="an agent program is an agent"),
        pytest.param("", True, Intent.AGENT, id="a session header is an agent"),
    ],
)
def test_advice(agent: str, session: bool, looks_like: Intent | None) -> None:
    assert advise(agent, session) is looks_like
