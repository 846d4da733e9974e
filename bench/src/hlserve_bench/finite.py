"""Numbers from a command line: click's ranges let NaN pass, and infinity where no upper bound is set."""

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A FloatRange that refuses NaN and infinity with a usage error."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number.", param, ctx)
        return number
