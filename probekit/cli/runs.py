"""Commands that write, run and list experiments, and rebuild the pages of runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.cli import around_runs, options
from probekit.cli.models import show_models
from probekit.cli.options import OutputFile, Texts, later, watching
from probekit.cli.pictures import draw_figures, figure_options

if TYPE_CHECKING:
    from probekit import files
    from probekit.chosen import page as chosen
    from probekit.cli import terminal
    from probekit.data import table
    from probekit.experiment import example, loader, locations, study
    from probekit.report.elements import table as tables
    from probekit.report.elements import texts
    from probekit.report.notebooks.run_result import RunResult
    from probekit.report.pages import compare_page, losses, run_page, study_page
    from probekit.report.sentences import tables as run_tables
    from probekit.results import causes, record, scores
    from probekit.results import study as study_results
    from probekit.results import table as columns_of
    from probekit.training import run_files
globals().update(later(__file__))

_LEFT_OUT = ("cross-validated", "selectivity", "C")  # columns that only the page shows
_SHORT = {"control task": "control"}  # title of a column on the page -> in the terminal
# Title of a column on the page -> its explanation below the table.
_LEGEND = {
    "control task": "control: the same probe on random labels",
    "random weights": "random weights: the same probe on networks with random weights",
    "p": "p: association of predictions and labels, one-sided, adjusted for the maximum over all "
    "sites",
    "compression": "compression: code length without activations divided by that with them",
}


@click.command()
@options.capture_options
@options.runs_option("the run is written to PATH/NAME/KEY")
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="Number of sites probed in parallel; 0 leaves them to `probekit worker`.  "
    "[default: number of cores, less if memory is short]",
)
@click.option(
    "--engine",
    type=click.Choice(["processes", "ray"]),
    default="processes",
    help="What probes the sites: processes of this machine, or tasks of a Ray cluster.",
)
@click.option("--address", help="Address of a Ray cluster, e.g. auto.")
@figure_options
@click.option("--page/--no-page", default=True, help="Page of the run, report.html.")
def run_command(
    file: Path, overrides: Texts, formats: Sequence[str], paper: Any, page: bool, **given: Any
) -> None:
    """Run an experiment: capture, fit probes, write the report.

    Of a study, all cells are run, and study.csv has a row for each.
    """
    if given["address"] is not None and given["engine"] != "ray":
        raise click.UsageError("--address requires --engine ray.")
    if given["engine"] == "ray" and given["workers"] == 0:
        raise click.UsageError("--workers 0 leaves the work to `probekit worker`, without Ray.")
    experiment = loader.load_any(file, overrides)
    if isinstance(experiment, study.Study) and formats:
        raise click.UsageError("--figures is for a single experiment; see `probekit report RUN`.")
    with watching() as watcher:
        result = probekit.run(experiment, **given, page=page, watcher=watcher)
    if isinstance(result, study_results.StudyResult):
        click.echo(f"{result!r}\n{result.folder / 'study.csv'}")
        sys.exit(1 if len(result.failed) else 0)
    show_results(result)
    if of_causes := causes.open_causes(result.folder):
        around_runs.show_causes(of_causes)
    show_warnings(result)
    draw_figures(lambda: run_page.run_figures(result.folder), result.folder, formats, paper)
    click.echo(str(result.report if page else result.results))


def show_results(result: RunResult) -> None:
    """Print the scores of each site, and what the reported score is compared with.

    There is a table of sites for each kind of probe and position; the selected site is marked.
    """
    facts = record.load_record(result.folder / "run.json")
    v, of_run = facts.verdict, scores.Scores.load(result.results)
    rows = run_tables.site_rows(of_run, v)
    columns = [name for name in run_tables.filled_columns(rows) if name not in _LEFT_OUT]
    by_probe: dict[tuple[str, str], list[run_tables.SiteRow]] = {}
    for row in rows:
        by_probe.setdefault((row.probe, row.position), []).append(row)
    names = columns_of.site_names(row.site for row in rows)
    has_several = [len(set(values)) > 1 for values in zip(*by_probe, strict=True)]
    for number, (place, sites) in enumerate(by_probe.items()):
        heading = " at ".join(compress(place, has_several))
        if heading:
            terminal.echo(f"\n{heading}" if number > 0 else heading)
        filled = [name for name in columns if any(name in row.cells for row in sites)]
        # Only the main score is followed by its interval.
        main = columns_of.metric_name(sites[0].metric)
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
        terminal.show_rows(headings, lines)
    if rows:
        legend = [f"{columns_of.metric_name(v.metric)}: score on held-out rows with 95 % interval"]
        if any(row.chosen for row in rows):
            by = " of at least one outer fold" if v.is_nested else ""
            legend.append(f"*: selected by cross-validation{by}")
        legend += [text for name, text in _LEGEND.items() if name in columns]
        terminal.echo(f"{'; '.join(legend)}.")
    compared = run_tables.comparison_table(v, facts.control)
    if compared:
        terminal.echo()
        terminal.show_table(run_tables.in_words(compared))
        terminal.echo(run_tables.RULE)
    for section in chosen.of_analyses("sections", chosen.Shown(result.folder, facts)):
        terminal.echo(f"\n{section.title}")
        terminal.show_table(next(x for x in section.items if isinstance(x, tables.ResultTable)))


def show_warnings(result: RunResult) -> None:
    """Print why there is no control task, the warnings (on stderr), and the answer last."""
    facts = record.load_record(result.folder / "run.json")
    if facts.control.why_none:
        terminal.echo(facts.control.why_none)
    run = chosen.Shown(result.folder, facts)
    for one in run_page.run_caveats(run):
        terminal.echo(f"warning: {one}", err=True)
    terminal.echo("\n" + "\n".join(one.text for one in run_page.run_answers(run)))


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=OutputFile(".html"), help="Page of several runs.  [default: runs.html]")
@figure_options
def report(runs: tuple[Path, ...], out: Path | None, formats: Sequence[str], paper: Any) -> None:
    """Rebuild the page of a run, or write one page of several RUNS.

    Pages are built from the files of the runs. Of a pretraining run, it draws the figure of the
    losses. --figures pdf also writes each figure, for a paper.
    """
    if len(runs) > 1:  # a page of all runs
        out = out or Path("runs.html")
        for run in runs:
            record.check_finished(run)
        loaded = compare_page.load_runs(runs)
        files.write_atomic(out, compare_page.runs_page(loaded))
        for shown in loaded:
            click.echo(f"{texts.line_label(shown.name)}: {shown.answer}")
        draw_figures(lambda: compare_page.runs_figures(loaded), out.with_suffix(""), formats, paper)
        click.echo(str(out))
        return
    (folder,), page = runs, None
    if out is not None:
        raise click.UsageError(
            "--out requires several runs; the page of a single run is its report.html."
        )
    if run_files.is_pretraining(folder):
        path, page = losses.write_losses(folder), losses.losses_page(folder)
    elif folder.is_dir() and (folder / study_results.STUDY_RECORD).exists():
        path, result = folder / "report.html", study_results.StudyResult(folder)
        page = study_page.study_page(result)
        files.write_atomic(path, page.html())
    else:
        if not record.has_causes_alone(folder):  # interventions alone have no results of probes
            record.check_finished(folder)
        path = run_page.write_report(folder)
    draw_figures(lambda: page or run_page.run_figures(folder), folder, formats, paper)
    click.echo(str(path))


@click.command()
def experiments() -> None:
    """List the bundled experiments and the named models."""
    listed = example.bundled_experiments()
    rows = [(one.name, one.question, "; ".join(one.needs)) for one in listed]
    columns = (tables.Column("name", "words", "code"), *terminal.words("question", "needs"))
    terminal.show_rows(columns, rows)
    if listed:
        run, folder = listed[0].command, locations.bundled_folder()
        terminal.echo(f"Run one by name: {run}. The files are in {folder}.")
    terminal.echo("Start your own: probekit init my_question.\n")
    show_models()


@click.command()
@click.argument("name", type=click.Path(path_type=Path))
@click.option(
    "--data",
    type=click.Path(path_type=Path),
    help="Your table: .csv, .tsv, .jsonl or .parquet.  [default: sample data]",
)
@click.option("--text", help="Its column with the text.")
@click.option("--label", help="Its column with the label to predict.")
@click.option("--group", help="Its column with the group, such as the document.")
def init(
    name: Path, data: Path | None, text: str | None, label: str | None, group: str | None
) -> None:
    """Write a first experiment: NAME.yaml, sample data and a schema.

    With --data, the experiment is about your own table. The file has a comment on each key; with
    the schema, editors complete keys and values. No existing file is overwritten.
    """
    columns = None
    if data is not None and text is not None and label is not None:
        columns = table.Columns(text=text, label=label, group=group)
    elif any((data, text, label, group)):
        found = f" Columns of {data}: {', '.join(example.table_columns(data))}." if data else ""
        raise click.UsageError(f"Your own data need --data, --text and --label.{found}")
    paths = example.write_example(name, data, columns)
    click.echo("\n".join(map(str, paths)))
    if data is None:
        click.echo("The rows are a sample. For your own table: probekit init --help")
    file = shlex.quote(str(paths[0]))
    click.echo(f"Next:\n  probekit validate {file}\n  probekit run {file}")
