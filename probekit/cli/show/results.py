"""Results of runs, comparisons, transfer and interventions on stdout; warnings on stderr."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING

import pandas as pd

from probekit.amounts import counted, format_number, format_p
from probekit.cli.show.terminal import echo, show_table, words
from probekit.report.causes import cause_words
from probekit.report.elements.table import Cell, ResultTable
from probekit.report.elements.texts import line_label
from probekit.report.notebooks.run_result import RunResult
from probekit.report.pages.parts import Shown, of_analyses
from probekit.report.sentences.caveats import caveats
from probekit.report.sentences.comparisons import (
    comparison_answer,
    difference_words,
    result_words,
    transfer_answer,
)
from probekit.report.sentences.tables import (
    RULE,
    SiteRow,
    comparison_table,
    filled_columns,
    in_words,
    site_rows,
)
from probekit.results.causes import CauseTables, open_causes
from probekit.results.comparison import RunComparison, Transfer, both_places
from probekit.results.record import load_record
from probekit.results.scores import Scores
from probekit.results.site_results import NESTED_SITE
from probekit.results.table import metric_name, only, site_names

if TYPE_CHECKING:  # it imports torch, which a finished run does not need
    from probekit.pipeline.selftest import CheckResult

MOST_SETTINGS = 20  # shown in the terminal
_LEFT_OUT = ("cross-validated", "selectivity", "C")  # shown on the page only
_SHORT = {"control task": "control"}  # title of a column on the page -> in the terminal
# Title of a column on the page -> its explanation below the table.
_LEGEND = {
    "control task": "control: the same probe on random labels",
    "random weights": "random weights: the same probe on networks with random weights",
    "p": "p: association of predictions and labels, one-sided, adjusted for the maximum over all "
    "sites",
    "compression": "compression: code length without activations divided by that with them",
}


def show_results(result: RunResult) -> None:
    """Print the scores of each site, then the answer of the run and what it is compared with.

    There is a table of sites for each kind of probe and position; the selected site is marked.
    """
    record = load_record(result.folder / "run.json")
    v = record.verdict
    scores = Scores.load(result.results)
    rows = site_rows(scores, v)
    columns = [name for name in filled_columns(rows) if name not in _LEFT_OUT]
    by_probe: dict[tuple[str, str], list[SiteRow]] = {}
    for row in rows:
        by_probe.setdefault((row.probe, row.position), []).append(row)
    names = site_names(row.site for row in rows)
    kinds, positions = {row.probe for row in rows}, {row.position for row in rows}
    for number, ((probe, position), sites) in enumerate(by_probe.items()):
        parts = [probe] if len(kinds) > 1 else []
        parts += [position] if len(positions) > 1 else []
        heading = " at ".join(parts)
        if heading:
            echo(f"\n{heading}" if number > 0 else heading)
        filled = [name for name in columns if any(name in row.cells for row in sites)]
        # Only the main score is followed by its interval.
        main = metric_name(sites[0].metric)
        headings, lines = ["layer"], []
        for name in filled:
            column = _SHORT.get(name, name)
            headings += [column, "[95 %]"] if name == main else [column]
        for row in sites:
            line = [f"{names[row.site]} *" if row.chosen else names[row.site]]
            for name in filled:
                value, interval = row.cells.get(name, ("-", ""))
                line += [value, interval] if name == main else [value]
            lines.append(line)
        show_table(ResultTable("", headings, lines))
    if rows:
        legend = [f"{metric_name(v.metric)}: score on held-out rows with 95 % interval"]
        if any(row.chosen for row in rows):
            by = " of at least one outer fold" if v.is_nested else ""
            legend.append(f"*: selected by cross-validation{by}")
        legend += [text for name, text in _LEGEND.items() if name in columns]
        echo(f"{'; '.join(legend)}.")
    echo("\n" + "\n".join(cause_words.run_answers(open_causes(result.folder), record)))
    compared = comparison_table(v, record.control)
    if compared:
        echo()
        show_table(in_words(compared))
        echo(RULE)
    for section in of_analyses("sections", Shown(result.folder, scores, record)):
        echo(f"\n{section.title}")
        show_table(section.items[0])


def show_warnings(result: RunResult) -> None:
    """Print why there is no control task, if there is none; then the warnings, on stderr."""
    record = load_record(result.folder / "run.json")
    if record.control.why_none:
        echo(record.control.why_none)
    for sentence in caveats(record.verdict, record):
        echo(f"warning: {sentence}", err=True)


def show_verdicts(verdicts: Sequence[CheckResult]) -> None:
    """Print a line for each check, then the number of checks and of failures."""
    rows = [
        (check.check, check.kind, check.expected, check.found, "yes" if check.ok else "NO")
        for check in verdicts
    ]
    show_table(ResultTable("", words("check", "kind", "expected", "found", "ok"), rows))
    n_failed = sum(not check.ok for check in verdicts)
    echo(f"{counted(len(verdicts), 'check')}, {n_failed} failed.")


def show_comparison(comparison: RunComparison) -> None:
    """Print the settings that differ, a line for each comparison, and the verdict."""
    if comparison.experiment:
        echo(line_label(comparison.experiment))
    echo(f"a: {line_label(comparison.a)}\nb: {line_label(comparison.b)}")
    for name, values in islice(comparison.settings.items(), MOST_SETTINGS):
        echo(f"  {name}: {' | '.join(map(line_label, values))}")
    if len(comparison.settings) > MOST_SETTINGS:
        echo(f"  and {len(comparison.settings) - MOST_SETTINGS} more settings")
    if not comparison.settings:
        echo("  no setting, digest or version differs")
    sides = {name: [f"{name}_a", f"{name}_b"] for name in ("site", "position", "probe")}
    rows = comparison.rows
    of_sites = rows[rows["site_a"].notna() & (rows["site_a"] != NESTED_SITE)]
    names = site_names(site for one in sides["site"] for site in of_sites[one])
    places = rows.assign(**rows[sides.pop("site")].replace(names))
    for columns_of_both in sides.values():  # those with one value at all sites are left out
        if len(pd.unique(of_sites[columns_of_both].to_numpy().ravel())) == 1:
            places[columns_of_both] = ""
    numbers = ("a", "b", "difference", "p", "adjusted p")
    columns = [f"{comparison.metric}, a - b", *numbers, *words("")]
    show_table(ResultTable("", columns, [_difference_cells(row) for _, row in places.iterrows()]))
    if comparison.rows["what"].eq("chosen").any():
        echo("*: the selected probes of both runs.")
    for note in comparison.notes:
        echo(note)
    echo(comparison.verdict)
    echo(line_label(comparison_answer(comparison)))


def _difference_cells(row: pd.Series) -> tuple[str, ...]:
    """Return a comparison as the cells of a row: place, a, b, difference, both p and result."""
    return (
        both_places(row) + (" *" if row["what"] == "chosen" else ""),
        format_number(row["value_a"]),
        format_number(row["value_b"]),
        difference_words(row),
        format_p(row["p"]),
        format_p(row["p_adjusted"]),
        result_words(row),
    )


def show_transfer(result: Transfer) -> None:
    """Print scores and cosines of the selected site as matrices, and the means of every site."""
    echo(line_label(" ".join(result.chosen)))
    echo(f"{metric_name(result.metric)}, trained on (down) and tested on (across):")
    for name, rows in result.maps(*result.chosen).items():
        if name != "score":
            echo(f"cosine, {name} features, with 95 % interval under permuted labels:")
        texts = {
            (row["train"], row["test"]): format_number(row["value"], row["ci_low"], row["ci_high"])
            for _, row in rows.iterrows()
        }
        lines = [(train, *(texts[train, test] for test in result.names)) for train in result.names]
        show_table(ResultTable("", ("", *result.names), lines))
    measured = only(result.scores, metric=result.metric)
    is_own = measured["train"] == measured["test"]
    means, names = [], site_names(site for site, _ in result.places())
    for site, probe in result.places():
        is_place = (measured["site"] == site) & (measured["probe"] == probe)
        own = format_number(measured.loc[is_place & is_own, "value"].mean())
        others = format_number(measured.loc[is_place & ~is_own, "value"].mean())
        mark = " *" if (site, probe) == result.chosen else ""
        means.append((names[site] + mark, probe, own, others))
    show_table(ResultTable("", ("layer", *words("probe"), "own test rows", "others'"), means))
    echo("*: selected by cross-validation; its scores are those above.")
    echo(line_label(transfer_answer(result)))
    for note in result.notes:
        echo(f"warning: {note}", err=True)


def show_causes(tables: CauseTables) -> None:
    """Print details, the table of verdicts and doubts, such as texts that were left out."""
    echo(f"\n{cause_words.cause_detail(tables)}")
    verdicts, _ = cause_words.verdict_table(tables.verdict.directions)
    if verdicts.rows:
        echo()
        columns = [replace(column, css="words") for column in verdicts.headings]
        rows = [[_words(place, ", "), *map(_words, answers)] for place, *answers in verdicts.rows]
        show_table(ResultTable("", columns, rows))
    for sentence in tables.record.warnings:
        echo(f"warning: {sentence}", err=True)
    for omission in tables.record.left_out:
        echo(f"warning: Interventions leave out {omission.reason}", err=True)


def _words(cell: Cell | str, between: str = " ") -> str:
    """Return a cell as text: its parts joined by `between`, without remarks."""
    if isinstance(cell, str):
        return cell
    small = (text for text, css in cell.small if css != "remark")
    return between.join(filter(None, (cell.lead, cell.text, *small)))


def show_causes_of(result: RunResult) -> None:
    """Print the interventions of a run, if it has any."""
    tables = open_causes(result.folder)
    if tables is not None:
        show_causes(tables)
