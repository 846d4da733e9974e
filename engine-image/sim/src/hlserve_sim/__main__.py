"""`hlserve-sim` and `python -m hlserve_sim`."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import uvloop

from hlserve_sim.flags import FlagError, parse
from hlserve_sim.process import serve


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a simulated engine. Exit status 0 after an orderly end, 2 for a command line that cannot be served."""
    try:
        flags = parse(sys.argv[1:] if arguments is None else arguments)
        final_state = uvloop.run(serve(flags))
    except FlagError as error:
        print(f"hlserve-sim: {error}", file=sys.stderr)  # noqa: T201
        return 2
    if flags.state_file is not None:
        Path(flags.state_file).write_bytes(msgspec.json.encode(final_state))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
