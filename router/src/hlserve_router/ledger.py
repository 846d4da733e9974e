"""The memory behind `cells`: one anonymous file that the supervisor makes and every worker maps, and the doorbells.

Which name has which column stands in a directory at the file's start. A new name takes a column under a file lock, which
ends with its holder; everything else is without locks. A column is free again when no worker uses it.
"""

import fcntl
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from hlserve_router.cells import COLUMN_CELLS, NANOSECONDS, Column
from hlserve_router.errors import StartError

COLUMNS: Final = 8192
"""Names at once: endpoints, classes and lanes of a table. 512 KiB a worker; pages that nobody touches take no memory."""
ROW_CELLS: Final = 8
_BEAT, _CONNECTIONS, _WAITING = range(3)
SILENT_SECONDS: Final = 1.0
"""A worker that has not told of itself for so long gets no connections left to it."""
VARIABLE: Final = "HLSERVE_ROUTER_LEDGER"


def _row(row: int) -> int:
    return COLUMNS + row * (ROW_CELLS + COLUMNS * COLUMN_CELLS)


@dataclass(frozen=True, slots=True)
class Handles:
    """Descriptors that a worker inherits: the file, and every worker's doorbell."""

    file: int
    bells: tuple[int, ...]

    @classmethod
    def make(cls, workers: int) -> "Handles":
        """A new ledger for so many workers."""
        file = os.memfd_create("hlserve-ledger", os.MFD_CLOEXEC)
        os.ftruncate(file, 8 * _row(workers))
        return cls(file, tuple(os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) for _ in range(workers)))

    def variable(self, row: int) -> str:
        """How worker `row` finds them: the value of `VARIABLE` in its environment."""
        return ",".join(str(number) for number in (row, self.file, *self.bells))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All of them, to be passed on."""
        return (self.file, *self.bells)

    def close(self) -> None:
        """Closes them in this process."""
        for descriptor in self.descriptors:
            os.close(descriptor)


class Ledger:
    """This process's view: worker `row`, or the supervisor (row None), which only clears."""

    def __init__(self, handles: Handles, row: int | None) -> None:
        self._handles = handles
        self._row = row
        self._rows = len(handles.bells)
        self._memory = mmap.mmap(handles.file, 8 * _row(self._rows))
        self._cells: memoryview[int] = memoryview(self._memory).cast("q")
        self._columns: dict[tuple[str, ...], tuple[int, Column]] = {}
        self.others = tuple(other for other in range(self._rows) if other != row)

    @classmethod
    def of_environment(cls, value: str) -> "Ledger":
        """The ledger that a supervisor named in `VARIABLE`. Raises StartError."""
        try:
            row, file, *bells = (int(part) for part in value.split(","))
            return cls(Handles(file, tuple(bells)), row)
        except (ValueError, OSError) as error:
            raise StartError(
                f"{VARIABLE} is set and names no ledger ({error}): it is for workers only, unset it."
            ) from error

    @property
    def row(self) -> int:
        """This worker's row. Raises RuntimeError in the supervisor."""
        if self._row is None:
            raise RuntimeError("the supervisor has no row")
        return self._row

    @property
    def bell(self) -> int:
        """This worker's doorbell: readable when it was rung."""
        return self._handles.bells[self.row]

    # names ------------------------------------------------------------------------------------------------------------

    def column(self, *name: str) -> Column:
        """The cells of a name. Raises StartError if more names are in use than there are columns."""
        found = self._columns.get(name)
        if found is None:
            index = self._find(int.from_bytes(blake2b("\0".join(name).encode(), digest_size=8).digest()) >> 1 or 1)
            own, *others = (self._at(row, index) for row in (self.row, *self.others))
            found = self._columns[name] = index, Column(self._cells, own, others)
        return found[1]

    def forget(self, *name: str) -> None:
        """Lets go of a name's column."""
        found = self._columns.pop(name, None)
        if found is not None:
            at = self._at(self.row, found[0])
            self._cells[at : at + COLUMN_CELLS] = _ZEROS

    def _at(self, row: int, index: int) -> int:
        return _row(row) + ROW_CELLS + index * COLUMN_CELLS

    def _find(self, digest: int) -> int:
        with self._locked():
            known = self._cells[:COLUMNS].tolist()
            index = known.index(digest) if digest in known else self._free(known)
            self._cells[index] = digest
            self._cells[self._at(self.row, index)] = 1
        return index

    def _free(self, known: list[int]) -> int:
        if 0 in known:
            return known.index(0)
        for index in range(COLUMNS):
            if not any(self._cells[self._at(row, index)] for row in range(self._rows)):
                return index
        raise StartError(f"The workers share at most {COLUMNS} endpoints, classes and models: run fewer in one router.")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._handles.file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._handles.file, fcntl.LOCK_UN)

    # workers ----------------------------------------------------------------------------------------------------------

    def waiting(self, count: int) -> None:
        """Tells how many requests wait here."""
        self._cells[_row(self.row) + _WAITING] = count

    def ring(self) -> None:
        """Wakes the others that have waiters."""
        for other in self.others:
            if self._cells[_row(other) + _WAITING]:
                self.wake(other)

    def wake(self, row: int) -> None:
        """Rings one doorbell."""
        try:
            os.eventfd_write(self._handles.bells[row], 1)
        except BlockingIOError:
            return  # it was rung 2^64 times and nobody came; once is enough

    def answer(self) -> None:
        """Takes the ringing of this worker's doorbell."""
        try:
            os.eventfd_read(self.bell)
        except BlockingIOError:
            return

    def beat(self, connections: int | None) -> None:
        """Tells that this worker is alive and takes connections, and how many it has. None: it takes no more."""
        at = _row(self.row)
        if connections is not None:
            self._cells[at + _CONNECTIONS] = connections
        self._cells[at + _BEAT] = 0 if connections is None else time.monotonic_ns()

    def lightest(self) -> tuple[int, int] | None:
        """Connections and row of the other worker that has fewest, of those that are alive; None if there is none."""
        newest = time.monotonic_ns() - int(SILENT_SECONDS * NANOSECONDS)
        alive = [
            (self._cells[_row(other) + _CONNECTIONS], other)
            for other in self.others
            if self._cells[_row(other) + _BEAT] > newest
        ]
        return min(alive) if alive else None

    def clear(self, row: int) -> None:
        """Zeroes the row of a worker that is gone, and wakes the others: what it held is free."""
        start, end = _row(row), _row(row + 1)
        self._cells[start:end] = memoryview(bytes(8 * (end - start))).cast("q")
        for other in range(self._rows):
            if other != row:
                self.wake(other)

    def close(self) -> None:
        """Unmaps."""
        self._columns.clear()
        self._cells.release()


_ZEROS: Final = memoryview(bytes(8 * COLUMN_CELLS)).cast("q")


def listen(ledger: Ledger, add_reader: Callable[[int, Callable[[], None]], object], rung: Callable[[], None]) -> None:
    """Calls `rung` whenever this worker's doorbell was rung. `add_reader`: the event loop's."""

    def answered() -> None:
        ledger.answer()
        rung()

    add_reader(ledger.bell, answered)
