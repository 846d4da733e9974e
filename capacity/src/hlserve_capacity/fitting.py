"""Fit step costs to measured times: least squares over a few terms, and δ from chunked prefills."""

from collections.abc import Sequence
from dataclasses import dataclass

from hlserve_capacity.roofline import Roofline


@dataclass(frozen=True, slots=True)
class PrefillSample:
    """One measured prefill of `tokens` in chunks of `chunk_tokens`, alone on the engine."""

    tokens: int
    chunk_tokens: int
    measured_us: float

    @property
    def boundaries(self) -> int:
        """Chunk boundaries inside the prompt: ⌈n/C⌉ - 1."""
        return -(-self.tokens // self.chunk_tokens) - 1


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """t = intercept + α·n + β·n² + boundaries · per_boundary. Microseconds."""

    intercept_us: float
    alpha_us_per_token: float
    beta_us_per_token2: float
    per_boundary_us: float


def fit_prefill(samples: Sequence[PrefillSample]) -> PrefillFit:
    """Least squares of the four terms. Raises ValueError if the samples do not tell them apart."""
    scale = float(max((sample.tokens for sample in samples), default=1))
    rows = [[1.0, sample.tokens / scale, (sample.tokens / scale) ** 2, float(sample.boundaries)] for sample in samples]
    intercept, alpha, beta, boundary = least_squares(rows, [sample.measured_us for sample in samples])
    return PrefillFit(intercept, alpha / scale, beta / scale**2, boundary)


def fit_chunk_boundary_us(samples: Sequence[PrefillSample], cost: Roofline) -> float:
    """δ: host time per chunk boundary that the cost model does not explain, in microseconds."""
    rows = [[float(sample.boundaries)] for sample in samples]
    unexplained = [
        sample.measured_us - cost.prefill_us(sample.tokens, chunk_tokens=sample.chunk_tokens) for sample in samples
    ]
    (delta_us,) = least_squares(rows, unexplained)
    return delta_us


def least_squares(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """The coefficients x that minimise |rows · x - targets|², by the normal equations.

    Raises ValueError if the rows do not determine them.
    """
    if not rows or len(rows) != len(targets):
        raise ValueError(f"{len(rows)} rows and {len(targets)} targets: give as many of both, at least one")
    width = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(width)]
        + [sum(row[i] * target for row, target in zip(rows, targets, strict=True))]
        for i in range(width)
    ]
    for column in range(width):
        pivot = max(range(column, width), key=lambda index: abs(matrix[index][column]))
        if abs(matrix[pivot][column]) < 1e-9 * max(1.0, abs(matrix[0][0])):
            raise ValueError("the samples do not tell the terms apart: vary lengths and chunk sizes")
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        for index in range(width):
            if index != column:
                factor = matrix[index][column] / matrix[column][column]
                matrix[index] = [
                    value - factor * head for value, head in zip(matrix[index], matrix[column], strict=True)
                ]
    return [matrix[index][width] / matrix[index][index] for index in range(width)]
