"""Which caps of SGLang 0.5.23 the human-less mode lifts, and which it must keep.

Four classes: (a) bounds that protect latency by holding prefill back, (b) bounds on the prompt tokens of one iteration,
(c) bounds of the hardware and its kernels, (d) bounds of memory. The mode lifts (a) and (b). It never touches (c) and (d):
lifting them buys no throughput, it crashes the engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CapValue = int | float | bool | None
"""A cap's setting as the engine holds it. None: unset."""


class CapClass(StrEnum):
    """Why a cap exists."""

    LATENCY = "a"
    CHUNK = "b"
    HARDWARE = "c"
    MEMORY = "d"


@dataclass(frozen=True, slots=True)
class Cap:
    """One cap by the engine's name for it. `lifted` is the value that switches it off; it only has meaning in classes a and b."""

    name: str
    cap_class: CapClass
    why: str
    lifted: CapValue = None

    @property
    def is_lifted(self) -> bool:
        """Whether the mode changes this cap."""
        return self.cap_class in {CapClass.LATENCY, CapClass.CHUNK}


CAPS: tuple[Cap, ...] = (
    Cap("enable_prefill_delayer", CapClass.LATENCY, "delays prefill so that attention-DP ranks idle less", False),
    Cap("min_free_slots", CapClass.LATENCY, "waits for several free slots before it prefills"),
    Cap("prefill_decode_interval", CapClass.LATENCY, "forces decode passes between two prefills", 0),
    Cap("prefill_max_requests", CapClass.LATENCY, "bounds the requests of one prefill pass"),
    Cap("disable_consecutive_prefill_overlap", CapClass.LATENCY, "trades throughput for a shorter TTFT", False),
    Cap(
        "scheduling_chunk_size",
        CapClass.CHUNK,
        "splits a prompt over passes; the configured size stays for graphs and reserves",
    ),
    Cap(
        "max_prefill_tokens", CapClass.CHUNK, "bounds the prompt tokens of one pass; the memory ceiling takes its place"
    ),
    Cap("enable_dynamic_chunking", CapClass.CHUNK, "shrinks chunks under pipeline parallelism", False),
    Cap("pp_max_micro_batch_size", CapClass.HARDWARE, "keeps pipeline stages balanced"),
    Cap("kv_shard_scratch_tokens", CapClass.HARDWARE, "sizes a kernel's scratch memory"),
    Cap("max_running_requests", CapClass.MEMORY, "bounds the rows of the request table"),
    Cap("max_total_num_tokens", CapClass.MEMORY, "is the KV pool"),
    Cap("prefill_budget_tokens", CapClass.MEMORY, "keeps room for the replies that already run"),
    Cap("max_req_input_len", CapClass.MEMORY, "refuses a prompt that can never fit"),
)


@dataclass(frozen=True, slots=True)
class CapEntry:
    """One line of the cap log: what the cap was, what it is now, and why."""

    cap: Cap
    before: CapValue
    after: CapValue

    def line(self) -> str:
        """The entry as one log line."""
        change = f"{self.before} -> {self.after}" if self.before != self.after else f"{self.before} (unchanged)"
        return f"cap {self.cap.name} class {self.cap.cap_class}: {change}; it {self.cap.why}"


def cap_log(current: Mapping[str, CapValue], prefill_ceiling_tokens: int) -> tuple[CapEntry, ...]:
    """Every known cap that the engine reports, with its value in human-less mode, in the order of `CAPS`.

    `max_prefill_tokens` is not switched off but raised to `prefill_ceiling_tokens`, what activation memory allows: a forward
    pass without any bound would end in an out-of-memory error. Raises ValueError if the ceiling is not positive.
    """
    if prefill_ceiling_tokens < 1:
        raise ValueError(
            f"The prefill ceiling must be at least 1 token, not {prefill_ceiling_tokens}. Lower mem-fraction-static."
        )
    return tuple(
        CapEntry(cap, current[cap.name], _after(cap, current[cap.name], prefill_ceiling_tokens))
        for cap in CAPS
        if cap.name in current
    )


def _after(cap: Cap, before: CapValue, prefill_ceiling_tokens: int) -> CapValue:
    if not cap.is_lifted:
        return before
    if cap.name == "max_prefill_tokens":
        return prefill_ceiling_tokens
    return cap.lifted


def prefill_ceiling_tokens(
    context_length: int, free_activation_mebibytes: float, mebibytes_per_token: float = 1.5
) -> int:
    """Most prompt tokens of one pass that activation memory allows: min(context length, free memory / memory a token).

    1.5 MiB a token is the reserve that SGLang 0.5.23 itself computes with. The result may be 0: then nothing fits.
    """
    return max(0, min(context_length, int(free_activation_mebibytes / mebibytes_per_token)))
