"""Patches of one pair of texts, in numbers and names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd


@dataclass(frozen=True, eq=False)
class PatchedPair:
    """Effect of patching each site, head and position of one pair of texts.

    The measure is the logit of `answer` minus that of `wrong` after the last token.

    Attributes:
        clean: tokens of the base text.
        corrupt: tokens of its counterfactual, the source of the activations; equally many.
        answer: right token after the clean text.
        wrong: the token whose logit is subtracted.
        base: logit difference after the clean text.
        source: logit difference after the corrupt text.
        rows: one row per patch, in forward order, with the columns `site` (with its head or
            neuron), `layer`, `head`, `position` (missing if all positions are patched), `edited`
            (logit difference with the patch), `effect` (edited minus base), `recovery` (effect as a
            share of source minus base) and `estimate` (effect estimated by attribution patching).
            Missing values: `estimate` without attribution patching; the others where a patch is
            only estimated; recovery if source equals base.
        unspaced: answers without a leading space that are single tokens with one, too.

    >>> rows = pd.DataFrame({"estimate": [None]})
    >>> pair = PatchedPair(("a",), ("b",), " x", " y", 1.0, -1.0, rows)
    >>> pair.difference, pair.is_estimated
    (-2.0, False)
    """

    clean: tuple[str, ...]
    corrupt: tuple[str, ...]
    answer: str
    wrong: str
    base: float
    source: float
    rows: pd.DataFrame
    unspaced: tuple[str, ...] = ()

    @property
    def difference(self) -> float:
        """Source minus base, the denominator of recoveries."""
        return self.source - self.base

    @property
    def is_estimated(self) -> bool:
        """Whether attribution patching selected the patches."""
        return bool(self.rows["estimate"].notna().any())

    @property
    def of_positions(self) -> pd.DataFrame:
        """The rows of patches at one position."""
        return self.rows[self.rows["position"].notna()]

    @property
    def of_heads(self) -> pd.DataFrame:
        """The rows of heads patched at all positions."""
        return self.rows[self.rows["position"].isna()]

    def strongest(self, rows: pd.DataFrame, n: int) -> pd.DataFrame:
        """Return the n rows with the largest absolute effects, without patches only estimated."""
        known = rows.dropna(subset="effect")
        order = np.argsort(-known["effect"].abs().to_numpy(), kind="stable")
        return known.iloc[order[:n]]
