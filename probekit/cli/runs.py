"""Commands that run experiments and recipes, compare the runs, and list or start experiments."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.cli.options import (
    IntegerInRange,
    OutputFile,
    cache_option,
    capture_options,
    device_option,
    file_options,
    out_option,
    runs_option,
    set_option,
    with_choices,
)
from probekit.cli.pages import draw_figures, figure_options
from probekit.pipeline.look.exports import PAGE_OR_ROWS

if TYPE_CHECKING:
    pass


@click.command()
@capture_options
@runs_option("the run is written to PATH/NAME/KEY")
@click.option(
    "--workers",
    type=IntegerInRange(min=1),
    help="Number of sites probed in parallel.  [default: number of cores]",
)
@figure_options
@click.option("--page/--no-page", default=True, help="Page of the run, report.html.")
def run_command(
    file: Path,
    overrides: tuple[str, ...],
    formats: tuple[str, ...],
    columns: int,
    page: bool,
    **options: Any,
) -> None:
    """Run an experiment: capture activations, fit probes, write the report."""
    from probekit.experiment.loader import load_any_experiment

    experiment = load_any_experiment(file, overrides)

    from probekit.cli.show.causes import show_causes_of
    from probekit.cli.show.progress import watching
    from probekit.cli.show.runs import show_results, show_warnings
    from probekit.pipeline.experiment.run import run as run_experiment

    with watching() as watcher:
        result = run_experiment(experiment, **options, page=page, watcher=watcher)
    show_results(result)
    show_causes_of(result)
    show_warnings(result)
    draw_figures(result.folder, formats, columns)
    click.echo(str(result.report if page else result.results))


@click.command()
@file_options
def validate_command(file: Path, overrides: tuple[str, ...]) -> None:
    """Validate file and data before a run: counts, duplicates, leaks, sizes, time."""
    from probekit.experiment.loader import load_any_experiment

    experiment = load_any_experiment(file, overrides)

    from probekit.cli.show.runs import show_validation
    from probekit.pipeline.experiment.validate import validate as validate_experiment

    validation = validate_experiment(experiment)
    show_validation(validation)
    if not validation.ok:
        sys.exit(2)


@click.command()
@file_options
@device_option
@runs_option("the tables are written to PATH/NAME/KEY/causes")
def cause_command(file: Path, overrides: tuple[str, ...], device: str, out: Path) -> None:
    """Run the interventions of an experiment alone, without its probes."""
    from probekit.experiment.loader import load_experiment

    experiment = load_experiment(file, overrides)

    from probekit.cli.show.causes import show_causes
    from probekit.cli.show.progress import watching
    from probekit.pipeline.intervene.run import cause

    with watching() as watcher:
        tables = cause(experiment, out=out, device=device, watcher=watcher)
    show_causes(tables)
    click.echo(str(tables.run_dir / "causes.html"))


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--metric", help="Metric on the test rows.  [default: main metric of the runs]")
@click.option("--out", type=OutputFile(*PAGE_OR_ROWS), help="Output file (.csv or .html).")
def compare_command(run_a: Path, run_b: Path, metric: str | None, out: Path | None) -> None:
    """Compare two finished runs: differences RUN_A minus RUN_B, with intervals and p-values."""
    from probekit.results.record import check_finished

    for run in (run_a, run_b):
        check_finished(run)

    from probekit.cli.show.comparisons import show_comparison
    from probekit.pipeline.compare.compare import compare as compare_runs
    from probekit.pipeline.compare.compare import write_comparison

    comparison = compare_runs(run_a, run_b, metric=metric)
    show_comparison(comparison)
    if out is not None:
        click.echo(str(write_comparison(out, comparison)))


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@set_option(" in all files")
@click.option(
    "--site", "sites", multiple=True, help="Name or glob of sites, for all files; repeatable."
)
@click.option("--kind", "kinds", multiple=True, help="Kind of probe, for all files; repeatable.")
@click.option(
    "--null-draws",
    type=IntegerInRange(0, 1000),
    default=10,
    show_default=True,
    help="Number of label permutations for the null distribution of cosines.",
)
@cache_option
@device_option
@out_option
def transfer_command(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    sites: tuple[str, ...],
    kinds: tuple[str, ...],
    out: Path,
    **options: Any,
) -> None:
    """Train probes on the data of each experiment and test them on all others."""
    from probekit.experiment.loader import load_experiment

    all_overrides = with_choices(overrides, sites, kinds)
    experiments = [load_experiment(file, all_overrides) for file in files]

    from probekit.cli.show.comparisons import show_transfer
    from probekit.cli.show.progress import watching
    from probekit.pipeline.compare.transfer import transfer as transfer_all

    with watching() as watcher:
        result = transfer_all(experiments, out=out, watcher=watcher, **options)
    show_transfer(result)
    click.echo(str(out / "transfer.html"))


@click.command()
@file_options
@device_option
@runs_option("the run is written to PATH/NAME")
def pretrain_command(file: Path, overrides: tuple[str, ...], device: str, out: Path) -> None:
    """Train a small GPT-2 from a recipe; an interrupted run resumes where it stopped."""
    from probekit.experiment.loader import load_recipe

    recipe = load_recipe(file, overrides)

    from probekit.cli.show.progress import watching
    from probekit.pipeline.pretrain import pretrain as run_pretraining

    with watching() as watcher:
        result = run_pretraining(recipe, out=out, device=device, watcher=watcher)
    last = result.last
    click.echo(
        f"step {last.step:,}: held out {last.held_out_loss:.4f} nats per token, "
        f"{last.held_out_per_character:.4f} per character"
    )
    click.echo(f"{result.model}\n{result.log}\n{result.figure}")


@click.command()
def experiments() -> None:
    """List the bundled experiments and the models that can be used by name."""
    from probekit.cli.show.experiments import show_experiments
    from probekit.cli.show.models import show_models
    from probekit.experiment.loader import bundled_experiments

    show_experiments(bundled_experiments())
    click.echo()
    show_models()


@click.command()
@click.argument("name", type=click.Path(path_type=Path))
def init(name: Path) -> None:
    """Start an experiment: write NAME.yaml with comments, sample data and the schema for editors.

    No existing file is overwritten.
    """
    from probekit.experiment.loader import write_example

    yaml, data, schema = write_example(name)
    for path, purpose in (
        (yaml, "question, model, data and probes; the comments explain each key"),
        (data, "sample rows; replace them with your own"),
        (schema, "with it, editors complete keys and values"),
    ):
        click.echo(f"{path}: {purpose}")
    file = shlex.quote(str(yaml))
    click.echo(f"Next:\n  probekit validate {file}\n  probekit run {file}")
