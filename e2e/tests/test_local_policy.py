"""The policy benchmark: the router's pipeline in virtual time, and the page that is made of its rows."""

from dataclasses import replace
from functools import partial

import pytest

from hlserve_capacity.engine.types import SchedulePolicy
from hlserve_capacity.virtual.cluster import Timeline
from hlserve_local.policy.arms import quickstart, stock, with_agents_engine, without_session_admission
from hlserve_local.policy.experiments import Case, Row, cases, run_case
from hlserve_local.policy.measures import interval, jain_index, ratio
from hlserve_local.policy.page import page

SHORT = Timeline(warm_up_us=60_000_000, window_us=60_000_000, drain_us=1_000_000)


@pytest.fixture(scope="module")
def both() -> tuple[Row, Row]:
    """Past the KV size, on engines that serve first come, first served: with session admission and without."""
    arm = with_agents_engine(quickstart(), partial(stock, policy=SchedulePolicy.FCFS), "stock")
    off = replace(without_session_admission(arm), name="off")
    return run_case(Case("admission", "x", arm, 60), 11, SHORT), run_case(Case("admission", "x", off, 60), 11, SHORT)


def test_session_admission_in_the_router_is_worth_half_as_much_again_past_the_kv_size(both: tuple[Row, Row]) -> None:
    on, off = (row.values["agent_tokens_per_second"] for row in both)
    assert on is not None
    assert off is not None
    assert on > 1.5 * off


def test_it_refuses_nobody_and_leaves_chat_as_it_was(both: tuple[Row, Row]) -> None:
    on, off = both
    assert on.values["refused"] == off.values["refused"] == 0
    assert on.values["chat_goodput"] == off.values["chat_goodput"]


def test_every_arm_of_every_experiment_can_be_built_and_has_a_name_of_its_own() -> None:
    found = [(case.experiment, case.load, case.arm.name) for case in cases()]
    assert len(set(found)) == len(found)
    assert {experiment for experiment, _, _ in found} == {
        "admission",
        "idle",
        "choice",
        "peer",
        "queue",
        "fairness",
        "batch",
    }


def test_statistics() -> None:
    assert jain_index([1, 1, 1, 1]) == pytest.approx(1)
    assert jain_index([1, 0, 0, 0]) == pytest.approx(0.25)
    assert interval([2.0, 2.0, 2.0]).text() == "2.00 [2.00, 2.00]"
    found = ratio([2.0, 3.0], [1.0, 2.0])
    assert found is not None
    assert found.mean == pytest.approx(1.75)
    assert found.low <= found.mean <= found.high
    assert ratio([1.0], [0.0]) is None


def test_the_page_says_simulated_and_what_was_not_measured(both: tuple[Row, Row]) -> None:
    rows = [
        {"experiment": row.experiment, "load": row.load, "arm": name, "seed": row.seed, "values": row.values}
        for row, name in zip(both, ("on", "router admits requests only"), strict=True)
    ]
    manifest = {
        "engines": "e", "traces": "t", "seeds": "11", "window": "w", "command": "c", "commit": "d", "created": "today",
        "live": {"skipped": "it could not be installed"},
    }  # fmt: skip
    text = page(rows, manifest)
    assert "**Simulated.**" in text
    assert "| on | " in text
    assert "Not measured in this run: it could not be installed." in text
