"""What the demo draws while an arm runs: one bar with live figures."""

from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hlserve_bench.load.run import Progress as LoadProgress


class ArmView:
    """A progress bar per arm. On anything but a terminal it prints one line per arm and nothing in between."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[figures]}"),
            console=console,
            disable=not console.is_terminal,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, failure: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def start(self, name: str, seconds: float) -> Callable[[LoadProgress], None]:
        """A bar for the next arm; returns what its progress goes to."""
        if not self._console.is_terminal:
            self._console.print(f"{name}: running for {seconds:g} s …")
        task = self._progress.add_task(name, total=seconds, figures="starting engines and router")
        before: list[LoadProgress] = []

        def update(now: LoadProgress) -> None:
            earlier = before[0] if before else now
            self._progress.update(task, completed=min(now.at_seconds, seconds), figures=live_figures(earlier, now))
            before[:] = [*before[-8:], now]

        return update


def live_figures(earlier: LoadProgress, now: LoadProgress) -> str:
    """The figures beside the bar; rates between two looks."""
    passed = now.at_seconds - earlier.at_seconds
    rates = (
        f"chat {(now.chat_tokens - earlier.chat_tokens) / passed:.0f} tok/s, "
        f"agents {(now.agent_tokens - earlier.agent_tokens) / passed:.0f} tok/s"
        if passed > 0
        else "first requests"
    )
    return f"{rates} · chat {now.chat_ok}/{now.chat_sent} done · agent rounds {now.agent_rounds_ok} done, {now.agent_open} open"
