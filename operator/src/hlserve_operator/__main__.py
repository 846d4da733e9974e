"""The console script `hlserve-operator`; also `python -m hlserve_operator`."""

import asyncio
from pathlib import Path
from typing import Any

import click
import yaml

from hlserve_capacity.derive import derive
from hlserve_operator import logs
from hlserve_operator.errors import OperatorError
from hlserve_operator.files import read_pools
from hlserve_operator.plan import plan
from hlserve_operator.settings import options, read_settings
from hlserve_operator.state import Manifest, NotRenderableError, Release


@click.group(name="hlserve-operator", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hlserve-operator", prog_name="hlserve-operator", message="%(prog)s %(version)s")
def main() -> None:
    """Turn HlServe's custom resources into engine pools, a routing table and keyrings: in a cluster, or on paper."""


@main.command()
@click.option(
    "-f", "--filename", "path", required=True, type=click.Path(path_type=Path), help="Manifest file, or folder of them."
)
@click.option("--engine-image", help="Engine image of pools that name none.")
@click.option(
    "--release", default="hlserve", show_default=True, help="Name of the release that routers and operator belong to."
)
@click.option(
    "--monitoring-namespace", help="Name of the namespace whose Prometheus may read engines' metrics; unset: none may."
)
def render(path: Path, engine_image: str | None, release: str, monitoring_namespace: str | None) -> None:
    """Print the Kubernetes objects of each ServingPool as YAML. Reads files, talks to no cluster."""
    monitoring = {"kubernetes.io/metadata.name": monitoring_namespace} if monitoring_namespace is not None else {}
    settings = Release(name=release, default_image=engine_image, monitoring_namespace_labels=monitoring)
    try:
        objects = [manifest for pool in read_pools(path) for manifest in plan(pool, derive(pool), settings).objects]
    except NotRenderableError as error:
        raise click.ClickException(str(error)) from error
    click.echo(to_yaml(objects), nl=False)


def run(**given: Any) -> None:
    """Run in a cluster: keep pools, the routing table and the keyrings of one namespace as its custom resources say."""
    # The Kubernetes client and kopf take seconds to import, which `render` does without.
    from hlserve_operator import run as process

    try:
        settings = read_settings(given)
        logs.set_up(settings.log_level)
        asyncio.run(process.main(settings))
    except OperatorError as error:
        raise click.ClickException(str(error)) from error


main.add_command(click.Command("run", callback=run, params=list(options()), help=run.__doc__))


def to_yaml(objects: list[Manifest]) -> str:
    """The objects as YAML documents, in their order, keys as they were built."""
    return yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, explicit_start=True, width=140)


class _Dumper(yaml.SafeDumper):
    """Writes a value out wherever it stands: anchors would make the output hard to read and to diff."""

    def ignore_aliases(self, data: object) -> bool:
        return True


if __name__ == "__main__":
    main(prog_name="hlserve-operator")
