"""The command `hlserve-router`."""

import logging
import os
import socket
import sys
from collections.abc import Collection
from typing import Any

import click
import uvloop

from hlserve_router import build, logs
from hlserve_router.app import Router
from hlserve_router.errors import StartError
from hlserve_router.ledger import VARIABLE as LEDGER_VARIABLE
from hlserve_router.ledger import Ledger
from hlserve_router.memory import keep_large_buffers
from hlserve_router.options import arguments_of, given_of, read_settings, unknown_variables, with_options
from hlserve_router.server import bind, serve
from hlserve_router.settings import Settings
from hlserve_router.supervisor import LISTENER_VARIABLE, PARENT_VARIABLE, WORKER_VARIABLE, Supervisor

_log = logging.getLogger("hlserve_router")


@click.command(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Each option has a variable, like HLSERVE_ROUTER_PORT for --port and HLSERVE_ROUTER_KEYRINGS for --keyring; "
    "the command line counts first.",
)
@click.version_option(build.describe(), message="hlserve-router %(version)s")
@with_options
def main(**options: Any) -> None:
    """Route OpenAI- and Anthropic-style requests to the engine pools of their class."""
    try:
        settings = read_settings(options)
        logs.set_up(settings.log_level)
        # Those of a worker were told by who started it, and it has more of them.
        if not os.environ.get(WORKER_VARIABLE):
            for sentence in unknown_variables(os.environ):
                _log.warning("variable ignored", extra={"fields": {"why": sentence}})
        run(settings, given_of(options).keys() - {"port", "admin_port"})
    except StartError as error:
        click.echo(f"hlserve-router: {error}", err=True)
        sys.exit(2)


def run(settings: Settings, given: Collection[str]) -> None:
    """Serves until a signal. `given`: the settings of the command line, for workers. Raises StartError."""
    if settings.table is not None and not settings.keyrings:
        raise StartError("Give at least one --keyring FILE with --table: without keys every request would be refused.")
    if not os.environ.get(WORKER_VARIABLE) and settings.workers > 1:
        _run_many(settings, given)
        return
    keep_large_buffers()
    inherited = os.environ.get(LEDGER_VARIABLE) if os.environ.get(WORKER_VARIABLE) else None
    router = Router(settings, None if inherited is None else Ledger.of_environment(inherited))
    worker = inherited is not None
    with (
        socket.socket(fileno=int(os.environ[LISTENER_VARIABLE]))
        if worker
        else bind(settings.host, settings.port) as public,
        bind(_loopback(settings.host) if worker else settings.host, settings.admin_port) as admin,
    ):
        uvloop.run(serve(router, public, admin, parent=int(os.environ[PARENT_VARIABLE]) if worker else None))


def _loopback(host: str) -> str:
    """The loopback address of the same family: a host may have only one."""
    return "::1" if ":" in host else "127.0.0.1"


def _run_many(settings: Settings, given: Collection[str]) -> None:
    Router(settings)  # what keeps the workers from starting is said here, once
    arguments = arguments_of(settings, given)
    with bind(settings.host, settings.port) as public, bind(settings.host, settings.admin_port) as admin:
        uvloop.run(Supervisor(settings, public, admin, tuple(arguments)).run())


if __name__ == "__main__":
    main()
