"""Rates of simulated events, written row by row to a CSV file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

DOUBTFUL = 0.055  # sizes above are simulated again
MORE_DRAWS = 5  # times as many draws


@dataclass(frozen=True)
class Rate:
    """Share of the draws in which something happened, such as a rejection.

    Attributes:
        rate: share of all draws.
        error: Monte Carlo standard error of the rate.
        no_verdict: share of the draws without a verdict, which count as "did not happen".
        draws: number of draws.
    """

    rate: float
    error: float
    no_verdict: float
    draws: int

    @classmethod
    def of(cls, happened: Sequence[bool | None]) -> Rate:
        """Return the rate of True; None is a draw without a verdict."""
        n = len(happened)
        rate = sum(one is True for one in happened) / n
        error = float(np.sqrt(max(rate * (1 - rate), 1 / n) / n))
        return cls(rate, error, sum(one is None for one in happened) / n, n)


def size_of(rate: Callable[[int], Rate], draws: int) -> Rate:
    """Return the size of a test; a doubtful one is simulated again with more draws.

    Args:
        rate: returns the rate of rejections, given the number of draws.
        draws: number of draws.
    """
    found = rate(draws)
    return rate(MORE_DRAWS * draws) if found.rate > DOUBTFUL else found


def simulate(
    path: Path, cases: Iterable[Any], simulated: Callable[[Any], Iterable[dict[str, Any]]]
) -> pd.DataFrame:
    """Return the rows of all cases; those that the file already has are not simulated again.

    Args:
        path: CSV file that grows by the rows of each case.
        cases: dataclasses whose fields become columns.
        simulated: returns the rows of a case.
    """
    done = pd.read_csv(path) if path.exists() else pd.DataFrame()
    known = {str(case) for case in done["case"]} if len(done) else set()
    for case in cases:
        if str(case) in known:
            continue
        rows = [{"case": str(case), **asdict(case), **row} for row in simulated(case)]
        done = pd.concat([done, pd.DataFrame(rows)], ignore_index=True)
        done.to_csv(path, index=False)
        print(pd.DataFrame(rows).drop(columns="case").to_string(header=False), flush=True)
    return done
