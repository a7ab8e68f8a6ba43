"""Commands around runs: validate, plan, intervene, compare, transfer, view."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.amounts import format_difference, format_number, format_p
from probekit.cli import options
from probekit.cli.options import Texts, later, watching
from probekit.cli.pictures import draw_figures, figure_options, page_or_rows_option
from probekit.errors import MissingError
from probekit.terminal import json_text

if TYPE_CHECKING:
    from probekit.cli import terminal, view_server
    from probekit.experiment import example, loader, locations, study
    from probekit.model.weights import sources
    from probekit.pipeline.compare import compare, transfer
    from probekit.pipeline.experiment import plan, run_study
    from probekit.pipeline.look import exports
    from probekit.probes.kinds import registry
    from probekit.report.causes import cause_words
    from probekit.report.elements import texts
    from probekit.report.elements.table import Cell
    from probekit.report.pages import compare_page, transfer_page
    from probekit.report.sentences import caveats, comparisons
    from probekit.results import causes, comparison, record, site_results
    from probekit.results import table as run_tables
globals().update(later(__file__))

MOST_SETTINGS = 20  # of a comparison, shown in the terminal


@click.command()
@options.file_options
@click.option("--cell", help="Name of the only cell of a study to check.")
def validate_command(file: Path, overrides: Texts, cell: str | None) -> None:
    """Check file and data before a run: counts, leaks, sizes, time."""
    experiment = loader.load_any(file, overrides)
    with watching() as watcher:
        validation = probekit.validate(experiment, cell=cell, watcher=watcher)
    terminal.echo(str(validation))
    if not validation.ok:
        sys.exit(2)


@click.command()
@click.argument("section", default="")
def keys(section: str) -> None:
    """List the keys of a section of experiment files, with defaults.

    Sections are named as in the file, such as probe, or data.columns. Without one, it lists the
    sections.
    """
    rows = [
        (name, f"{words} [{given}]", text) for name, words, given, text in example.keys_of(section)
    ]
    terminal.show_rows(terminal.words("key", "values [default]", "meaning"), rows)


@click.command()
@click.argument("what", metavar="FILE.yaml|MODEL", shell_complete=options.complete_experiment)
@options.set_option("; for a FILE only")
@click.option("--tokens", type=float, help="Number of tokens, such as 100e6; for a MODEL only.")
@click.option(
    "--sites",
    multiple=True,
    help="Name or glob of sites; for a MODEL; repeatable.  [default: blocks.*.hook_resid_post]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "bfloat16", "float32"]),
    help="Data type on disk; for a MODEL.  [default: float16]",
)
@click.option("--workers", type=click.IntRange(min=1), default=1, help="Number of workers.")
@click.option(
    "--cores",
    type=click.IntRange(min=1),
    help="Number of cores of all workers, as fast as one of this machine.  [default: those here]",
)
@options.device_option
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    help="Number of devices of all workers.  [default: one for each worker]",
)
@click.option(
    "--throughput",
    type=click.FloatRange(0, min_open=True),
    metavar="TOKENS/S",
    help="Measured throughput of the capture of one worker.  [default: measured here on a CPU]",
)
@click.option(
    "--bandwidth",
    type=click.FloatRange(0, min_open=True),
    metavar="GB/S",
    help="Bandwidth of the storage, for all workers together.",
)
@click.option(
    "--memory",
    type=click.FloatRange(0, min_open=True),
    metavar="GB",
    help="Memory of all workers together.  [default: what is available here]",
)
@options.json_option
def plan_command(
    what: str,
    overrides: Texts,
    tokens: float | None,
    sites: Texts,
    dtype: str | None,
    as_json: bool,
    bandwidth: float | None,
    memory: float | None,
    **machines: Any,
) -> None:
    """Predict size, memory and time of a run, and what limits it.

    Either for an experiment FILE.yaml, whose data are read, or for the capture of --tokens tokens
    by a MODEL. Use the --device of the run: batches on a GPU are larger, so that files are fewer.
    """
    if machines["devices"] is not None and machines["device"] == "cpu":
        raise click.UsageError("--devices requires a --device, such as cuda.")
    # Gigabytes in bytes; 0 is no valid number of either.
    machines |= {"bandwidth": bandwidth and 1e9 * bandwidth, "memory": memory and 1e9 * memory}
    if locations.is_experiment(what):
        for name, value in {"tokens": tokens, "sites": sites, "dtype": dtype}.items():
            if value not in (None, ()):
                raise click.UsageError(f"--{name} is for a MODEL; set it in {what}.")
        experiment = loader.load_any(what, overrides)
        if isinstance(experiment, study.Study):
            with watching() as watcher:
                numbers = run_study.plan_study(experiment, plan.Machines(**machines), watcher)
        else:
            numbers = plan.plan_run(experiment, plan.Machines(**machines))
    else:
        if overrides:
            raise click.UsageError("--set requires a FILE.yaml.")
        if tokens is None or not 1 <= tokens <= 1e15 or tokens != int(tokens):
            raise click.UsageError("Give the number of tokens, such as --tokens 100e6.")
        sources.local_folder(what)
        sites, dtype = sites or ("blocks.*.hook_resid_post",), dtype or "float16"
        numbers = plan.plan_model(what, int(tokens), sites, dtype, plan.Machines(**machines))
    click.echo(json_text(numbers) if as_json else plan.described_plan(numbers))


@click.command()
@options.file_options
@options.device_option
@options.runs_option("the tables are written to PATH/NAME/KEY/causes")
def intervene_command(file: Path, overrides: Texts, device: str, out: Path) -> None:
    """Run the interventions of an experiment without its probes."""
    experiment = loader.load_experiment(file, overrides)
    with watching() as watcher:
        tables = probekit.intervene(experiment, out=out, device=device, watcher=watcher)
    show_causes(tables)
    for one in caveats.merged(cause_words.cause_caveats(tables)):
        terminal.echo(f"warning: {one}", err=True)
    terminal.echo(f"\n{cause_words.cause_answer(tables)}\n{cause_words.cause_detail(tables)}")
    click.echo(str(tables.run_dir / "causes.html"))


def show_causes(tables: causes.CauseTables) -> None:
    """Print the table of verdicts."""
    verdicts = cause_words.verdict_table(tables.verdict.directions)
    if verdicts.rows:
        terminal.echo()
        columns = [replace(column, css="words") for column in verdicts.headings]
        rows = [[_words(place, ", "), *map(_words, answers)] for place, *answers in verdicts.rows]
        terminal.show_rows(columns, rows)


def _words(cell: Cell | str, between: str = " ") -> str:
    """Return a cell as text: its parts joined by `between`, without remarks."""
    if isinstance(cell, str):
        return cell
    small = (text for text, css in cell.small if css != "remark")
    return between.join(filter(None, (cell.lead, cell.text, *small)))


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--metric", help="Metric on the test rows.  [default: main metric of the runs]")
@page_or_rows_option
def compare_command(
    run_a: Path, run_b: Path, metric: str | None, out: Path | None, paper: dict[str, Any]
) -> None:
    """Compare two finished runs: RUN_A minus RUN_B.

    Each difference has an interval and a p-value.
    """
    for run in (run_a, run_b):
        record.check_finished(run)
    compared = compare.compare(run_a, run_b, metric=metric)
    # The settings that differ, a line for each comparison, and the verdict.
    if compared.experiment:
        terminal.echo(texts.line_label(compared.experiment))
    terminal.echo(f"a: {texts.line_label(compared.a)}\nb: {texts.line_label(compared.b)}")
    for name, values in islice(compared.settings.items(), MOST_SETTINGS):
        terminal.echo(f"  {name}: {' | '.join(map(texts.line_label, values))}")
    if len(compared.settings) > MOST_SETTINGS:
        terminal.echo(f"  and {len(compared.settings) - MOST_SETTINGS} more settings")
    if not compared.settings:
        terminal.echo("  no setting, digest or version differs")
    sides = {name: [f"{name}_a", f"{name}_b"] for name in ("site", "position", "probe")}
    rows = compared.rows
    of_sites = rows[rows["site_a"].notna() & (rows["site_a"] != site_results.NESTED_SITE)]
    names = run_tables.site_names(site for one in sides["site"] for site in of_sites[one])
    places = rows.assign(**rows[sides.pop("site")].replace(names))
    for columns_of_both in sides.values():  # those with one value at all sites are left out
        if of_sites[columns_of_both].melt()["value"].nunique(dropna=False) == 1:
            places[columns_of_both] = ""
    numbers = ("a", "b", "difference", "p", "adjusted p")
    lines = [
        (
            comparison.both_places(row) + (" *" if row["what"] == "chosen" else ""),
            *(format_number(row[name]) for name in ("value_a", "value_b")),
            format_difference(row["difference"], row["ci_low"], row["ci_high"]),
            *(format_p(row[name]) for name in ("p", "p_adjusted")),
            comparisons.result_words(row),
        )
        for _, row in places.iterrows()
    ]
    columns = [f"{compared.metric}, a - b", *numbers, *terminal.words("")]
    terminal.show_rows(columns, lines)
    if rows["what"].eq("chosen").any():
        terminal.echo("*: the selected probes of both runs.")
    answer = texts.line_label(comparisons.comparison_answer(compared))
    for sentence in (*compared.notes, compared.verdict, answer):
        terminal.echo(sentence)
    if out is not None:
        page = partial(compare_page.comparison_page, compared)
        paths = exports.write_page_or_rows(out, page, compared.rows, paper)
        click.echo("\n".join(map(str, paths)))


@click.command()
@click.argument("files", nargs=-1, required=True, **options.experiment_file)
@options.set_option(" in all files")
@click.option(
    "--site", "sites", multiple=True, help="Name or glob of sites, for all files; repeatable."
)
@click.option("--kind", "kinds", multiple=True, help="Kind of probe, for all files; repeatable.")
@click.option(
    "--null-draws",
    type=click.IntRange(0, 1000),
    default=10,
    help="Number of label permutations for the null distribution of cosines.",
)
@options.cache_option
@options.device_option
@options.out_option
@figure_options
def transfer_command(
    files: Sequence[Path],
    overrides: Texts,
    sites: Texts,
    kinds: Texts,
    out: Path,
    formats: Sequence[str],
    paper: dict[str, Any],
    **given: Any,
) -> None:
    """Train probes on each experiment and test them on all others."""
    changes = list(overrides)
    # Sites and kinds of the command replace those of all files.
    if sites:
        changes += [f"capture.sites={json.dumps(sites)}", "capture.concatenate=[]"]
    if kinds:
        named = [{"kind": registry.find_kind(kind).name} for kind in kinds]
        changes.append(f"probe.kinds={json.dumps(named)}")
    loaded = [loader.load_experiment(file, changes) for file in files]
    with watching() as watcher:
        result = transfer.transfer(loaded, out=out, watcher=watcher, **given)
    # The scores and cosines of the selected site as matrices, and the means of every site.
    terminal.echo(texts.line_label(" ".join(result.chosen)))
    metric = run_tables.metric_name(result.metric)
    terminal.echo(f"{metric}, trained on (down) and tested on (across):")
    for name, rows in result.maps(*result.chosen).items():
        if name != "score":
            terminal.echo(f"cosine, {name} features, with 95 % interval under permuted labels:")
        cells = {
            (row["train"], row["test"]): format_number(row["value"], row["ci_low"], row["ci_high"])
            for _, row in rows.iterrows()
        }
        lines = [(train, *(cells[train, test] for test in result.names)) for train in result.names]
        terminal.show_rows(("", *result.names), lines)
    measured = run_tables.only(result.scores, metric=result.metric)
    is_own = measured["train"] == measured["test"]
    means, names = [], run_tables.site_names(site for site, _ in result.places())
    for site, probe in result.places():
        is_place = (measured["site"] == site) & (measured["probe"] == probe)
        own = format_number(measured.loc[is_place & is_own, "value"].mean())
        others = format_number(measured.loc[is_place & ~is_own, "value"].mean())
        mark = " *" if (site, probe) == result.chosen else ""
        means.append((names[site] + mark, probe, own, others))
    terminal.show_rows(("layer", *terminal.words("probe"), "own test rows", "others'"), means)
    terminal.echo("*: selected by cross-validation; its scores are those above.")
    terminal.echo(texts.line_label(" ".join(comparisons.transfer_answer(result))))
    for note in result.notes:
        terminal.echo(f"warning: {note}", err=True)
    draw_figures(partial(transfer_page.transfer_page, result), out, formats, paper)
    click.echo(str(out / "transfer.html"))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="runs")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Local port; 0 for any free port."
)
def view(folder: Path, port: int) -> None:
    """Serve the runs in FOLDER to a browser on this machine.

    Runs in progress are included.
    """
    if not folder.is_dir():
        raise MissingError(
            f"There is no folder {folder}. Give the `--out` folder of `probekit run` (default: "
            "`runs`)."
        )
    with view_server.RunsServer(folder, port) as server:
        click.echo(f"http://{view_server.HOST}:{server.server_port}/  (press Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)
