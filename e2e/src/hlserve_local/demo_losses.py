"""Cells in which HlServe gains little or loses, so that the page shows both sides.

Each uses the demo's manifests, changed in SLO, hardware and replicas only: HlServe's flags are derived from them, class-blind's are
searched anew.
"""

from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from hlserve_bench.report.build import SloBounds
from hlserve_local.demo_arms import DemoArm, arm_from_plan, plan_of
from hlserve_local.demo_cell import CLASS_BLIND, QUICKSTART, DemoCell, find_examples


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCell:
    """One cell. `chat_engines` of `engines` serve chat in the HlServe arm."""

    key: str
    title: str
    accelerator: str
    shape: str
    tpot_ms: float
    chat_rps: float
    agent_sessions: int
    chat_engines: int = 1
    engines: int = 4

    @property
    def cell(self) -> DemoCell:
        """Its load and SLO."""
        return DemoCell(
            chat_rps=self.chat_rps,
            agent_sessions=self.agent_sessions,
            slo=SloBounds(ttft_ms=1000.0, tpot_ms=self.tpot_ms),
        )

    @property
    def is_demo_hardware(self) -> bool:
        """Whether device, model and TPOT SLO are the demo's, so that its class-blind flags fit."""
        return (self.accelerator, self.shape, self.tpot_ms) == ("A100-80G", "llama-3.1-8b", DemoCell().slo.tpot_ms)

    def blind(self, examples: Path | None = None) -> DemoArm:
        """The class-blind arm on this hardware, before the search for its flags."""
        return self._arm(CLASS_BLIND, {"shared": self.engines}, examples)

    def ours(self, examples: Path | None = None) -> DemoArm:
        """The HlServe arm."""
        replicas = {"chat": self.chat_engines, "agents": self.engines - self.chat_engines}
        return self._arm(QUICKSTART, replicas, examples)

    def _arm(self, folder: str, replicas: dict[str, int], examples: Path | None) -> DemoArm:
        source = (examples or find_examples()) / folder
        with TemporaryDirectory(prefix="hlserve-cell-") as target:
            changed = [
                self._changed(document, replicas)
                for path in sorted(source.glob("*.yaml"))
                for document in yaml.safe_load_all(path.read_text(encoding="utf-8"))
                if document
            ]
            (Path(target) / "cell.yaml").write_text(yaml.safe_dump_all(changed), encoding="utf-8")
            return arm_from_plan(folder, plan_of(Path(target)))

    def _changed(self, document: dict[str, Any], replicas: dict[str, int]) -> dict[str, Any]:
        if document["kind"] != "ServingPool":
            return document
        spec = dict(document["spec"])
        spec["replicas"] = replicas[document["metadata"]["name"]]
        spec["hardware"] = {**spec["hardware"], "accelerator": self.accelerator}
        spec["model"] = {**spec["model"], "shape": {"name": self.shape}}
        if "slo" in spec:
            spec["slo"] = {**spec["slo"], "tpotMilliseconds": self.tpot_ms}
        return {**document, "spec": spec}


LOSS_CELLS = (
    LossCell(
        key="fits",
        title="Agents fit the KV pools (A100-80G, 8B, TPOT 20 ms, 36 sessions)",
        accelerator="A100-80G",
        shape="llama-3.1-8b",
        tpot_ms=20,
        chat_rps=2.0,
        agent_sessions=36,
    ),
    LossCell(
        key="loose_tpot",
        title="Loose TPOT (A100-80G, 8B, TPOT 50 ms, chat 3.8 rps, 60 sessions)",
        accelerator="A100-80G",
        shape="llama-3.1-8b",
        tpot_ms=50,
        chat_rps=3.8,
        agent_sessions=60,
    ),
    LossCell(
        key="half_and_half",
        title="2 + 2 engines (A100-80G, 8B, TPOT 20 ms, chat 4 rps, 40 sessions)",
        accelerator="A100-80G",
        shape="llama-3.1-8b",
        tpot_ms=20,
        chat_rps=4.0,
        agent_sessions=40,
        chat_engines=2,
    ),
    LossCell(
        key="light_load",
        title="Light load (H200, 32B, TPOT 30 ms, chat 1.7 rps, 18 sessions)",
        accelerator="H200",
        shape="qwen2.5-32b",
        tpot_ms=30,
        chat_rps=1.7,
        agent_sessions=18,
    ),
    LossCell(
        key="big_gpu",
        title="A small model on a large GPU (H200, 8B, TPOT 25 ms, chat 3 rps, 60 sessions)",
        accelerator="H200",
        shape="llama-3.1-8b",
        tpot_ms=25,
        chat_rps=3.0,
        agent_sessions=60,
    ),
    LossCell(
        key="big_gpu_half",
        title="The same with 2 + 2 engines (H200, 8B, TPOT 25 ms, chat 3 rps, 60 sessions)",
        accelerator="H200",
        shape="llama-3.1-8b",
        tpot_ms=25,
        chat_rps=3.0,
        agent_sessions=60,
        chat_engines=2,
    ),
)
