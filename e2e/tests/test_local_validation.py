"""`hlserve validate`: one row for each mistake, with the sentence that it gets."""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from hlserve_local.key_checks import BUDGET_SENTENCE
from hlserve_local.problems import Severity
from hlserve_local.stack import Stack
from hlserve_local.testing.manifests import (
    AGENT_KEY,
    CHAT_KEY,
    Manifest,
    base,
    changed,
    client_key,
    pool,
    secret,
    workload_class,
    write_folder,
)
from hlserve_local.validate_command import validate as validate_command
from hlserve_local.validation import validate

EXAMPLES = Path(__file__).parents[2] / "examples"
Documents = dict[str, Manifest]


@dataclass(frozen=True)
class Row:
    """A change of the good manifests, and what is said about it: of which object, about which field, in which words."""

    change: Callable[[Documents], Documents]
    kind: str
    name: str
    path: str
    words: str
    count: int = 1


def _field(document: str, path: str, value: object) -> Callable[[Documents], Documents]:
    return lambda documents: changed(documents, document, path, value)


def _plus(**more: Manifest) -> Callable[[Documents], Documents]:
    return lambda documents: {**documents, **more}


def _without(*names: str) -> Callable[[Documents], Documents]:
    return lambda documents: {name: item for name, item in documents.items() if name not in names}


def _expired(documents: Documents) -> Documents:
    return changed(documents, "coder", "spec.credentials.0.notAfter", "2020-01-01T00:00:00Z")


SPILL = [
    {"name": "agents", "poolRef": {"name": "agents"}},
    {"name": "chat", "poolRef": {"name": "chat"}, "role": "Spill"},
]

ERRORS = {
    "an unknown field": Row(
        _field("chat", "spec.slo.tpotMiliseconds", 20),
        "ServingPool",
        "chat",
        "spec.slo.tpotMiliseconds",
        "did you mean tpotMilliseconds?",
    ),
    "a wrong type": Row(
        _field("chat", "spec.slo.tpotMilliseconds", "20"), "ServingPool", "chat", "spec.slo.tpotMilliseconds", "integer"
    ),
    "a value out of bounds": Row(_field("chat", "spec.replicas", -1), "ServingPool", "chat", "spec.replicas", "0"),
    "a value that is not in the list": Row(
        _field("chat", "spec.mode", "Fast"), "ServingPool", "chat", "spec.mode", "HumanLess"
    ),
    "a rule broken": Row(
        _field("chat", "spec.slo", None), "ServingPool", "chat", "spec.slo", "an Interactive pool needs slo"
    ),
    "an engine flag that is ours": Row(
        _field("chat", "spec.engine.extraArgs", ["--max-run=4"]),
        "ServingPool",
        "chat",
        "spec.engine.extraArgs",
        "extraArgs must not hold a flag that the operator sets",
    ),
    "a class that names no pool": Row(
        _field("agent", "spec.targets.0.poolRef.name", "agent"),
        "WorkloadClass",
        "agent",
        "spec.targets[agents].poolRef",
        "no ServingPool is named agent; did you mean agents?",
    ),
    "a selector that finds no pool": Row(
        _field("agent", "spec.targets", [{"name": "x", "poolSelector": {"matchLabels": {"tier": "gold"}}}]),
        "WorkloadClass",
        "agent",
        "spec.targets[x].poolSelector",
        "no ServingPool has the labels tier=gold: put them on a pool",
    ),
    "a key of a class that does not exist": Row(
        _field("coder", "spec.workloadClassRef.name", "agnet"),
        "ClientKey",
        "coder",
        "spec.workloadClassRef.name",
        "no WorkloadClass is named agnet; did you mean agent?",
    ),
    "an allowed class that does not exist": Row(
        _field("coder", "spec.allowedClasses", ["nightly"]),
        "ClientKey",
        "coder",
        "spec.allowedClasses[0]",
        "no WorkloadClass is named nightly; write one of agent, batch, interactive",
    ),
    "two manifests with the same key": Row(
        _field("coder-secret", "stringData.key", CHAT_KEY),
        "ClientKey",
        "",
        "spec.credentials[primary]",
        "the same key is also in",
        count=2,
    ),
    "the same object twice": Row(
        _plus(again=pool("chat", "Interactive")),
        "ServingPool",
        "chat",
        "",
        "the same object is also in manifests.yaml, document 1",
    ),
    "a short key": Row(
        _field("coder-secret", "stringData.key", "short"),
        "ClientKey",
        "coder",
        "spec.credentials[primary]",
        "hlserve keys new",
    ),
    "a Secret that is missing": Row(
        _without("coder-secret"),
        "ClientKey",
        "coder",
        "spec.credentials[primary]",
        "there is no Secret coder-primary with the key key",
    ),
    "a Secret value that is a number": Row(
        _field("coder-secret", "stringData.key", 7), "Secret", "coder-primary", "stringData.key", "put it in quotes"
    ),
    "a Secret value that is not base64": Row(
        _field("coder-secret", "data", {"key": "%%%"}),
        "Secret",
        "coder-primary",
        "data.key",
        "is not base64 of UTF-8 text",
    ),
    "a Secret that is a list": Row(
        _field("coder-secret", "data", []), "Secret", "coder-primary", "data", "must be a mapping"
    ),
    "an unknown field of a Secret": Row(
        _field("coder-secret", "stringdata", {"a": "b"}),
        "Secret",
        "coder-primary",
        "stringdata",
        "did you mean stringData?",
    ),
    "a budget without a store": Row(
        _field("coder", "spec.budget", {"tokens": 1000}),
        "ClientKey",
        "coder",
        "spec.budget",
        "a budget needs a limits store that outlives the process",
    ),
    "shares of more than all": Row(
        lambda documents: changed(
            changed(documents, "agent", "spec.share", {"minPercent": 60}), "batch", "spec.share", {"minPercent": 50}
        ),
        "ServingPool",
        "agents",
        "",
        "promised 60 (agent) + 50 (batch) = 110 percent of it",
    ),
    "Batch that may fill the chat pool": Row(
        _field("batch", "spec.targets", SPILL),
        "WorkloadClass",
        "batch",
        "spec.targets[chat]",
        "set spec.share.maxPercent below 100",
    ),
    "two namespaces": Row(
        lambda documents: changed(
            changed(documents, "chat", "metadata.namespace", "a"), "agents", "metadata.namespace", "b"
        ),
        "ServingPool",
        "agents",
        "metadata.namespace",
        "b is another namespace than a",
    ),
}

