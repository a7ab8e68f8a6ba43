"""The key `confounds` of an experiment: columns whose part of a score is taken out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from probekit.data.examples import Dataset
from probekit.errors import ConfigError, DataError, UnknownNameError, nearest
from probekit.section import Distinct, rule_error

if TYPE_CHECKING:
    from probekit.experiment.activations import AnyExperiment

# Of the text, and the numbers of the network's output, unless the data have columns of these names.
LENGTH, OUTPUT = "length", "output"
FEWEST_GROUPS = 3  # for each value of a category, on average
FEW_VALUES = 10  # of a number that may be a category

Confounds = Annotated[
    Distinct[Annotated[str, Field(min_length=1)]] | None,
    Field(
        description="columns of the data that may explain the label, `length` of the text, and "
        "`output`, the numbers of the baseline of this name; the page shows what the probe adds to "
        "all of them together",
        examples=["[length, source]"],
    ),
]


def check(settings: Sequence[str], experiment: AnyExperiment) -> None:
    """Check the rules of an experiment with confounds."""
    columns = experiment.data.columns
    for key in ("label", "group", "text", "id", "token"):
        if getattr(columns, key, None) in settings:
            raise rule_error(
                f"`{getattr(columns, key)}` is the column of the {key}; name a column that may "
                "explain the label in another way",
                "confounds",
            )
    if experiment.split.leave_out in settings:
        raise rule_error(
            f"`{experiment.split.leave_out}` is left out whole, so that no probe is fitted on the "
            "values that are tested: remove it from one of both",
            "confounds",
        )


def check_rows(
    settings: Sequence[str], experiment: AnyExperiment, dataset: Dataset, *, has_texts: bool
) -> None:
    """Check the columns of the data that are confounds.

    Raises:
        UnknownNameError: a column does not exist.
        ConfigError: there are no texts, whose length is a confound, or no numbers of the output.
        DataError: a cell is empty, a category has too many values, or none of its values has two
            labels.
    """
    names = list(dict(dataset.examples[0].values))
    n_groups, labels = int(dataset.group_codes.max()) + 1, dataset.labels
    with experiment.at("confounds"):
        for name in settings:
            if name == LENGTH and name not in names and not has_texts:
                raise ConfigError("`length` needs the texts, which given activations do not have.")
            if name == OUTPUT and name not in names:
                capture = getattr(experiment, "capture", None)  # given activations have none
                if capture is None or capture.requests is not None:
                    raise ConfigError(
                        "`output` needs passes of the network: leave out `capture.requests`, or "
                        "give activations with `outputs`."
                    )
                if name not in experiment.probe.baselines:
                    raise ConfigError("`output` needs `output` in `probe.baselines`.")
            if name not in (*names, LENGTH, OUTPUT):
                allowed = [*names, LENGTH, OUTPUT]
                raise UnknownNameError(f"No column {name!r}. {nearest(name, allowed)}")
        for name in [one for one in settings if one in names]:
            cells = [dict(one.values)[name].strip() for one in dataset.examples]
            values, numbers = set(cells), numbers_in(cells)
            for row, cell in enumerate(cells):
                if cell == "" or (numbers and not math.isfinite(numbers[row])):
                    text = f"{dataset.examples[row].where}: `{name}` is {cell or 'empty'}. Fill in "
                    raise DataError(f"{text}a finite value, or leave the row out.")
            if not numbers and len(values) * FEWEST_GROUPS > n_groups:
                raise DataError(
                    f"`{name}` has {len(values):,} values in {n_groups:,} groups. A category needs "
                    f"at least {FEWEST_GROUPS} groups for each value on average: join its values."
                )
            pairs = set(zip(cells, labels, strict=True))
            is_few = not experiment.reads_numbers and (not numbers or len(values) <= FEW_VALUES)
            if is_few and 1 < len(values) == len(pairs):
                of_group = set(zip(dataset.group_codes.tolist(), cells, labels, strict=True))
                whole = f"Every group has one `{name}` and one label, and no"
                raise DataError(
                    f"{whole if len(of_group) == n_groups else 'No'} `{name}` has both labels: the "
                    "two cannot be separated here. Add rows in which they differ, or remove it "
                    "from `confounds`."
                )


def numbers_in(cells: Sequence[Any]) -> list[float] | None:
    """Return the cells as numbers; None if one of them is none, so that they are categories.

    >>> numbers_in(["1", "2.5"]), numbers_in(["1", "one"])
    ([1.0, 2.5], None)
    """
    try:
        return [float(cell) for cell in cells]
    except ValueError:
        return None
