"""The benchmark page: every figure in it comes from the rows, and a loss is said."""

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hlserve_bench.report.model import Manifest
from hlserve_local.demo_cell import VIRTUAL_TIMING
from hlserve_local.demo_figure import variants_figure
from hlserve_local.demo_page import LossResult, PageContent, render_page
from hlserve_local.demo_table import Row, SeedFigures, markdown_table, paired_ratio

PAGE = Path(__file__).resolve().parents[2] / "docs" / "benchmarks" / "demo"


def row(key: str, *outputs: float, chat: float = 0.5) -> Row:
    seeds = tuple(
        SeedFigures(
            seed=seed, chat_goodput_share=chat, chat_ttft_p95_ms=None, chat_tpot_p95_ms=None,
            agent_output_tokens_per_second=output, agent_sessions_per_hour=output, agent_round_p50_ms=1000.0,
            agent_round_p95_ms=None, agent_prefix_hit_rate=None,
        )
        for seed, output in enumerate(outputs)
    )  # fmt: skip
    return Row(key=key, title=f"arm {key}", searched=None, flags={"pool": "flags"}, seeds=seeds)


def content(ours: tuple[float, ...], theirs: tuple[float, ...]) -> PageContent:
    causes = tuple(f"cause_{name}" for name in ("chat_flags", "admission", "kv_batch", "greedy", "lpm"))
    keys = ("class_blind", "shedding", "capped", *causes, "other")
    rows = {key: row(key, *theirs, chat=0.0) for key in keys} | {"hlserve": row("hlserve", *ours, chat=0.99)}
    manifest = json.loads((PAGE / "results.json").read_text(encoding="utf-8"))["manifest"]
    return PageContent(
        rows=rows,
        groups={"blind": ("shedding", "capped"), "causes": causes, "other": ("other",)},
        losses=[LossResult("a cell", row("b", *theirs), row("o", *ours), row("s", *theirs))],
        timing=VIRTUAL_TIMING,
        seeds=range(len(ours)),
        manifest=Manifest.model_validate(manifest),
    )


def test_ratios_are_paired_by_seed() -> None:
    ratio = paired_ratio(row("a", 10, 40), row("b", 5, 10))
    assert ratio is not None
    assert (ratio.mean, ratio.low, ratio.high) == (3.0, 2.0, 4.0)
    assert str(ratio) == "3.00× [2.00–4.00]"
    assert paired_ratio(row("a", 10), row("b", 0)) is None


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        pytest.param((50.0, 60.0), "- a cell, against class-blind: 0.55× [0.50–0.60]", id="a loss is named"),
        pytest.param((150.0, 160.0), "In none of these cells", id="no loss is said as well"),
    ],
)
def test_a_loss_is_said(ours: tuple[float, ...], said: str) -> None:
    page = render_page(content(ours, (100.0, 100.0)))
    assert said in page
    assert "**Every figure on this page is simulated**" in page


def test_what_was_not_measured_is_a_dash() -> None:
    page = render_page(content((150.0,), (100.0,)))
    assert "| arm hlserve | 0.99 | 150 | 150 | 1 s | – | – | 1 |" in page


def test_tables_are_markdown() -> None:
    assert markdown_table(["a", "b"], [["x", "1"]]) == "| a | b |\n| --- | ---: |\n| x | 1 |"


def test_the_picture_is_an_svg_with_every_arm() -> None:
    assert ElementTree.fromstring(variants_figure(content((150.0,), (100.0,)))).tag.endswith("svg")


def test_the_published_figures_hold_what_the_demo_claims() -> None:
    rows = json.loads((PAGE / "results.json").read_text(encoding="utf-8"))["rows"]
    ours, blind = rows["hlserve"]["seeds"], rows["class_blind"]["seeds"]
    assert len(ours) == len(blind) == 5
    for mine, other in zip(ours, blind, strict=True):
        assert mine["seed"] == other["seed"]
        assert mine["agent_output_tokens_per_second"] >= 1.5 * other["agent_output_tokens_per_second"]
        assert mine["agent_sessions_per_hour"] >= 1.5 * other["agent_sessions_per_hour"]
        assert mine["chat_goodput_share"] >= max(0.9, other["chat_goodput_share"])
