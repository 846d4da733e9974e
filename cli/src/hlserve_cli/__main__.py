"""The console script `hlserve`; also `python -m hlserve_cli`."""

import click

from hlserve_cli.group import MemberGroup


@click.group(cls=MemberGroup, name="hlserve", context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="hlserve", prog_name="hlserve", message="%(prog)s %(version)s")
def main() -> None:
    """Serve people and programs from one cluster, each by its own rule.

    People get latency (Interactive pools, bound by an SLO), programs get throughput (HumanLess pools).
    """


if __name__ == "__main__":
    main(prog_name="hlserve")
