"""`hlserve keys`: make client keys."""

import os
from pathlib import Path

import click

from hlserve_api.new_key import new_key
from hlserve_local.keys import KeyNameError, key_manifest


@click.group()
def keys() -> None:
    """Make client keys."""


@keys.command("new")
@click.argument("name")
@click.option(
    "--class", "class_name", required=True, metavar="CLASS", help="WorkloadClass that the key's requests run in."
)
@click.option("--tenant", default=None, help="Tenant that the key belongs to.")
@click.option(
    "--write",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    default=None,
    help="Write the manifest to this new file (mode 0600) rather than to standard output.",
)
def new(name: str, class_name: str, tenant: str | None, file: Path | None) -> None:
    """Make a strong key NAME and print its manifest: a ClientKey and the Secret that holds the key.

    The key is shown once. Keep the manifest's Secret out of version control.
    """
    key = new_key()
    try:
        manifest = key_manifest(name, class_name, tenant, key)
    except KeyNameError as failure:
        raise click.UsageError(str(failure)) from None
    if file is None:
        click.echo(manifest, nl=False)
        click.echo(f"\nKey of {name}, shown this once: {key}", err=True)
        return
    _write_new_file(file, manifest)
    click.echo(f"Wrote {file} (mode 0600). It holds the key: keep it out of version control.", err=True)
    click.echo(key)


def _write_new_file(file: Path, text: str) -> None:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise click.UsageError(
            f"{file} exists and is left as it is: name another file, or remove it if its key is no longer used."
        ) from None
    except OSError as failure:
        raise click.UsageError(f"{file} cannot be written: {failure.strerror}.") from None
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
