"""The series that every ordinary request adds to, looked up once: its steps add to numbers, not to names and labels."""

from hlserve_api.answers import Outcome
from hlserve_router.metrics import Metrics
from hlserve_router.state import AffinityResult


class ClassMeters:
    """Series of a client's requests in one class."""

    __slots__ = ("client_ok", "client_tokens", "overhead", "queue_wait")

    def __init__(self, metrics: Metrics, client: str, class_name: str) -> None:
        label = metrics.client_label(client)
        self.overhead = metrics.histogram("hlserve_router_overhead_seconds", (class_name,))
        self.queue_wait = metrics.histogram("hlserve_router_queue_wait_seconds", (class_name,))
        self.client_ok = metrics.counter("hlserve_router_client_requests_total", (label, class_name, Outcome.OK.value))
        self.client_tokens = metrics.counter("hlserve_router_client_tokens_total", (label,))


class PoolMeters:
    """Series of one class's requests in one pool."""

    __slots__ = ("affinity", "cached_tokens", "e2e", "input_tokens", "ok", "output_tokens", "tpot", "ttft")

    def __init__(self, metrics: Metrics, class_name: str, pool: str) -> None:
        labels = (class_name, pool)
        self.ok = metrics.counter("hlserve_router_requests_total", (*labels, Outcome.OK.value, ""))
        self.e2e = metrics.histogram("hlserve_router_e2e_seconds", labels)
        self.ttft = metrics.histogram("hlserve_router_ttft_seconds", labels)
        self.tpot = metrics.histogram("hlserve_router_tpot_seconds", labels)
        self.input_tokens = metrics.counter("hlserve_router_input_tokens_total", labels)
        self.cached_tokens = metrics.counter("hlserve_router_cached_tokens_total", labels)
        self.output_tokens = metrics.counter("hlserve_router_output_tokens_total", labels)
        self.affinity = {
            result: metrics.counter("hlserve_router_affinity_total", (*labels, result.value))
            for result in AffinityResult
        }
