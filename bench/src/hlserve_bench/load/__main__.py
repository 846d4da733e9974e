"""The load process: `python -m hlserve_bench.load PLAN RECORDS`. Progress goes to standard output, one JSON object a line."""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

from hlserve_bench.load.plan import read_plan
from hlserve_bench.load.run import Progress, run_load
from hlserve_bench.records import write_records
from hlserve_bench.traces.workload import draw_workload, load_sample


def main() -> int:
    """Run the plan; exit 0 when the records are written."""
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python -m hlserve_bench.load PLAN RECORDS\n")
        return 2
    plan = read_plan(Path(sys.argv[1]))
    workload = draw_workload(load_sample(), plan.spec, plan.seed)
    write_records(Path(sys.argv[2]), asyncio.run(run_load(plan, workload, _print)))
    return 0


def _print(progress: Progress) -> None:
    sys.stdout.write(json.dumps(asdict(progress)) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
