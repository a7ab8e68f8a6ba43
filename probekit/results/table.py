"""The tables results.csv and differences.csv: columns, reading, and places on the layer axis."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd

from probekit.chosen.registry import TABLES
from probekit.errors import DataError
from probekit.files import read_csv
from probekit.model.config import MAX_LAYERS
from probekit.model.sites.sites import JOINT
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import TARGETS
from probekit.results.record import reading_run_file

ColumnType = Literal["text", "number", "integer", "finite", "count", "boolean"]

# Types of columns of integers from 0, and types of columns without empty cells.
WHOLE, FILLED = ("integer", "count"), ("finite", "count")


@dataclass(frozen=True)
class TableColumn:
    """One column of a table on disk.

    Attributes:
        name: the name in the header.
        meaning: the contents of the cells, for the reference pages.
        type: the type of its cells. Empty cells are "" in text columns, NA in boolean columns and
            NaN in columns of numbers or integers. Integers start at 0; finite numbers and counts
            (integers) fill each cell.
        allowed: the allowed values of text cells; empty for any.
        is_new: whether tables of earlier versions lack it; its cells are then empty.
    """

    name: str
    meaning: str
    type: ColumnType = "text"
    allowed: tuple[str, ...] = ()
    is_new: bool = False


def limits(prefix: str, of: str) -> Iterator[TableColumn]:
    """Yield the columns of the ends of an interval: `low` and `high`, after the prefix."""
    for end, name in (("lower", "low"), ("upper", "high")):
        yield TableColumn(f"{prefix}{name}", f"{end} end of {of}", "number")


RESULTS = (
    TableColumn("run", "key of the run, the name of its folder"),
    TableColumn("model", "model as given in the experiment"),
    TableColumn("dataset", "name of the data set"),
    TableColumn("site", "probed site; empty for baselines and for scores that combine choices"),
    TableColumn("layer", "block of the site; empty outside of the blocks", "number"),
    TableColumn("component", "kind of the site, without the block"),
    TableColumn("head", "attention head, if a single one is probed", "number"),
    TableColumn("position", "probed token, such as `last` or `word:last-1`"),
    TableColumn("probe", "kind of probe with its options"),
    TableColumn(
        "target",
        "what is scored: the task, a control, a baseline or the random weights",
        allowed=tuple(TARGETS),
    ),
    TableColumn(
        "split",
        "rows that are scored: test rows, validation rows of the inner folds, blocks of online "
        "coding, or test rows after training on fewer rows",
        allowed=("test", "validation", "online", "learning"),
    ),
    TableColumn("fold", "outer fold; empty for scores of all test rows", "number"),
    TableColumn("metric", "name of the metric", allowed=tuple(METRICS)),
    TableColumn("value", "value of the metric", "number"),
    *limits("ci_", "the 95 % interval over groups"),
    TableColumn("chance", "score of predictions that ignore the activations", "number"),
    TableColumn("n_train", "number of training rows", "number"),
    TableColumn("n_test", "number of scored rows", "number"),
    TableColumn("n_groups", "number of groups among the scored rows", "number"),
    TableColumn("C", "penalty selected by cross-validation: C or alpha", "number"),
    TableColumn(
        "close_choices",
        "choices of C within one held-out row, by the log loss",
        "number",
        is_new=True,
    ),
    TableColumn("n_iter", "iterations of the solver", "number"),
    TableColumn("converged", "whether the solver converged", "boolean"),
    TableColumn("seed", "random seed of the experiment, or of the random weights", "number"),
    TableColumn("view", "`raw` activations, or `normalized` by a layer norm"),
    TableColumn("null", "null distribution of a p-value: how labels are exchanged"),
    *limits("null_", "the 95 % band of the null"),
    TableColumn("main_metric", "metric that selected C and the site"),
    TableColumn("positive", "label that metrics of one class refer to"),
    TableColumn("order", "place of given activations on the layer axis", "number"),
)

DIFFERENCES = (
    TableColumn("a", "the selected probe"),
    TableColumn("b", "another probe or a baseline"),
    TableColumn("metric", "name of the metric", allowed=tuple(METRICS)),
    TableColumn("value_a", "score of `a`", "number"),
    TableColumn("value_b", "score of `b`", "number"),
    TableColumn("difference", "`value_a` minus `value_b`", "number"),
    *limits("ci_", "the 95 % interval of the difference"),
    TableColumn("p", "p-value of the difference, which its interval agrees with", "number"),
    TableColumn("p_adjusted", "p-value adjusted for all comparisons made together", "number"),
    *limits("adjusted_", "the interval for all comparisons together"),
    TableColumn("n_test", "number of test rows that both have", "number"),
    TableColumn("n_groups", "number of groups among these rows", "number"),
)

SOURCES = (
    TableColumn("source", "value of the column, left out whole"),
    TableColumn("column", "column of the data"),
    TableColumn("metric", "name of the metric", allowed=tuple(METRICS)),
    TableColumn("value", "score of the source, by probes fitted on the others", "number"),
    *limits("ci_", "its 95 % interval over groups"),
    TableColumn("chance", "score of predictions that ignore the activations", "number"),
    *limits("lead_", "95 % interval of `value` minus `chance`"),
    TableColumn(
        "within", "score of the same rows, by probes that were also fitted on it", "number"
    ),
    *limits("within_", "its 95 % interval over groups"),
    TableColumn("difference", "`value` minus `within`", "number"),
    TableColumn("n_test", "number of rows of the source", "count"),
    TableColumn("n_groups", "number of groups of these rows", "count"),
    TableColumn("site", "site chosen on the other sources"),
    TableColumn("probe", "kind of probe chosen on the other sources"),
    TableColumn("C", "penalty selected on the other sources", "number"),
    TableColumn("left_out", "why the source does not count in the mean; empty if it does"),
)

# Numbers on the scores and lengths of texts, with intervals: columns of aggregation.csv.
OF_RULES = {"auroc": "AUROC", "equal": "AUROC at equal length", "rho": "correlation with length"}


_RELIABILITY = {
    "text": "probe site position",
    "number": "head low high n_rows confidence accuracy ci_low ci_high",
}
# Columns that the page reads of tables that only some runs have, with their types.
PAGE_TABLES: Mapping[str, Mapping[str, Any]] = {
    file: {name: of for of, names in types.items() for name in names.split()}
    for file, types in {**TABLES, "reliability.csv": _RELIABILITY}.items()
    if types
} | {"sources.csv": {column.name: column.type for column in SOURCES}}


def make_table(rows: Iterable[Mapping[str, Any]], columns: Sequence[TableColumn]) -> pd.DataFrame:
    """Return the rows as a table with the declared columns, in this order; other keys are left out.

    >>> make_table([{"b": "length", "a": "task"}], DIFFERENCES).columns[:2].tolist()
    ['a', 'b']
    """
    return pd.DataFrame(list(rows), columns=[column.name for column in columns])


# Without `probe.metric`, sites are selected by the first of these that was measured.
MAIN_METRICS = tuple(name for name, metric in METRICS.items() if metric.is_main)
P_VALUES = tuple(name for name, metric in METRICS.items() if metric.kind == "p_value")


def metric_name(metric: str) -> str:
    """Return the title of a metric, for sentences.

    >>> metric_name("auroc"), metric_name("brier")
    ('AUROC', 'Brier score')
    """
    return METRICS[metric].title


# These sites are states of the same tensor, to which every block adds, so they form one line.
RESIDUAL_STREAM = ("embed", "resid_pre", "resid_post", "ln_final.normalized")
EMBED_DEPTH = -1
CONCATENATED = "concatenated"  # part and line of concatenated sites

# A neuron is part of the site, as in blocks.5.mlp.hook_post[neuron=3]; heads have their own column.
SITE = r"^(?:blocks\.(?P<layer>\d+)\.)?(?P<component>[^\[]*)(?:\[neuron=(?P<neuron>\d+)\])?"

# Rows that agree in these columns belong to one line of a figure.
SERIES = ("run", "model", "dataset", "line", "position", "probe", "seed", "view")
# Rows that agree in these columns were measured on the same features, whatever the target.
SAME_FEATURES = ("run", "dataset", "line", "site", "position", "probe", "view")


def load_table(path: Path, columns: Sequence[TableColumn] = RESULTS) -> pd.DataFrame:
    """Return the validated rows of results.csv, or of training.csv, which has one more column.

    Raises:
        MissingError: The file does not exist.
        DataError: A column is missing, a cell is invalid, or there are no rows.
    """
    table = read_columns(path, columns)
    if table.empty:
        raise DataError(f"{path} has a header but no rows. Run the experiment again.")
    # Sites of given activations, which have an order, may have any name.
    check_layers(table["site"].mask(table["order"].notna(), ""), path)
    return table


def page_table(run_dir: Path, name: str) -> pd.DataFrame | None:
    """Return one of `PAGE_TABLES` of a run; None if the run has not written it.

    None also for a reliability.csv without rows: no kind of probe of the run has probabilities.

    Raises:
        DataError: A column is missing, a cell is invalid, or there are no rows.
    """
    path = run_dir / name
    if not path.exists():
        return None
    types = PAGE_TABLES[name]
    table = read_columns(path, [TableColumn(column, "", types[column]) for column in types])
    if table.empty and name == "reliability.csv":
        return None
    if table.empty:
        raise DataError(f"{path} has no rows. Run the experiment again to rewrite it.")
    return table


def check_layers(sites: pd.Series[str], path: Path) -> None:
    """Raise DataError if a site of a table read from `path` has a layer above `MAX_LAYERS`.

    Raises:
        DataError: a layer is too large.
    """
    layers = pd.to_numeric(sites.str.extract(SITE)["layer"], errors="coerce")
    raise_if(layers > MAX_LAYERS, sites, path, f"Layers must be at most {MAX_LAYERS}.")


def read_columns(path: Path, columns: Sequence[TableColumn]) -> pd.DataFrame:
    """Return a CSV file as a table, with the declared columns validated and converted.

    Other columns stay text. For empty cells see `TableColumn`.

    Raises:
        MissingError: The file does not exist.
        DataError: A column is missing, or a cell is invalid.
    """
    with reading_run_file(path):
        table = read_csv(path, dtype=str, keep_default_na=False)
    lacking = [column for column in columns if column.name not in table]
    missing = [column.name for column in lacking if not column.is_new]
    if missing:
        raise DataError(
            f"{path}, line 1: no column {', '.join(map(repr, missing))}. "
            f"The header has: {', '.join(table.columns)}. Run the experiment again to rewrite it."
        )
    table = table.assign(**{column.name: "" for column in lacking})
    for column in columns:
        table[column.name] = _converted(table[column.name], column, path)
    # A copy holds numeric columns of one type together: each later selection of rows copies few
    # blocks.
    return table.copy()


def _converted(cells: pd.Series[str], column: TableColumn, path: Path) -> pd.Series[Any]:
    """Return the cells of a column converted to its type; raise DataError for an invalid cell."""
    if column.type not in ("text", "boolean"):
        numbers = pd.to_numeric(cells, errors="coerce").astype(float)
        is_whole, is_filled = column.type in WHOLE, column.type in FILLED
        is_wrong = numbers.isna()
        if is_filled:
            is_wrong |= numbers.isin([math.inf, -math.inf])
        elif is_wrong.any():
            is_wrong &= ~cells.str.lower().isin(["", "nan"])
        if is_whole:  # up to 2^53, float64 represents every integer
            is_wrong |= numbers.notna() & ~(numbers.between(0, 2**53) & (numbers % 1 == 0))
        kind = "an integer from 0 to 2^53" if is_whole else "a number"
        or_empty = "" if is_filled else " or an empty cell"
        raise_if(is_wrong, cells, path, f"Allowed: {kind}{or_empty}.")
        # Integers with empty cells stay floats, so that NaN can stand for these cells.
        return numbers.astype(int) if is_whole and is_filled else numbers
    allowed = ("True", "False", "") if column.type == "boolean" else column.allowed
    if allowed:
        raise_if(~cells.isin(allowed), cells, path, f"Allowed: {', '.join(filter(None, allowed))}.")
    if column.type == "boolean":
        return cells.map({"True": True, "False": False}).astype("boolean")
    return cells.astype(object)


def raise_if(invalid: pd.Series[bool], cells: pd.Series[Any], path: Path, allowed: str) -> None:
    """Raise DataError for the first invalid cell of a column read from `path`, if there is one.

    Args:
        invalid: whether each cell is invalid.
        cells: the column.
        path: the file.
        allowed: the last sentence of the message.

    Raises:
        DataError: A cell is invalid.
    """
    if invalid.any():
        row = int(np.flatnonzero(invalid)[0])  # row 0 is in line 2, after the header
        raise DataError(
            f"{path}, line {row + 2}, column {cells.name!r}: {cells.iloc[row]!r} cannot be read. "
            f"{allowed}"
        )


def with_depth(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with new columns `part`, `line` and `depth`, in the same order.

    `depth` is the position on the layer axis: l for block l, -1 for the embedding, the number of
    blocks for the final norm. The residual stream before block l has depth l - 1, because it equals
    the one after block l - 1. `part` is the component, or "residual stream" for all of its sites.
    `line` names the line of a figure: the part, with the head or neuron, if there is one.
    Concatenated sites have the part and line `CONCATENATED`; they and rows without a site have NaN
    as their depth.

    Sites of given activations have the column `order`, which is their depth, and `component`, which
    is their line.
    """
    sites, names = table["site"].fillna(""), table["component" if "component" in table else "site"]
    orders = table["order"].fillna(-1) if "order" in table else [-1] * len(table)
    cells = list(zip(sites, orders, names, table["head"].fillna(-1), strict=True))
    blocks = n_blocks(site for site in sites.unique() if JOINT not in site)
    of_cell = {cell: _axis_place(*cell, blocks) for cell in dict.fromkeys(cells)}
    columns = ["part", "line", "depth"]
    added = pd.DataFrame([of_cell[cell] for cell in cells], table.index, columns, dtype=object)
    return table.assign(**added.astype({"depth": float}))


