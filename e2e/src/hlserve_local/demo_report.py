"""Both arms' records → report files. The one place where the demo's runs, live or virtual, become a report."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hlserve_bench.records import RequestRecord
from hlserve_bench.report.assemble import ArmRun, Timing, arm_report, make_report
from hlserve_bench.report.checks import Bounds
from hlserve_bench.report.html import render_html
from hlserve_bench.report.model import ArmReport, Manifest, Report, SeedResult
from hlserve_bench.report.provenance import TRACES, collect
from hlserve_bench.traces.workload import Workload
from hlserve_local.demo_arms import DemoArm
from hlserve_local.demo_cell import DemoCell

REPORT_JSON = "report.json"
REPORT_HTML = "report.html"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRun:
    """What both arms of one comparison share."""

    cell: DemoCell
    timing: Timing
    workload: Workload
    clock: Literal["real", "virtual"]


def figures(run: DemoRun, arm: DemoArm, records: Sequence[RequestRecord]) -> ArmReport:
    """One arm's figures."""
    return arm_report(
        ArmRun(
            name=arm.arm.name,
            description=arm.description,
            pools=arm.pools,
            records=records,
            real_client=run.clock == "real",
        ),
        run.timing,
        run.cell.slo,
    )


def report(
    run: DemoRun,
    ours: DemoArm,
    class_blind: ArmReport,
    hlserve: ArmReport,
    bounds: Bounds,
    seeds: Sequence[SeedResult] = (),
) -> Report:
    """The report with its verdicts. `ours` is the HlServe arm as its manifests describe it."""
    return make_report(
        class_blind=class_blind,
        hlserve=hlserve,
        timing=run.timing,
        slo=run.cell.slo,
        manifest=_manifest(run, ours, {"class_blind": class_blind, "hlserve": hlserve}),
        chat_pool=ours.arm.chat_pool,
        agent_pool=ours.arm.agent_pool,
        bounds=bounds,
        seeds=seeds,
    )


def write_report(result: Report, out: Path) -> tuple[Path, Path]:
    """`report.json` and `report.html` in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    json_path, html_path = out / REPORT_JSON, out / REPORT_HTML
    json_path.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    html_path.write_text(render_html(result), encoding="utf-8")
    return json_path, html_path


def failures(result: Report) -> list[str]:
    """The claims that do not hold, as sentences."""
    return [check.sentence for check in result.checks if not check.passed]


def _manifest(run: DemoRun, arm: DemoArm, arms: Mapping[str, ArmReport]) -> Manifest:
    origin = collect(Path(__file__).resolve().parent)
    spec = run.workload.spec
    return Manifest(
        created=origin.created,
        clock=run.clock,
        seed=run.workload.seed,
        versions=origin.versions,
        commit=origin.commit,
        uncommitted_changes=origin.uncommitted_changes,
        device=arm.device,
        model=arm.model,
        machine=origin.machine,
        workload_sha256=run.workload.digest,
        flags={key: {name: list(pool.flags) for name, pool in one.pools.items()} for key, one in arms.items()},
        load={
            "chat_rps": spec.chat_rps,
            "agent_sessions": float(spec.agent_sessions),
            "ramp_seconds": spec.ramp_seconds,
            "duration_seconds": spec.duration_seconds,
        },
        rules=list(spec.rules.describe()),
        traces=list(TRACES),
    )
