"""Commands for pages and figures of finished runs, and a local server for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import click

from probekit.cli.options import IntegerInRange, OutputFile, together


def figure_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --figures and --columns to a command; the formats are checked before any work."""

    @together(
        click.option(
            "--figures", metavar="png,svg,pdf", help="File formats to export each figure to."
        ),
        click.option(
            "--columns",
            type=IntegerInRange(1, 2),
            default=2,
            show_default=True,
            help="Width of --figures in columns of a paper.",
        ),
    )
    @wraps(function)
    def with_formats(figures: str | None, **given: Any) -> Any:
        formats: tuple[str, ...] = ()
        if figures is not None:
            from probekit.report.figures.figure_files import check_engine, read_formats

            formats = read_formats(figures)
            check_engine()
        return function(formats=formats, **given)

    return with_formats


def draw_figures(run_dir: Path, formats: tuple[str, ...], columns: int) -> None:
    """Write the figures of a run to its folder `figures` and print the path; skip if no formats."""
    if formats:
        from probekit.files import inside
        from probekit.report.figures.figure_files import write_figures
        from probekit.report.pages.run_page import run_figures

        folder = inside(run_dir / "figures")
        written = write_figures(run_figures(run_dir), folder, formats, columns)
        click.echo(f"{len(written)} figures in {run_dir / 'figures'}", err=True)


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    type=OutputFile(".html"),
    help="Output page when several runs are given.  [default: runs.html]",
)
@figure_options
def report(
    runs: tuple[Path, ...], out: Path | None, formats: tuple[str, ...], columns: int
) -> None:
    """Rebuild the page of a run from its files; with several RUNS, a page of all.

    Of a pretraining run, it draws the figure of the losses.
    """
    if len(runs) > 1:
        _report_runs(runs, out or Path("runs.html"), formats, columns)
        return
    if out is not None:
        raise click.UsageError(
            "--out requires several runs; the page of a single run is its report.html."
        )
    from probekit.training.run_files import is_pretraining

    if is_pretraining(runs[0]):
        from probekit.report.pages.losses import write_losses

        if formats:
            raise click.UsageError("--figures requires the run of an experiment.")
        click.echo(str(write_losses(runs[0])))
        return
    _check_runs(runs)

    from probekit.report.pages.run_page import write_report

    path = write_report(runs[0])
    draw_figures(runs[0], formats, columns)
    click.echo(str(path))


def _check_runs(runs: tuple[Path, ...]) -> None:
    """Raise MissingError unless all folders are those of finished runs; imports no report.

    A single one may have interventions alone, whose page is causes.html.
    """
    from probekit.results.record import check_finished, has_causes_alone

    for run in runs:
        if len(runs) > 1 or not has_causes_alone(run):
            check_finished(run)


def _report_runs(runs: tuple[Path, ...], out: Path, formats: tuple[str, ...], columns: int) -> None:
    """Write the page of several runs, and its figures to a folder next to it."""
    _check_runs(runs)

    from probekit.files import write_atomic
    from probekit.report.figures.figure_files import write_figures
    from probekit.report.pages.runs_page import load_runs, runs_figures, runs_page
    from probekit.report.texts import line_label

    loaded = load_runs(runs)
    write_atomic(out, runs_page(loaded))
    for run in loaded:
        click.echo(f"{line_label(run.name)}: {run.answer}")
    if formats:
        write_figures(runs_figures(loaded), out.with_suffix("") / "figures", formats, columns)
    click.echo(str(out))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="runs")
@click.option(
    "--port", type=IntegerInRange(0, 65535), default=0, help="Local port; 0 for any free port."
)
def view(folder: Path, port: int) -> None:
    """Serve the runs in FOLDER to a browser on this machine, including runs in progress."""
    from probekit.results.record import check_results_folder

    check_results_folder(folder)

    from probekit.cli.view_server import serve

    serve(folder, port, ready=lambda url: click.echo(f"{url}  (press Ctrl-C to stop)"))
