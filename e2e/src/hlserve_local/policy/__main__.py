"""`python -m hlserve_local.policy`: runs the policy benchmark and writes its page, rows and manifest."""

import asyncio
import json
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from hlserve_bench.report.provenance import collect
from hlserve_bench.router.candidates import CANDIDATES
from hlserve_bench.router.peers import Missing, prepare
from hlserve_local.policy.experiments import PEER, SEEDS, run_all
from hlserve_local.policy.live import ORDERS, run_live
from hlserve_local.policy.live_load import SCALE, WARM_UP_SECONDS, WINDOW_SECONDS
from hlserve_local.policy.page import page

CANDIDATE = "sglang-router-ca"
LIVE = "live"
LIVE_SESSIONS = 60
LIVE_SEEDS = 3


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("docs/benchmarks"),
    help="Where the page, the rows and the manifest go.",
)
@click.option("--seeds", default=len(SEEDS), show_default=True, help="How many seeds.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Virtual runs at the same time.")
@click.option("--live/--no-live", default=True, help="Also run beside sglang-router on the clock (14 minutes).")
@click.option("--live-only", is_flag=True, help="Keep the virtual rows of the last run.")
@click.option("--live-seeds", default=LIVE_SEEDS, show_default=True, help="How many seeds on the clock.")
@click.option(
    "--cache",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".cache/policy"),
    help="Where the peer is installed.",
)
def main(out: Path, seeds: int, jobs: int, live: bool, live_only: bool, live_seeds: int, cache: Path) -> None:
    """Measure the router's policies on simulated engines."""
    out.mkdir(parents=True, exist_ok=True)
    chosen = SEEDS[:seeds]
    rows_file, manifest_file = out / "router-policy.jsonl", out / "router-policy.json"
    former, manifest = _read(rows_file), _read_manifest(manifest_file)
    rows = [row for row in former if row["experiment"] != LIVE]
    if not live_only:
        rows = [asdict(row) for row in run_all(chosen, jobs)]
        manifest = {**_manifest(chosen), LIVE: manifest.get(LIVE, {"skipped": "left out by option"})}
    elif not rows:
        raise click.UsageError(f"{rows_file} has no virtual rows to keep: run without --live-only first")
    lived = [row for row in former if row["experiment"] == LIVE]
    if live:
        found = _peer(cache)
        if isinstance(found, Missing):
            lived, manifest[LIVE] = [], {"skipped": found.reason}
        else:
            manifest[LIVE] = _live_manifest(chosen[:live_seeds], found.version)
            lived = _live(chosen[:live_seeds], found.executable)
    rows.extend(lived)
    rows_file.write_text("".join(json.dumps(row, sort_keys=True) + "\n" for row in rows))
    manifest_file.write_text(json.dumps(manifest, indent=2) + "\n")
    (out / "router-policy.md").write_text(page(rows, manifest))
    click.echo(out / "router-policy.md")


def _live(seeds: tuple[int, ...], program: str) -> list[dict[str, Any]]:
    """Arms one after the other, seed by seed, so that a change of the machine meets all of them."""
    rows = []
    arms = (("HlServe, session admission", None), (PEER, program))
    for seed in seeds:
        for engine in ORDERS:
            for arm, executable in arms:
                row = asyncio.run(run_live(arm, engine, LIVE_SESSIONS, seed, executable))
                rows.append({"experiment": LIVE, **row.as_dict()})
                values = row.values
                click.echo(
                    f"live, seed {seed}, {row.load}, {arm}: {values['agent_tokens_per_second']:.0f} tokens/s, "
                    f"steps {values['late_mean_ms']:.1f} ms late, at most {values['late_max_ms']:.0f}"
                )
    return rows


def _peer(cache: Path) -> Any:
    (cache / "logs").mkdir(parents=True, exist_ok=True)
    return prepare(next(each for each in CANDIDATES if each.name == CANDIDATE), cache.resolve())


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def _read_manifest(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return found


def _origin() -> dict[str, Any]:
    source = collect(Path(__file__).resolve().parent)
    return {
        "created": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": (source.commit or "unknown")[:12],
        "uncommitted_changes": source.uncommitted_changes,
        "python": platform.python_version(),
    }


def _manifest(seeds: tuple[int, ...]) -> dict[str, Any]:
    return {
        "basis": "simulated",
        "command": "make bench-policy",
        **_origin(),
        "seeds": ", ".join(map(str, seeds)),
        "engines": "A100-80G with Llama-3.1-8B, flags derived from the quickstart's manifests",
        "traces": "agentic coding sessions of kv-cache-tester, Azure 2023 conversations",
        "window": "180 s after 60 s, in virtual time",
    }


def _live_manifest(seeds: tuple[int, ...], peer_version: str) -> dict[str, Any]:
    return {
        **_origin(),
        "seeds": ", ".join(map(str, seeds)),
        "window": f"{WINDOW_SECONDS:.0f} s after {WARM_UP_SECONDS:.0f} s of engine time",
        "time_scale": SCALE,
        "sglang_router": peer_version,
        "load_average": os.getloadavg()[0],
        "cpus": os.cpu_count(),
    }


if __name__ == "__main__":
    main()
