"""Calibration documents as step costs."""

import json

import pytest

from hlserve_capacity.calibration import CalibrationError, parse_calibration

DOCUMENT = {
    "schemaVersion": 1,
    "engine": "sglang 0.5.23",
    "device": "H200",
    "model": "llama-3.1-8b",
    "tensorParallel": 2,
    "t0Us": 2500,
    "weightPassUs": 3400,
    "sequenceUs": 20,
    "contextTokenUs": 0.036,
    "prefillTokenUs": 25,
    "chunkBoundaryUs": 4000,
    "poolTokens": 824_127,
    "fitErrors": {"medianPercent": 2.5, "maxPercent": 9},
}


def changed(**fields: object) -> str:
    return json.dumps({**DOCUMENT, **fields})


def test_a_calibration_prices_a_step() -> None:
    calibration = parse_calibration(json.dumps(DOCUMENT))
    step_us = calibration.cost.step_us(10, 50_000, ((100, 0),))
    assert step_us == pytest.approx(2500 + 3400 + 11 * 20 + 0.036 * 50_000 + 25 * 100)
    assert calibration.cost.pool_tokens == 824_127
    assert calibration.chunk_boundary_us == 4000
    assert calibration.identity == "sglang 0.5.23, llama-3.1-8b on 2 × H200"


def test_fields_of_a_later_minor_version_are_ignored() -> None:
    assert parse_calibration(changed(operator="someone")).cost.t0_us == 2500


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "the document: Invalid JSON"),
        (changed(schemaVersion=2), "schemaVersion 2, this program reads up to 1"),
        (changed(t0Us=-1), "t0Us: Input should be greater than or equal to 0"),
        (changed(poolTokens=0), "poolTokens"),
        (changed(t0Us=0, weightPassUs=0), "a step must take time"),
        (json.dumps({key: value for key, value in DOCUMENT.items() if key != "prefillTokenUs"}), "prefillTokenUs"),
    ],
    ids=["not JSON", "newer version", "negative time", "no pool", "steps without time", "missing coefficient"],
)
def test_a_broken_calibration_names_its_field(document: str, message: str) -> None:
    with pytest.raises(CalibrationError, match=message):
        parse_calibration(document)
