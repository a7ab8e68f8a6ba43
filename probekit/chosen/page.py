"""Tables on the pages of the analyses of the selected probe."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import pandas as pd

from probekit.amounts import format_number, format_p, percent
from probekit.report.elements.table import Column, ResultTable
from probekit.report.elements.texts import class_label
from probekit.results.table import metric_name

# Column of a file of `PAGE_TABLES` -> how a table writes its values, if they are neither texts nor
# written by `format_number`.
_FORMATS: Mapping[str, Callable[..., str]] = {
    **dict.fromkeys(("feature", "false_positives"), str),
    **dict.fromkeys(("rank", "k"), "{:,}".format),
    "label": class_label,
    "metric": metric_name,
    "p": format_p,
    "n_equal": "{:,.0f}".format,
    "fpr": lambda rate: f"{100 * rate:g} %",
    "fpr_bound": partial(percent, places=2),
    "cost": percent,
}
# Heading of a column -> its column of a file; an interval in the file follows its number.
Columns: TypeAlias = Mapping[Column | str, str]
TESTED: Columns = {"difference": "difference", "p": "p"}
TEST_RATES: Columns = {"test TPR": "tpr", "test FPR": "test_fpr"}


def written_table(title: str, columns: Columns, rows: pd.DataFrame, **options: Any) -> ResultTable:
    """Return rows of a file as a table with these columns, and other options of `ResultTable`."""
    parts = [[name, f"{name}_low", f"{name}_high"] for name in columns.values()]

    def written(row: Mapping[Any, Any], names: Sequence[str]) -> str:
        """Return the cell of a number with its interval, or of another value."""
        usual = str if isinstance(row[names[0]], str) else format_number
        return _FORMATS.get(names[0], usual)(*(row[name] for name in names if name in row))

    cells = [tuple(written(row, names) for names in parts) for row in rows.to_dict("records")]
    return ResultTable(title, list(columns), cells, css="narrow", **options)
