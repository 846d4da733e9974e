"""Calibration documents: the coefficients of a real engine's steps, fitted on its own hardware."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from hlserve_capacity.linear import LinearCost

SCHEMA_VERSION = 1


class CalibrationError(ValueError):
    """A calibration that cannot be used; the message says which field and what to do."""


class _Node(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel, populate_by_name=True, extra="ignore")


class FitErrors(_Node):
    """How far the fitted model is from the measured steps."""

    median_percent: float = Field(ge=0)
    max_percent: float = Field(ge=0)


class CalibrationDocument(_Node):
    """`calibration.json`: what `hlserve bench calibrate` prints. Coefficients are microseconds."""

    schema_version: int = SCHEMA_VERSION
    engine: str = Field(description="Engine and version, e.g. sglang 0.5.23.", min_length=1, max_length=128)
    device: str = Field(description="Device name of the device table.", min_length=1, max_length=63)
    model: str = Field(description="Served model or shape name.", min_length=1, max_length=128)
    tensor_parallel: int = Field(default=1, ge=1, le=64)
    t0_us: float = Field(description="Host time per step.", ge=0)
    weight_pass_us: float = Field(description="W: one pass over the weights.", ge=0)
    sequence_us: float = Field(description="s: per sequence in a step.", ge=0)
    context_token_us: float = Field(description="κ: per context token of the decoding sequences.", ge=0)
    prefill_token_us: float = Field(description="c: per prefilled token.", ge=0)
    chunk_boundary_us: float = Field(description="δ: per chunk boundary.", ge=0)
    pool_tokens: int = Field(description="KV tokens of one replica.", ge=1)
    fit_errors: FitErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """A usable calibration: a step cost with δ and its identity."""

    identity: str
    """Engine, model and device in words."""
    cost: LinearCost
    chunk_boundary_us: float
    fit_errors: FitErrors


def parse_calibration(data: bytes | str) -> Calibration:
    """Read `calibration.json`. Raises CalibrationError for a broken document or one of a newer version."""
    try:
        document = CalibrationDocument.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "the document"
        raise CalibrationError(
            f"calibration.json: {place}: {first['msg']}; print a new one with `hlserve bench calibrate`"
        ) from error
    if document.schema_version > SCHEMA_VERSION:
        raise CalibrationError(
            f"calibration.json has schemaVersion {document.schema_version}, this program reads up to {SCHEMA_VERSION}: "
            "upgrade it, or calibrate with this version"
        )
    return from_document(document)


def from_document(document: CalibrationDocument) -> Calibration:
    """The step cost that a document describes. Raises CalibrationError if its steps would take no time."""
    try:
        cost = LinearCost(
            t0_us=document.t0_us,
            weight_pass_us=document.weight_pass_us,
            sequence_us=document.sequence_us,
            context_token_us=document.context_token_us,
            prefill_token_us=document.prefill_token_us,
            pool_tokens=document.pool_tokens,
        )
    except ValueError as error:
        raise CalibrationError(f"calibration.json: {error}") from error
    devices = f"{document.tensor_parallel} × {document.device}"
    return Calibration(
        identity=f"{document.engine}, {document.model} on {devices}",
        cost=cost,
        chunk_boundary_us=document.chunk_boundary_us,
        fit_errors=document.fit_errors,
    )
