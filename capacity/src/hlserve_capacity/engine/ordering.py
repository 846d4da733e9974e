"""The waiting queue and the order in which it is served."""

from bisect import bisect_left, insort
from collections.abc import Iterator

from hlserve_capacity.engine.radix import RadixTree
from hlserve_capacity.engine.sequence import Sequence
from hlserve_capacity.engine.types import EngineConfig, SchedulePolicy


def _rank(sequence: Sequence) -> int:
    return sequence.order


class WaitingQueue:
    """Requests without KV, kept in order of submission: a retracted request regains its place."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def add(self, sequence: Sequence) -> None:
        if self._items and self._items[-1].order > sequence.order:
            insort(self._items, sequence, key=_rank)
        else:
            self._items.append(sequence)

    def remove(self, sequence: Sequence) -> int:
        """Take a request out. Returns how many earlier ones it leaves behind."""
        at = bisect_left(self._items, sequence.order, key=_rank)
        del self._items[at]
        return at

    def head(self, count: int) -> list[Sequence]:
        return self._items[:count]


def matched_tokens(sequence: Sequence, tree: RadixTree) -> int:
    """Cached prefix of a waiting request, looked up again only if the tree has changed."""
    if sequence.matched_version != tree.version:
        sequence.matched = tree.match_tokens(sequence.key, sequence.prompt_tokens)
        sequence.matched_version = tree.version
    return sequence.matched


def service_order(queue: WaitingQueue, config: EngineConfig, tree: RadixTree, now_us: int) -> list[Sequence]:
    """Who is tried first: admitted sessions, then priority, then the overdue, then the policy; ties by submission.

    LPM alone lets a cold prompt starve while hits keep coming. Its two bounds: requests let past (which leaves the reuse of
    the sessions in flight alone) and age in time (which does not: past the pool every request is old).
    """
    lpm = config.schedule_policy is SchedulePolicy.LPM and not config.disable_radix_cache
    if lpm and config.lpm_max_waiting is not None and len(queue) > config.lpm_max_waiting:
        lpm = False
    if not (lpm or config.priority_scheduling or config.kv_aware_admission):
        return list(queue)
    sign = 0 if not config.priority_scheduling else (1 if config.low_priority_values_first else -1)

    def overdue(sequence: Sequence) -> bool:
        late = config.max_age_us is not None and now_us - sequence.arrived_us > config.max_age_us
        return late or (config.lpm_max_overtakes is not None and sequence.overtaken >= config.lpm_max_overtakes)

    def key(sequence: Sequence) -> tuple[bool, int, bool, int, int]:
        match = 0
        on_time = True
        # Sessions outside the admission bound enter in order of arrival, so that the wait of each is bounded by those before it.
        if lpm and (sequence.admitted or not config.kv_aware_admission):
            on_time = not overdue(sequence)
            match = matched_tokens(sequence, tree) if on_time else 0
        return not sequence.admitted, sign * sequence.request.priority, on_time, -match, sequence.order

    return sorted(queue, key=key)
