"""`hlserve up`: serve a folder of manifests on this machine until Ctrl-C."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Final

import click
import httpx
from rich.console import Console
from rich.live import Live

from hlserve_bench.finite import FiniteRange
from hlserve_local.engine_option import EngineOptionError, parse_engine_options
from hlserve_local.events import Event
from hlserve_local.live import Poller
from hlserve_local.manifests import FolderMissingError
from hlserve_local.planning import NotSimulatedError, SimulationOptions
from hlserve_local.processes import StartError
from hlserve_local.render import is_bad, line, tables
from hlserve_local.router_process import PortInUseError
from hlserve_local.snippets import all_snippets
from hlserve_local.stack import ManifestsRefusedError, Stack
from hlserve_router.errors import StartError as RouterStartError
from hlserve_router.limit_store import store_address

EXIT_REFUSED: Final = 1
EXIT_USAGE: Final = 2
LIVE_SECONDS: Final = 1.0
LINE_SECONDS: Final = 5.0
DEFAULT_PORT: Final = 8000


@click.command()
@click.option(
    "-f", "folder", required=True, type=click.Path(path_type=Path), help="Folder with manifests, or one manifest file."
)
@click.option(
    "--engine",
    "engines",
    multiple=True,
    metavar="POOL=URL[,URL...]",
    help="Serve this pool with OpenAI-compatible servers that already run, instead of simulated engines. Repeatable.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True, help="Port; 0: a free one."
)
@click.option("--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Router processes.")
@click.option(
    "--limits-store",
    metavar="STORE",
    help="Where limits and budgets are kept: sqlite:PATH, valkey://HOST:PORT/DB or memory (no budgets). Default: a file that is "
    "gone when this ends.",
)
@click.option("--no-live", is_flag=True, help="Print plain lines even on a terminal.")
@click.option(
    "--time-scale",
    type=FiniteRange(min=0.0, min_open=True),
    default=1.0,
    show_default=True,
    help="Engine seconds per second: 10 runs the simulated engines ten times faster.",
)
def up(
    folder: Path,
    engines: tuple[str, ...],
    port: int,
    workers: int,
    limits_store: str | None,
    no_live: bool,
    time_scale: float,
) -> None:
    """Serve the manifests of a folder on this machine: simulated engines, the real router.

    Changes in the folder are taken over without dropping a stream. Ctrl-C stops everything; a second Ctrl-C at once.
    """
    try:
        foreign = parse_engine_options(engines)
    except EngineOptionError as failure:
        raise click.UsageError(str(failure)) from None
    if limits_store is not None:
        try:
            store_address(limits_store)
        except RouterStartError as failure:
            raise click.UsageError(str(failure)) from None
    stack = Stack(
        folder,
        foreign,
        port=port,
        workers=workers,
        simulation=SimulationOptions(time_scale=time_scale),
        watch=True,
        limits_store=limits_store,
    )
    raise SystemExit(asyncio.run(_Session(stack, plain=no_live).run()))


class _Session:
    """One `hlserve up` from start to stop."""

    def __init__(self, stack: Stack, *, plain: bool) -> None:
        self._stack = stack
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = self._console.is_terminal and not plain
        self._stop = asyncio.Event()
        self._interrupts = 0
        self._started = False

    async def run(self) -> int:
        """Serve until a signal; returns the exit status."""
        work = asyncio.create_task(self._serve())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._interrupt, work)
        try:
            await work
        except asyncio.CancelledError:
            click.echo("Stopped before it was ready.", err=True)
        except ManifestsRefusedError as failure:
            click.echo(failure, err=True)
            return EXIT_REFUSED
        except (EngineOptionError, FolderMissingError, NotSimulatedError, PortInUseError) as failure:
            click.echo(f"Error: {failure}", err=True)
            return EXIT_USAGE
        except StartError as failure:
            click.echo(f"Error: {failure}", err=True)
            return EXIT_REFUSED
        return 0

    def _interrupt(self, work: "asyncio.Task[None]") -> None:
        self._interrupts += 1
        if self._interrupts > 1:
            self._stack.kill()
        elif self._started:
            self._stop.set()
        else:
            work.cancel()

    async def _serve(self) -> None:
        click.echo("Starting engines and router …", err=True)
        async with self._stack as stack:
            self._started = True
            for problem in stack.plan.warnings:
                click.echo(str(problem), err=True)
            for event in stack.events.recent:
                _print_event(event)
            self._introduce()
            async with httpx.AsyncClient(timeout=httpx.Timeout(1.0), trust_env=False) as client:
                poller = Poller(stack, client)
                await (self._show_live(poller) if self._live else self._show_lines(poller))
            click.echo("Stopping engines and router …", err=True)
        click.echo("Stopped.", err=True)

    def _introduce(self) -> None:
        stack = self._stack
        click.echo(f"\nHlServe listens on {stack.base_url} (admin {stack.admin_url}, logs {stack.directory})\n")
        for pool in stack.plan.pools:
            click.echo(f"pool {pool.name} ({pool.pool.spec.mode})")
            for setting in pool.settings:
                click.echo(f"  {setting}")
        for access in stack.accesses:
            click.echo(f"\n{all_snippets(access, stack.base_url)}")
        click.echo()

    async def _show_live(self, poller: Poller) -> None:
        with Live(console=self._console, auto_refresh=False) as live:
            while not self._stop.is_set():
                live.update(tables(await poller.view(), self._stack.events.recent, self._stack.base_url), refresh=True)
                await self._pause(LIVE_SECONDS)

    async def _show_lines(self, poller: Poller) -> None:
        self._stack.events.listen(_print_event)
        last = ""
        while not self._stop.is_set():
            text = line(await poller.view())
            if text != last:
                click.echo(text)
            last = text
            await self._pause(LINE_SECONDS)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop.wait(), seconds)


def _print_event(event: Event) -> None:
    click.echo(str(event), err=is_bad(event))
