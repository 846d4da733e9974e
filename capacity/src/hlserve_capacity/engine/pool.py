"""KV accounting of one replica: what is resident, what may be evicted, what is promised."""

from hlserve_capacity.engine.radix import RadixTree


class KvPool:
    """Counts KV tokens. `capacity = used + cached + free` holds between calls.

    Used: the tree's tokens under running requests, plus their private tokens (computed, not in the tree yet).
    Promised: what admitted requests will still write; a reservation, not resident.
    """

    def __init__(self, capacity_tokens: int) -> None:
        if capacity_tokens <= 0:
            raise ValueError(f"the KV pool holds {capacity_tokens} tokens; give it at least one")
        self.capacity_tokens = capacity_tokens
        self.tree = RadixTree()
        self.private_tokens = 0
        self.promised_tokens = 0

    @property
    def free_tokens(self) -> int:
        return self.capacity_tokens - self.tree.total_tokens - self.private_tokens

    @property
    def used_tokens(self) -> int:
        """Resident KV of running requests."""
        return self.tree.read_tokens + self.private_tokens

    @property
    def cached_tokens(self) -> int:
        """Resident KV that no running request needs, held sessions included."""
        return self.tree.total_tokens - self.tree.read_tokens

    @property
    def reachable_tokens(self) -> int:
        """Free now, or after evicting what nobody protects."""
        return self.free_tokens + self.tree.evictable_tokens

    @property
    def unpromised_tokens(self) -> int:
        """Reachable tokens that no admitted request was promised."""
        return self.reachable_tokens - self.promised_tokens

    def make_free(self, tokens: int) -> bool:
        """Evict until `tokens` are free. False: protected KV is in the way."""
        missing = tokens - self.free_tokens
        if missing > 0:
            self.tree.evict(missing)
        return self.free_tokens >= tokens