def by_depth(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of single sites by depth, with the columns of `with_depth`.

    Rows that have a depth keep it.

    >>> rows = pd.DataFrame({
    ...     "site": ["ln_final.hook_normalized", "blocks.1.hook_resid_pre", "blocks.1.attn.hook_z"],
    ...     "head": [None, None, 2],
    ... })
    >>> by_depth(rows)[["line", "depth"]].values.tolist()
    [['residual stream', 0], ['attn.z head 2', 1], ['residual stream', 2]]
    """
    rows = table if "depth" in table else with_depth(table)
    depths = rows["depth"].to_numpy(dtype=float)
    order = np.argsort(depths, kind="stable")[: np.count_nonzero(~np.isnan(depths))]
    return rows.iloc[order].assign(depth=depths[order].astype(int))


def _axis_place(
    site: str, order: float, name: str, head: float, blocks: int
) -> tuple[str, str, float]:
    """Return `part`, `line` and `depth` of a site; see `with_depth`.

    Args:
        site: name of the site; "" for none.
        order: depth of a given site; -1 for a site of a network.
        name: component of a given site.
        head: index of the head; -1 for none.
        blocks: number of blocks.
    """
    if not site or JOINT in site:
        name = CONCATENATED if site else ""
        return name, name, math.nan
    depth, part, neuron = order, name, None
    if order < 0:
        _, part, neuron = _parts(site)
        depth = depth_of(site, blocks)
        part = "residual stream" if part in RESIDUAL_STREAM else part
    of_head = "" if head < 0 else f" head {head:.0f}"
    of_neuron = "" if neuron is None else f" neuron {neuron}"
    return part, f"{part}{of_head}{of_neuron}", depth


def depth_of(site: str, blocks: int) -> int:
    """Return the position of a site of a network on the layer axis; see `with_depth`.

    >>> depth_of("hook_embed", 4), depth_of("blocks.2.hook_resid_pre", 4)
    (-1, 1)
    """
    layer, part, _ = _parts(site)
    if layer is None:
        return blocks if part.startswith("ln_final") else EMBED_DEPTH
    return layer - 1 if part == "resid_pre" else layer


def _parts(site: str) -> tuple[int | None, str, int | None]:
    """Return layer, component without "hook_" and neuron of a site.

    >>> _parts("blocks.5.mlp.hook_post[neuron=3]"), _parts("ln_final.hook_normalized")
    ((5, 'mlp.post', 3), (None, 'ln_final.normalized', None))
    """
    found = re.match(SITE, site)
    assert found is not None  # it matches any text
    layer, neuron = (
        None if found[name] is None else int(found[name]) for name in ("layer", "neuron")
    )
    return layer, found["component"].replace("hook_", ""), neuron


def n_blocks(sites: Iterable[str]) -> int:
    """Return the number of blocks, taken from the deepest block of the sites; 0 without any."""
    return max((layer + 1 for layer, *_ in map(_parts, sites) if layer is not None), default=0)


def tick(depth: int, blocks: int) -> str:
    """Return the label of a depth on the layer axis.

    >>> [tick(depth, blocks=2) for depth in (-1, 0, 1, 2)]
    ['embed', '0', '1', 'final norm']
    """
    return {EMBED_DEPTH: "embed", blocks: "final norm"}.get(depth, str(depth))


def site_names(sites: Iterable[str]) -> dict[str, str]:
    """Return the layer of each site, as on the axis of figures; of other components, with these.

    Sites of the same layer, such as resid_pre of a block and resid_post of the one before it, keep
    their names, and so do sites of given activations. Several concatenated sites are named by the
    first, the last and their number.

    >>> site_names(["hook_embed", "blocks.0.hook_resid_post", "blocks.0.attn.hook_z[head=3]"])
    {'hook_embed': 'embed', 'blocks.0.hook_resid_post': '0', ...[head=3]': '0 attn.z head 3'}
    >>> list(site_names(["blocks.0.hook_mlp_out + blocks.1.hook_mlp_out + hook_embed"]).values())
    ['0 mlp_out + … + embed (3 sites)']
    """
    parts = {site: site.split(JOINT) for site in sites}
    names = {part: part for of_site in parts.values() for part in of_site}
    known = [part for part in names if "hook_" in part]
    split = pd.Series(known, dtype=str).str.extract(r"^(?P<site>.*?)(?:\[head=(?P<head>\d+)\])?$")
    rows = by_depth(split.astype({"head": float}))
    for number, row in zip(rows.index, rows.to_dict("records"), strict=True):
        layer = tick(row["depth"], n_blocks(rows["site"].unique()))
        is_stream = row["part"] == "residual stream"
        names[known[int(number)]] = layer if is_stream else f"{layer} {row['line']}"
    times = Counter(names.values())
    names = {site: name if times[name] == 1 else site for site, name in names.items()}
    shown = {}
    for site, (first, *between) in parts.items():
        last = [names[one] for one in between[-1:]]
        some, count = (["…"], f" ({len(between) + 1} sites)") if between[1:] else ([], "")
        shown[site] = JOINT.join([names[first], *some, *last]) + count
    return shown


def ticks(rows: pd.DataFrame) -> dict[int, str]:
    """Return the label of each depth from the shallowest to the deepest of the placed rows.

    There must be at least one row. If all rows are of given activations, depths without a row have
    the label "".
    """
    blocks = n_blocks(rows["site"].unique())
    depths = range(int(rows["depth"].min()), int(rows["depth"].max()) + 1)
    if "order" not in rows or rows["order"].isna().any():
        return {depth: tick(depth, blocks) for depth in depths}
    labels = {row["depth"]: row_tick(row, blocks) for _, row in rows.iterrows()}
    return {depth: labels.get(depth, "") for depth in depths}


def row_tick(row: Mapping[str, Any] | pd.Series, blocks: int) -> str:
    """Return the label of a placed row on the layer axis.

    That of given activations is their layer, or without one the name of the site.

    >>> row_tick(pd.Series({"site": "layer_4", "layer": 4.0, "order": 1.0, "depth": 1}), blocks=0)
    '4'
    >>> row_tick(pd.Series({"site": "hook_embed", "depth": -1}), blocks=2)
    'embed'
    """
    if "order" not in row or pd.isna(row["order"]):
        return tick(int(row["depth"]), blocks)
    return str(row["site"]) if pd.isna(row["layer"]) else f"{row['layer']:.0f}"


def only(table: pd.DataFrame, **values: str | int) -> pd.DataFrame:
    """Return the rows whose columns hold the given values."""
    keep = np.ones(len(table), dtype=bool)
    for column, value in values.items():
        keep &= table[column].to_numpy() == value
    return table[keep]


def same_features(rows: pd.DataFrame, row: pd.Series) -> pd.DataFrame:
    """Return the rows that were measured on the same features as `row`, whatever the target."""
    return only(rows, **{column: row[column] for column in SAME_FEATURES})


def differs(column: pd.Series[Any]) -> bool:
    """Return whether a column contains at least two different values.

    >>> differs(pd.Series(["last", "first"])), differs(pd.Series(["last"])), differs(pd.Series())
    (True, False, False)
    """
    return len(column.unique()) > 1
