"""`python -m hlserve_cluster COMMAND`: what the Makefile's cluster targets run."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from hlserve_cluster import api_profile, full_profile, images, preflight, programs, wheels
from hlserve_cluster.daemons import Daemons
from hlserve_cluster.errors import ClusterError
from hlserve_cluster.gpus import GPUS_PER_NODE
from hlserve_cluster.layout import Layout, state_directory

PROFILES: Final = {"api": api_profile.PROGRAMS, "full": full_profile.PROGRAMS}
_profile = click.option(
    "--profile",
    type=click.Choice(sorted(PROFILES)),
    default="full",
    show_default=True,
    help="api: no pods run, no privilege needed. full: a node that runs pods, needs root.",
)


class _Commands(click.Group):
    """Tells our errors as sentences, not as tracebacks."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except ClusterError as error:
            raise click.ClickException(str(error)) from None


@click.group(cls=_Commands)
def main() -> None:
    """A real Kubernetes on this machine, for tests."""


@main.command()
@_profile
@click.option(
    "--gpus", type=click.IntRange(0, 64), default=GPUS_PER_NODE, show_default=True, help="Simulated GPUs of a node."
)
@click.option("--nodes", type=click.IntRange(0, 1000), default=0, help="Simulated nodes (profile api).")
def up(profile: str, gpus: int, nodes: int) -> None:
    """Start the cluster; harmless if it is up."""
    layout = Layout(state_directory(profile))
    daemons = Daemons(layout).known()
    if daemons and all(daemon.runs() for daemon in daemons):
        click.echo(f"The cluster is up already. {_hint(layout)}")
        return
    if daemons:
        dead = ", ".join(daemon.name for daemon in daemons if not daemon.runs())
        raise ClusterError(
            f"The cluster is half up ({dead} ended, see {layout.logs}). Run: {_make('cluster-down', profile)}."
        )
    _prepare(profile)
    if profile == "full":
        full_profile.start(layout, gpus=gpus)
    else:
        api_profile.start(layout, nodes=nodes, gpus_per_node=gpus)
    click.echo(f"The cluster is up. {_hint(layout)}")


@main.command()
@_profile
def down(profile: str) -> None:
    """End the cluster and delete all that it left; harmless if there is none."""
    layout = Layout(state_directory(profile))
    (full_profile if profile == "full" else api_profile).stop(layout)
    click.echo("The cluster is down.")


@main.command()
@_profile
def status(profile: str) -> None:
    """Tell which processes run. Exit status 1 if the cluster is not wholly up."""
    layout = Layout(state_directory(profile))
    daemons = Daemons(layout).known()
    for daemon in daemons:
        click.echo(f"{'up' if daemon.runs() else 'ENDED':6} {daemon.name:20} process {daemon.pid}")
    if not daemons:
        click.echo(f"There is no cluster. Run: {_make('cluster-up', profile)}.")
    else:
        click.echo(_hint(layout))
    sys.exit(0 if daemons and all(daemon.runs() for daemon in daemons) else 1)


@main.command(name="preflight")
@_profile
@click.option("--images", "with_images", is_flag=True, help="Also what building images needs.")
def check(profile: str, with_images: bool) -> None:
    """Tell what this machine lacks. Exit status 1 if something is missing."""
    found = preflight.problems(profile, PROFILES[profile], images=with_images and profile == "full")
    for problem in found:
        click.echo(problem, err=True)
    if found:
        sys.exit(1)
    click.echo(f"This machine has what the profile {profile} needs.")


@main.command(name="programs")
@_profile
def build_programs(profile: str) -> None:
    """Build what the cache lacks, and print where each program is."""
    _prepare(profile)
    for name in PROFILES[profile]:
        click.echo(programs.PROGRAMS[name].folder)


@main.command(name="images")
@click.option("--base", default="", help="Base image; unset: a Debian 12 made on this machine.")
@click.option("--load/--no-load", default=True, help="Give them to the cluster, if it is up.")
@click.option("--missing", is_flag=True, help="Only those that were never built.")
@click.argument("names", nargs=-1, type=click.Choice(sorted(wheels.IMAGES)))
def build_images(base: str, load: bool, missing: bool, names: Sequence[str]) -> None:
    """Build the images (all, or those named)."""
    chosen = names or tuple(wheels.IMAGES)
    images.build([n for n in chosen if not (missing and images.archive_file(n).exists())], click.echo, base)
    layout = Layout(state_directory("full"))
    if load and Daemons(layout).known():
        images.load(layout, chosen)
        click.echo(f"The cluster has {', '.join(images.reference(name) for name in chosen)}.")


@main.command(name="helm")
def fetch_helm() -> None:
    """Fetch Helm 4, Helm 3 and kubectl if the cache lacks them."""
    programs.ensure(["helm-4", "helm-3"], click.echo)


@main.command(name="tool")
@click.argument("name", type=click.Choice(["kubectl", "helm", "helm3"]))
def tool(name: str) -> None:
    """Print the path of kubectl, Helm 4 (helm) or Helm 3 (helm3)."""
    found: Path = programs.kubectl() if name == "kubectl" else programs.helm(3 if name == "helm3" else 4)
    click.echo(found)


def _prepare(profile: str) -> None:
    found = preflight.problems(profile, PROFILES[profile])
    if found:
        raise ClusterError("\n".join(found))
    programs.ensure(PROFILES[profile], click.echo)


def _hint(layout: Layout) -> str:
    return f"Use it:\nexport KUBECONFIG={layout.admin}\nalias kubectl={programs.kubectl()}"


def _make(target: str, profile: str) -> str:
    return f"make {target}" + ("" if profile == "full" else f" PROFILE={profile}")


if __name__ == "__main__":
    main(prog_name="python -m hlserve_cluster")