WARNINGS = {
    "a pool that no class reaches": Row(
        _plus(idle=pool("idle", "HumanLess")),
        "ServingPool",
        "idle",
        "",
        "no class reaches this pool, so it would run idle: name idle in",
    ),
    "a key that is easy to guess": Row(
        _field("coder-secret", "stringData.key", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        "ClientKey",
        "coder",
        "spec.credentials[primary]",
        "hlserve keys new",
    ),
    "an expired key": Row(_expired, "ClientKey", "coder", "spec.credentials[primary]", "expired at 2020-01-01"),
    "an allowed class that is not lower": Row(
        _field("coder", "spec.allowedClasses", ["interactive"]),
        "ClientKey",
        "coder",
        "spec.allowedClasses[0]",
        "the header can only lower a request's class",
    ),
    "a model that no pool serves": Row(
        _field("coder", "spec.models", ["test-modle"]),
        "ClientKey",
        "coder",
        "spec.models[0]",
        "did you mean test-model?",
    ),
    "an Interactive class on a HumanLess pool": Row(
        _field("interactive", "spec.targets.0.poolRef.name", "agents"),
        "WorkloadClass",
        "interactive",
        "spec.targets[chat]",
        "keeps no latency target",
        count=2,
    ),
    "a Secret that nobody uses": Row(
        _plus(extra=secret("nobody", AGENT_KEY)),
        "Secret",
        "nobody-primary",
        "",
        "nothing in this folder uses this Secret",
    ),
    "no keys at all": Row(
        _without("coder", "chat-app", "coder-secret", "chat-secret"),
        "",
        "",
        "",
        "holds no ClientKey, so every request gets 401",
    ),
    "an accelerator that is not in the table": Row(
        _field("chat", "spec.hardware.accelerator", "A100-81G"),
        "ServingPool",
        "chat",
        "spec",
        "settings are not derived",
    ),
    "an SLO out of reach": Row(
        _field("chat", "spec.slo.tpotMilliseconds", 1),
        "ServingPool",
        "chat",
        "spec.slo",
        "a replica cannot meet the SLO",
    ),
}


def _check(folder: Path, row: Row, severity: Severity) -> None:
    problems = validate(write_folder(folder, row.change(base()))).problems
    assert len(problems) == row.count, [str(problem) for problem in problems]
    found = [problem for problem in problems if row.words in problem.message]
    assert found, [str(problem) for problem in problems]
    assert {problem.severity for problem in problems} == {severity}
    assert found[0].path == row.path
    assert found[0].place.kind == row.kind
    if row.name:
        assert found[0].place.name == row.name
    assert "\n" not in str(found[0])


def test_good_manifests_have_no_problem(tmp_path: Path) -> None:
    result = validate(write_folder(tmp_path, base()))
    assert result.problems == ()
    assert [placed.value.name for placed in result.objects.pools] == ["chat", "agents"]
    assert result.objects.secret_values == {("chat-app-primary", "key"): CHAT_KEY, ("coder-primary", "key"): AGENT_KEY}


@pytest.mark.parametrize("row", ERRORS.values(), ids=ERRORS)
def test_mistake_gets_one_sentence(tmp_path: Path, row: Row) -> None:
    _check(tmp_path, row, Severity.ERROR)


@pytest.mark.parametrize("row", WARNINGS.values(), ids=WARNINGS)
def test_doubtful_manifest_gets_a_warning_and_stays_usable(tmp_path: Path, row: Row) -> None:
    _check(tmp_path, row, Severity.WARNING)


def test_broken_object_hides_no_other_mistake_and_causes_none(tmp_path: Path) -> None:
    documents = changed(base(), "chat", "spec.mode", "Fast")
    documents = changed(documents, "agent", "spec.headerOverride", "Perhaps")
    documents = changed(documents, "coder-secret", "stringData.key", 7)
    documents = changed(documents, "chat-app", "spec.allowedClasses", ["nightly", "agent"])
    problems = validate(write_folder(tmp_path, documents)).problems
    assert [(problem.place.name, problem.path) for problem in problems] == [
        ("chat", "spec.mode"),
        ("agent", "spec.headerOverride"),
        ("chat-app", "spec.allowedClasses[0]"),
        ("coder-primary", "stringData.key"),
    ]


def test_both_holders_of_one_key_are_named(tmp_path: Path) -> None:
    problems = validate(write_folder(tmp_path, changed(base(), "coder-secret", "stringData.key", CHAT_KEY))).problems
    assert sorted(problem.place.name for problem in problems) == ["chat-app", "coder"]


def test_a_credential_without_secret_gets_its_key_later(tmp_path: Path) -> None:
    documents = changed(_without("coder-secret")(base()), "coder", "spec.credentials.0.secretRef", None)
    assert validate(write_folder(tmp_path, documents)).problems == ()


def test_data_of_a_secret_is_base64(tmp_path: Path) -> None:
    documents = changed(base(), "coder-secret", "stringData", None)
    documents = changed(documents, "coder-secret", "data", {"key": base64.b64encode(AGENT_KEY.encode()).decode()})
    assert validate(write_folder(tmp_path, documents)).objects.secret_values["coder-primary", "key"] == AGENT_KEY


def test_budgets_are_fine_with_a_store_that_lasts(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, changed(base(), "coder", "spec.budget", {"tokens": 1000}))
    assert validate(folder, durable_store=True).problems == ()


def test_batch_may_spill_into_chat_below_all_of_it(tmp_path: Path) -> None:
    documents = changed(changed(base(), "batch", "spec.targets", SPILL), "batch", "spec.share", {"maxPercent": 20})
    assert validate(write_folder(tmp_path, documents)).problems == ()


def test_no_pool_is_an_error(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path, {"class": workload_class("agent", "Agent", ["agents"]), "key": client_key("a", "agent")}
    )
    result = validate(folder)
    assert not result.usable
    assert any("holds no ServingPool" in problem.message for problem in result.problems)


def test_command_exits_0_1_2_and_prints_json(tmp_path: Path) -> None:
    runner = CliRunner()
    folder = str(write_folder(tmp_path, base()))
    good = runner.invoke(validate_command, ["-f", folder])
    assert good.exit_code == 0
    assert "2 ServingPool, 3 WorkloadClass, 2 ClientKey, 2 Secret: all good." in good.stdout

    write_folder(tmp_path, {**base(), "idle": pool("idle", "HumanLess")})
    doubtful = runner.invoke(validate_command, ["-f", folder, "--json"])
    assert doubtful.exit_code == 0
    document = json.loads(doubtful.stdout)
    assert document["ok"] is True
    assert document["errors"] == []
    assert [item["name"] for item in document["warnings"]] == ["idle"]

    write_folder(tmp_path, changed(base(), "chat", "spec.mode", "Fast"))
    bad = runner.invoke(validate_command, ["-f", folder])
    assert bad.exit_code == 1
    assert "error: manifests.yaml, document 1 (ServingPool chat): spec.mode: " in bad.stdout

    assert runner.invoke(validate_command, ["-f", str(tmp_path / "nowhere")]).exit_code == 2
    assert runner.invoke(validate_command, ["-f", folder, "--limits-store", "redis"]).exit_code == 2
    for store in ("valkey://h:1/0", "valkeys://h:1/0", "unix:///s", "sqlite:/var/l.db"):
        assert runner.invoke(validate_command, ["-f", folder, "--limits-store", store]).exit_code == 1, (
            "only the mode is wrong"
        )
    assert runner.invoke(validate_command, []).exit_code == 2


@pytest.mark.parametrize(
    ("options", "exit_code"),
    [
        pytest.param([], 0, id="as up has it by default, in a file"),
        pytest.param(["--limits-store", "valkey://h:1/0"], 0, id="in a server"),
        pytest.param(["--limits-store", "memory"], 1, id="in memory"),
    ],
)
def test_validate_takes_a_budget_where_up_does(tmp_path: Path, options: list[str], exit_code: int) -> None:
    folder = write_folder(tmp_path, changed(base(), "coder", "spec.budget", {"tokens": 1000}))
    result = CliRunner().invoke(validate_command, ["-f", str(folder), *options])
    assert (result.exit_code, BUDGET_SENTENCE in result.stdout) == (exit_code, exit_code == 1)
    durable = Stack(folder, limits_store=options[1] if options else None).durable
    assert durable == (exit_code == 0)


@pytest.mark.parametrize("example", sorted(path.name for path in EXAMPLES.iterdir()))
def test_examples_are_good(example: str) -> None:
    assert validate(EXAMPLES / example).problems == ()
