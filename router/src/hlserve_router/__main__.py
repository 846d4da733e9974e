"""The command `hlserve-router`."""

import os
import sys
from pathlib import Path
from typing import Any

import click
import uvloop
from pydantic import ValidationError

from hlserve_router import logs
from hlserve_router.app import Router
from hlserve_router.errors import StartError
from hlserve_router.server import bind, reserve, serve
from hlserve_router.settings import Settings
from hlserve_router.supervisor import WORKER_VARIABLE, Supervisor


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--table", type=click.Path(path_type=Path), help="Routing table (JSON); watched. Env: HLSERVE_ROUTER_TABLE."
)
@click.option(
    "--keyring",
    "keyrings",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Keyring shard (JSON); repeat; watched.",
)
@click.option("--host", help="Address of both ports.")
@click.option("--port", type=int, help="Port for clients; 0 = any free one.")
@click.option("--admin-port", type=int, help="Port for metrics, reports, pools and classes; 0 = any free one.")
@click.option(
    "--admin-token-file", type=click.Path(path_type=Path), help="File of the token that guards the admin port."
)
@click.option("--workers", type=int, help="Processes that share the port.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="info logs one line a request."
)
def main(**options: Any) -> None:
    """Route OpenAI- and Anthropic-style requests to the engine pools of their class."""
    given = {name: value for name, value in options.items() if value not in (None, ())}
    try:
        settings = _settings(given)
        logs.set_up(settings.log_level)
        run(settings)
    except StartError as error:
        click.echo(f"hlserve-router: {error}", err=True)
        sys.exit(2)


def _settings(given: dict[str, Any]) -> Settings:
    try:
        return Settings(**given)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        variable = f"HLSERVE_ROUTER_{name.upper().replace('-', '_')}"
        raise StartError(f"--{name} (or {variable}): {first['msg']}.") from error


def run(settings: Settings) -> None:
    """Serves until a signal. Raises StartError."""
    if not os.environ.get(WORKER_VARIABLE) and settings.workers > 1:
        _run_many(settings)
        return
    try:
        router = Router(settings)
    except OSError as error:
        raise StartError(f"{settings.admin_token_file} cannot be read: {error.strerror}.") from error
    worker = bool(os.environ.get(WORKER_VARIABLE))
    with (
        bind(settings.host, settings.port, shared=worker) as public,
        bind("127.0.0.1" if worker else settings.host, settings.admin_port) as admin,
    ):
        uvloop.run(serve(router, public, admin))


def _run_many(settings: Settings) -> None:
    with bind(settings.host, settings.port) as alone:  # fails if anybody else, also another router, has the port
        port = alone.getsockname()[1]
    arguments = ["--table", str(settings.table), "--host", settings.host, "--workers", str(settings.workers)]
    for keyring in settings.keyrings:
        arguments += ["--keyring", str(keyring)]
    if settings.admin_token_file is not None:
        arguments += ["--admin-token-file", str(settings.admin_token_file)]
    arguments += ["--log-level", settings.log_level]
    with reserve(settings.host, port) as public, bind(settings.host, settings.admin_port) as admin:
        uvloop.run(Supervisor(settings, public, admin, tuple(arguments)).run())


if __name__ == "__main__":
    main()
