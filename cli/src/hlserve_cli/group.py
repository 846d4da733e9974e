"""The click group whose subcommands come from other distributions, loaded when they are run."""

from collections.abc import Callable, Mapping

import click

from hlserve_cli.commands import Offer, installed_offers, near_matches, short_help


class MemberGroup(click.Group):
    """A group over the offers of the installed members. `find` is called once per object, when names are first needed."""

    def __init__(
        self, find: Callable[[], Mapping[str, tuple[Offer, ...]]] = installed_offers, **attributes: object
    ) -> None:
        super().__init__(**attributes)  # type: ignore[arg-type]
        self._find = find
        self._found: Mapping[str, tuple[Offer, ...]] | None = None

    @property
    def offers(self) -> Mapping[str, tuple[Offer, ...]]:
        """Offers by command name."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all offered commands, sorted."""
        return sorted(self.offers)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command. Raises ClickException (exit 1) in one sentence if its member cannot provide it."""
        offers = self.offers.get(cmd_name)
        return None if offers is None else load(offers)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the named command. An unknown name is a usage error (exit 2) that says what was meant or what exists."""
        name = args[0]
        if name in self.offers or name.startswith("-"):
            return super().resolve_command(ctx, args)
        raise click.UsageError(self._unknown(name), ctx)

    def _unknown(self, name: str) -> str:
        if not self.offers:
            return f"There is no command {name!r}: no member of HlServe is installed. Install one: pip install 'hlserve[local]'."
        near = near_matches(name, self.offers)
        if near:
            return f"There is no command {name!r}. Did you mean {' or '.join(repr(match) for match in near)}?"
        return f"There is no command {name!r}. The commands are: {', '.join(self.offers)}."

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands from their sources, so that help imports no member."""
        rows = [
            (name, short_help(offers[0]) or "(its module cannot be read)")
            for name, offers in sorted(self.offers.items())
        ]
        with formatter.section("Commands"):
            if rows:
                formatter.write_dl(rows)
            else:
                formatter.write_text(
                    "None: no member is installed. pip install 'hlserve[local]' brings up, demo, keys and validate."
                )


def load(offers: tuple[Offer, ...]) -> click.Command:
    """Import the command behind one name. Raises ClickException if two members clash or the import fails."""
    if len(offers) > 1:
        names = " and ".join(sorted(offer.distribution for offer in offers))
        raise click.ClickException(f"The command {offers[0].name!r} is offered by {names}. Uninstall one of them.")
    offer = offers[0]
    try:
        command = offer.entry_point.load()
    except Exception as error:  # The boundary to another distribution: whatever its import raises becomes one sentence.
        cause = f"{type(error).__name__}: {error}"
        raise click.ClickException(
            f"The command {offer.name!r} of {offer.distribution} cannot be loaded ({cause}). "
            f"Install it again: make install, or pip install --force-reinstall {offer.distribution}."
        ) from error
    if not isinstance(command, click.Command):
        raise click.ClickException(
            f"The entry point {offer.entry_point.value} of {offer.distribution} is no click command. Report it as a defect."
        )
    return command
