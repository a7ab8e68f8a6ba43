"""How much steering a network bears: its loss on plain texts at doses of a vector.

The loss is the mean cross-entropy of the next token, in nats, over all tokens of all texts. A dose
is calibrated when the loss is a given factor of that without steering.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
import torch
from torch.nn.functional import cross_entropy

from probekit.errors import ConfigError, DataError
from probekit.interventions.edits import add, run_edited
from probekit.lazy_rows import Floats
from probekit.model.config import Bos
from probekit.model.passes.inputs import NOT_COUNTED, next_tokens
from probekit.pipeline.look.apply import ProbedModel

MOST_DOSE = 1024.0
HALVINGS = 6  # of the interval of the dose, on a logarithmic scale
TEXTS_AT_ONCE = 8


def calibrated_doses(
    network: ProbedModel,
    vector: Floats,
    texts: Sequence[str],
    factor: float,
    *,
    bos: Bos = "auto",
    site: str | None = None,
) -> tuple[float, pd.DataFrame]:
    """Return the dose at which the loss has risen by a factor, and the loss at all tried doses.

    The table has the columns `dose`, `loss` and `factor`. Doses are doubled from 1, or halved,
    until the factor lies between two of them; their interval is then halved on a logarithmic
    scale. The dose is its lower end, within 2 %.

    Args:
        network: the network of the probe; see `load_network`.
        vector: result of `steering_vector`.
        texts: plain texts, of two tokens and more.
        factor: of the loss, above 1.
        bos: whether beginning-of-text precedes each text.
        site: name of the steered site; None means that of the probe.

    Raises:
        ConfigError: the factor is not above 1.
        DataError: no text has two tokens, or no dose up to `MOST_DOSE` reaches the factor.
    """
    if not (math.isfinite(factor) and factor > 1):
        raise ConfigError(f"The factor of the loss is {factor:g}. Give a number above 1, as 1.1.")
    model, place = network.model, site or network.selections[0]
    batches = [
        network.tokenizer.batch(texts[first : first + TEXTS_AT_ONCE], bos=bos, side="right").to(
            model.device
        )
        for first in range(0, len(texts), TEXTS_AT_ONCE)
    ]

    def loss(dose: float) -> float:
        """Return the mean loss at a dose."""
        total, n_tokens = 0.0, 0
        for batch in batches:
            targets = next_tokens(batch.ids, batch.mask)
            edits = [(place, add(torch.from_numpy(dose * vector)))]
            with torch.no_grad():
                logits = run_edited(model, batch, edits).double()
            one_by_one = logits.flatten(0, 1), targets.flatten()
            total += float(cross_entropy(*one_by_one, ignore_index=NOT_COUNTED, reduction="sum"))
            n_tokens += int((targets != NOT_COUNTED).sum())
        return total / n_tokens if n_tokens else math.nan

    losses = {0.0: loss(0.0)}
    if math.isnan(losses[0.0]):
        raise DataError("No text has two tokens, so that there is no loss. Give longer texts.")
    most = factor * losses[0.0]
    high = 1.0
    while losses.setdefault(high, loss(high)) <= most:
        high *= 2
        if high > MOST_DOSE:
            raise DataError(
                f"At {MOST_DOSE:g} standard deviations the loss is "
                f"{losses[MOST_DOSE] / losses[0.0]:.3g} times that without steering, less than "
                f"{factor:g}. Give a smaller factor."
            )
    low = high / 2
    while losses.setdefault(low, loss(low)) > most:
        low, high = low / 2, low
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        losses[middle] = loss(middle)
        low, high = (middle, high) if losses[middle] <= most else (low, middle)
    rows = pd.DataFrame(sorted(losses.items()), columns=["dose", "loss"])
    return low, rows.assign(factor=rows["loss"] / losses[0.0])
