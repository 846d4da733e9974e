"""Numbers that the workers of a pod tell each other, without locks: each writes its own row, and reads all of them.

Pure over a memory of 64-bit cells that somebody else maps (`ledger.Ledger`). A row has a few cells of its worker and then
`COLUMN_CELLS` per name (an endpoint, a class, a lane). A cell has one writer, and an aligned 64-bit store cannot be seen
half. What two workers decide in the same microseconds they decide without each other: a bound can be passed by one request
per further worker, and no more.
"""

from collections.abc import Sequence
from typing import Final, Protocol

COLUMN_CELLS: Final = 8
"""In use, four amounts, a moment; a cache line of their own."""
AMOUNTS: Final = 4
NANOSECONDS: Final = 1_000_000_000


class Column:
    """The cells of one name in every row: four amounts and one moment. One writer, this process."""

    __slots__ = ("_cells", "_others", "_own")

    def __init__(self, cells: "memoryview[int]", own: int, others: Sequence[int]) -> None:
        self._cells = cells
        self._own = own
        self._others = tuple(others)

    def put(self, *amounts: int) -> None:
        """Tells this worker's amounts, up to four."""
        at = self._own + 1
        for amount in amounts:
            self._cells[at] = amount
            at += 1

    def put_moment(self, seconds: float | None) -> None:
        """Tells this worker's moment, in monotonic seconds (the clock of a machine is one for all its processes)."""
        self._cells[self._own + 1 + AMOUNTS] = 0 if seconds is None else int(seconds * NANOSECONDS)

    def others(self) -> tuple[int, int, int, int]:
        """Sums of the other workers' amounts."""
        cells = self._cells
        one = two = three = four = 0
        for at in self._others:
            one += cells[at + 1]
            two += cells[at + 2]
            three += cells[at + 3]
            four += cells[at + 4]
        return one, two, three, four

    def moment(self) -> int:
        """This worker's moment in nanoseconds; 0: none."""
        return self._cells[self._own + 1 + AMOUNTS]

    def earliest(self) -> int:
        """The earliest moment of the other workers, in nanoseconds; 0 if none tells one."""
        return min((moment for at in self._others if (moment := self._cells[at + 1 + AMOUNTS])), default=0)


class Shared(Protocol):
    """What the steps need of the ledger. `None` in its place: this process is the only worker."""

    def column(self, *name: str) -> Column:
        """The cells of a name; the same ones in every worker."""

    def forget(self, *name: str) -> None:
        """This worker has nothing more to tell of a name, for instance of an endpoint that is gone."""

    def waiting(self, count: int) -> None:
        """Tells how many requests wait in this worker."""

    def ring(self) -> None:
        """Wakes the other workers that have waiters."""
