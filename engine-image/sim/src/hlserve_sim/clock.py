"""The engine's clock: monotonic wall time, scaled, in integer microseconds since the server started."""

from time import monotonic_ns


class Clock:
    """Engine time. `scale` is engine seconds per wall second."""

    __slots__ = ("_scale", "_start_ns")

    def __init__(self, scale: float) -> None:
        self._scale = scale
        self._start_ns = monotonic_ns()

    @property
    def scale(self) -> float:
        """Engine seconds per wall second."""
        return self._scale

    def now_us(self) -> int:
        """Engine microseconds now."""
        return int((monotonic_ns() - self._start_ns) * self._scale / 1000)

    def wall_seconds(self, engine_us: int) -> float:
        """How long `engine_us` engine microseconds take on the wall."""
        return engine_us / self._scale / 1e6
