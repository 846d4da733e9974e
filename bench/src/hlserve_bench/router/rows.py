"""The raw material: what one measurement of one candidate gave. One JSON object a line."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Row:
    """One case on one candidate in one round. Names of values carry their unit; what was not measured is not there."""

    candidate: str
    case: str
    round: int
    values: Mapping[str, float] = field(default_factory=dict)
    failure: str | None = None
    """Why there are no values."""

    def to_json(self) -> str:
        """One line."""
        document: dict[str, object] = {"candidate": self.candidate, "case": self.case, "round": self.round}
        if self.failure is not None:
            document["failure"] = self.failure
        return json.dumps({**document, "values": {name: _short(value) for name, value in self.values.items()}})


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def read_rows(path: Path) -> list[Row]:
    """What a run wrote. Raises OSError, or ValueError for a line that is no row."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            raw = json.loads(line)
            rows.append(Row(raw["candidate"], raw["case"], raw["round"], raw["values"], raw.get("failure")))
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path}, line {number} is no row of a benchmark ({error!r}). Run it again.") from error
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> None:
    """Replaces the file."""
    path.write_text("".join(f"{row.to_json()}\n" for row in rows), encoding="utf-8")
