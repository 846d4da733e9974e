"""Clients of a virtual run: open-loop chat, closed-loop agent sessions of several keys, and batch jobs that never end."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256

from hlserve_api.routing import KeyEntry
from hlserve_capacity.virtual.cluster import Timeline
from hlserve_capacity.virtual.records import Outcome, RequestRecord, Traffic
from hlserve_capacity.virtual.workload import SessionRun, Workload, chat_prompt
from hlserve_local.policy.cluster import Call, Cluster

CHAT = "chat-app"
BATCH = "nightly"
AGENT_MAX_TOKENS = 4096
"""What agents ask for at most; real ones send such a ceiling with every request."""
RETRY_US = 2_000_000
"""A refused agent comes again after this long."""
BATCH_NUMBERS = 1 << 20
"""Batch prompts are numbered from here up, so that they share nothing with chat's."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the clients of one run do."""

    workload: Workload
    agents: tuple[str, ...] = ("coder",)
    """Client of each agent slot, in turn."""
    batch_jobs: int = 0
    """Batch requests at a time; each is followed by the next at once."""
    session_header: bool = True
    """Agents name their session in a header; else only their first turn tells it."""


@dataclass(slots=True)
class Done:
    """A client's requests, in order of sending."""

    client: str
    records: list[RequestRecord] = field(default_factory=list)


def key_of(client: str) -> bytes:
    """The client's key."""
    return f"hls_{client}_0123456789abcdef0123456789abcdef".encode()


def keys_for(clients: Sequence[tuple[str, str]], tenant: str = "") -> tuple[KeyEntry, ...]:
    """Credentials for (client, class) pairs."""
    return tuple(
        KeyEntry(
            digest=sha256(key_of(client)).hexdigest(),
            client=client,
            credential="c",
            class_name=class_name,
            tenant=tenant,
        )
        for client, class_name in clients
    )


def drive(cluster: Cluster, load: Load, timeline: Timeline) -> dict[str, Done]:
    """Runs the clients until the end of the timeline. Returns what became of their requests, by client."""
    clients = _Clients(cluster, load, timeline)
    clients.start()
    cluster.run(timeline.end_us)
    return clients.done


class _Clients:
    def __init__(self, cluster: Cluster, load: Load, timeline: Timeline) -> None:
        self._cluster = cluster
        self._load = load
        self._timeline = timeline
        self._batch_sent = 0
        self.done: dict[str, Done] = {}

    def start(self) -> None:
        workload, at = self._load.workload, self._cluster.at
        for number, arrival in enumerate(workload.chat):
            at(arrival.at_us, partial(self._chat, number))
        for slot, start_us in enumerate(workload.slot_start_us):
            at(start_us, partial(self._round, workload.run_of(slot, 0)))
        for job in range(self._load.batch_jobs):
            at(job * 50_000, self._batch)

    @property
    def _over(self) -> bool:
        return self._cluster.now_us >= self._timeline.window_end_us

    def _send(self, client: str, call: Call) -> None:
        self.done.setdefault(client, Done(client)).records.append(call.record)
        self._cluster.send(call)

    def _chat(self, number: int) -> None:
        if self._over:
            return
        arrival = self._load.workload.chat[number]
        record = RequestRecord(
            traffic=Traffic.CHAT,
            request=f"chat-{number}",
            scheduled_us=self._cluster.now_us,
            input_tokens=arrival.input_tokens,
            wanted_tokens=arrival.output_tokens,
        )
        prompt = chat_prompt(number, arrival.input_tokens)
        self._send(CHAT, Call(record, key_of(CHAT), prompt, 1024, None, f"chat {number} ", lambda call: None))

    def _batch(self) -> None:
        if self._over:
            return
        number, self._batch_sent = self._batch_sent, self._batch_sent + 1
        rows = self._load.workload.chat
        row = rows[number % len(rows)]
        record = RequestRecord(
            traffic=Traffic.AGENT,
            request=f"batch-{number}",
            scheduled_us=self._cluster.now_us,
            input_tokens=row.input_tokens,
            wanted_tokens=row.output_tokens,
        )
        prompt = chat_prompt(BATCH_NUMBERS + number, row.input_tokens)
        call = Call(record, key_of(BATCH), prompt, 1024, None, f"batch {number} ", self._batch_ended)
        self._send(BATCH, call)

    def _batch_ended(self, call: Call) -> None:
        pause = 0 if call.record.outcome is Outcome.OK else RETRY_US
        self._cluster.at(self._cluster.now_us + pause, self._batch)

    def _round(self, run: SessionRun) -> None:
        if self._over:
            return
        spec, client = run.current, self._load.agents[run.slot % len(self._load.agents)]
        record = RequestRecord(
            traffic=Traffic.AGENT,
            request=f"{run.key}-{run.round_index}",
            scheduled_us=self._cluster.now_us,
            input_tokens=spec.input_tokens,
            wanted_tokens=spec.output_tokens,
            session=run.key,
            round_index=run.round_index,
            session_rounds=len(run.session.rounds),
        )
        header = run.key if self._load.session_header else None
        call = Call(
            record, key_of(client), run.prompt(), AGENT_MAX_TOKENS, header, f"session {run.key} ", self._after(run)
        )
        self._send(client, call)

    def _after(self, run: SessionRun) -> Callable[[Call], None]:
        def ended(call: Call) -> None:
            now_us = self._cluster.now_us
            if call.record.outcome is not Outcome.OK:
                self._cluster.at(now_us + RETRY_US, lambda: self._again(call))
                return
            run.round_index += 1
            if run.round_index < len(run.session.rounds):
                self._cluster.at(now_us + run.current.think_us, lambda: self._round(run))
            else:
                following = self._load.workload.run_of(run.slot, run.position + 1)
                self._cluster.at(now_us, lambda: self._round(following))

        return ended

    def _again(self, call: Call) -> None:
        if not self._over:
            call.record.outcome, call.record.end_us = Outcome.UNFINISHED, None
            self._cluster.send(call)
