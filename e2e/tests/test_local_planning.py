"""What is made of manifests: flags, keys and who opens what."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from hlserve_local.documents import make_documents
from hlserve_local.engines import Engine, EngineState
from hlserve_local.planning import NotSimulatedError, Plan, SimulationOptions, make_plan
from hlserve_local.testing.manifests import AGENT_KEY, Manifest, base, changed, write_folder
from hlserve_local.validation import validate

EXAMPLES = Path(__file__).parents[2] / "examples"


def _plan(folder: Path, documents: dict[str, Manifest] | None = None, **foreign: tuple[str, ...]) -> Plan:
    if documents is not None:
        write_folder(folder, documents)
    return make_plan(validate(folder), foreign, SimulationOptions(seed=7), {})


def _flag(plan: Plan, pool: str, flag: str) -> str:
    (wanted,) = [item for item in plan.wanted if item.spec.pool == pool]
    return wanted.spec.arguments[wanted.spec.arguments.index(flag) + 1]


def test_quickstart_derives_the_settings_that_its_readme_names() -> None:
    plan = _plan(EXAMPLES / "quickstart")
    assert {item.spec.pool: item.replicas for item in plan.wanted} == {"chat": 1, "agents": 3}
    assert (_flag(plan, "chat", "--max-running-requests"), _flag(plan, "chat", "--chunked-prefill-size")) == (
        "21",
        "128",
    )
    assert _flag(plan, "agents", "--max-running-requests") == "11"
    assert [(access.client, access.class_name, access.pools) for access in plan.accesses] == [
        ("chat-app", "interactive", ("chat",)),
        ("coding-agent", "agent", ("agents",)),
        ("nightly-batch", "batch", ("agents",)),
    ]
    assert plan.summary == "2 pools, 3 classes, 3 keys"


def test_each_setting_is_shown_with_its_source_and_reason() -> None:
    chat = next(pool for pool in _plan(EXAMPLES / "quickstart").pools if pool.name == "chat")
    shown = [line.split(maxsplit=3) for line in chat.settings]
    assert ["chunkedPrefillSize", "128", "Estimate"] in [line[:3] for line in shown]
    assert all(len(line) == 4 for line in shown), "a setting without a reason"


def test_class_blind_has_one_pool_that_sheds_nothing() -> None:
    plan = _plan(EXAMPLES / "class-blind")
    (wanted,) = plan.wanted
    assert (wanted.spec.pool, wanted.replicas) == ("shared", 4)
    assert (_flag(plan, "shared", "--max-running-requests"), _flag(plan, "shared", "--chunked-prefill-size")) == (
        "5",
        "96",
    )
    assert _flag(plan, "shared", "--schedule-policy") == "fcfs"
    assert "--enable-priority-scheduling" not in wanted.spec.arguments
    table = make_documents(plan, ()).table
    assert table.pools[0].queue_ttl_milliseconds is None
    assert {route.queue.ttl_milliseconds for route in table.classes} == {3_600_000}


def test_a_key_without_secret_is_made_once_and_stays(tmp_path: Path) -> None:
    documents = changed(base(), "coder", "spec.credentials.0.secretRef", None)
    del documents["coder-secret"]
    first = _plan(tmp_path, documents)
    again = make_plan(validate(tmp_path), {}, SimulationOptions(), first.generated_keys)
    (made,) = first.generated_keys.values()
    assert made.startswith("hls_")
    assert again.generated_keys == first.generated_keys
    assert {access.client: access.key for access in first.accesses}["coder"] == made


def test_during_a_rotation_the_key_that_is_valid_now_is_shown(tmp_path: Path) -> None:
    documents = base()
    old = documents["coder"]["spec"]["credentials"][0]
    past = (datetime.now(UTC) - timedelta(days=1)).isoformat()
    documents["coder"]["spec"]["credentials"] = [{**old, "notAfter": past}, {"id": "next"}]
    plan = _plan(tmp_path, documents)
    shown = {access.client: access.key for access in plan.accesses}["coder"]
    assert shown != AGENT_KEY
    assert shown in plan.generated_keys.values()


def test_engines_by_state_in_the_table(tmp_path: Path) -> None:
    plan = _plan(tmp_path, base(), chat=("http://127.0.0.1:9001",))
    (wanted,) = plan.wanted
    states = (EngineState.READY, EngineState.DRAINING, EngineState.RESTARTING)
    engines = [
        Engine(wanted.spec, number, incarnation=1, state=state, url=f"http://127.0.0.1:{number + 1}")
        for number, state in enumerate(states)
    ]
    routes = {route.name: route for route in make_documents(plan, engines).table.pools}
    assert [endpoint.id for endpoint in routes["agents"].endpoints] == ["agents-0.1", "agents-1.1"]
    assert routes["agents"].draining == ("agents-1.1",)
    assert not routes["agents"].foreign
    assert [endpoint.url for endpoint in routes["chat"].endpoints] == ["http://127.0.0.1:9001"]
    assert routes["chat"].foreign


def test_replicas_get_seeds_of_their_own(tmp_path: Path) -> None:
    (_, agents) = _plan(tmp_path, base()).wanted
    seeds = {command[command.index("--seed") + 1] for command in map(agents.spec.command, range(3))}
    assert seeds == {"7", "8", "9"}


def test_a_shape_by_numbers_is_not_simulated_but_may_be_served_by_others(tmp_path: Path) -> None:
    shape = {"parameters": 10**9, "layers": 8, "hiddenSize": 1024, "heads": 8, "kvHeads": 8, "headDim": 128}
    documents = changed(base(), "chat", "spec.model.shape", shape)
    with pytest.raises(NotSimulatedError, match="serve the pool with --engine chat=URL"):
        _plan(tmp_path, documents)
    assert _plan(tmp_path, chat=("http://127.0.0.1:9001",)).foreign == {"chat": ("http://127.0.0.1:9001",)}
