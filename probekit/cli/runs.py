"""Commands that run experiments and recipes, compare the runs, and show their pages."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from probekit.cli.options import (
    OutputFile,
    Texts,
    cache_option,
    capture_options,
    complete_experiment,
    device_option,
    experiment_file,
    file_options,
    json_option,
    out_option,
    page_or_rows_option,
    runs_option,
    set_option,
    together,
    watching,
)
from probekit.terminal import json_text


def _read_formats(ctx: click.Context, param: click.Parameter, given: str | None) -> Sequence[str]:
    """Return the file formats of --figures, which are checked before any work."""
    del ctx, param
    if given is None:
        return ()
    from probekit.report.figures.figure_files import check_engine, read_formats

    formats = read_formats(given)
    check_engine()
    return formats


figure_options = together(
    click.option(
        "--figures",
        "formats",
        metavar="png,svg,pdf",
        callback=_read_formats,
        help="File formats to export each figure to.",
    ),
    click.option(
        "--columns",
        type=click.IntRange(1, 2),
        default=2,
        help="Width of --figures in columns of a paper.",
    ),
)


def draw_figures(run_dir: Path, formats: Sequence[str], columns: int) -> None:
    """Write the figures of a run to its folder `figures` and print the path.

    Without formats there is nothing to do.
    """
    if formats:
        from probekit.files import inside
        from probekit.report.figures.figure_files import write_figures
        from probekit.report.pages.run_page import run_figures

        folder = inside(run_dir / "figures")
        written = write_figures(run_figures(run_dir), folder, formats, columns)
        click.echo(f"{len(written)} figures in {run_dir / 'figures'}", err=True)


@click.command()
@capture_options
@runs_option("the run is written to PATH/NAME/KEY")
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
    file: Path, overrides: Texts, formats: Sequence[str], columns: int, page: bool, **options: Any
) -> None:
    """Run an experiment: capture, fit probes, write the report.

    Of a study, all cells are run, and study.csv has a row for each.
    """
    if options["address"] is not None and options["engine"] != "ray":
        raise click.UsageError("--address requires --engine ray.")
    if options["engine"] == "ray" and options["workers"] == 0:
        raise click.UsageError("--workers 0 leaves the work to `probekit worker`, without Ray.")
    from probekit.experiment.loader import load_any
    from probekit.experiment.study import Study

    experiment = load_any(file, overrides)
    if isinstance(experiment, Study) and formats:
        raise click.UsageError("--figures is for a single experiment; see `probekit report RUN`.")

    from probekit.pipeline.experiment.run import run as run_experiment
    from probekit.results.study import StudyResult

    with watching() as watcher:
        result = run_experiment(experiment, **options, page=page, watcher=watcher)
    if isinstance(result, StudyResult):
        click.echo(f"{result!r}\n{result.folder / 'study.csv'}")
        sys.exit(1 if len(result.failed) else 0)

    from probekit.cli.show.results import show_causes_of, show_results, show_warnings

    show_results(result)
    show_causes_of(result)
    show_warnings(result)
    draw_figures(result.folder, formats, columns)
    click.echo(str(result.report if page else result.results))


@click.command()
@file_options
def validate_command(file: Path, overrides: Texts) -> None:
    """Check file and data before a run: counts, leaks, sizes, time."""
    from probekit.experiment.loader import load_any

    experiment = load_any(file, overrides)

    from probekit.cli.show.terminal import echo
    from probekit.pipeline.experiment.validate import validate as validate_experiment

    with watching() as watcher:
        validation = validate_experiment(experiment, watcher=watcher)
    echo(str(validation))
    if not validation.ok:
        sys.exit(2)


@click.command()
@click.argument("what", metavar="FILE.yaml|MODEL", shell_complete=complete_experiment)
@set_option("; for a FILE only")
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
@device_option
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
@json_option
def plan(
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
    from probekit.experiment.locations import is_experiment

    if machines["devices"] is not None and machines["device"] == "cpu":
        raise click.UsageError("--devices requires a --device, such as cuda.")
    # Gigabytes in bytes; 0 is no valid number of either.
    machines |= {"bandwidth": bandwidth and 1e9 * bandwidth, "memory": memory and 1e9 * memory}
    if is_experiment(what):
        from probekit.experiment.loader import load_any
        from probekit.experiment.study import Study

        for name, value in {"tokens": tokens, "sites": sites, "dtype": dtype}.items():
            if value not in (None, ()):
                raise click.UsageError(f"--{name} is for a MODEL; set it in {what}.")
        experiment = load_any(what, overrides)

        from probekit.pipeline.experiment.plan import Machines, described_plan, plan_run
        from probekit.pipeline.study.run import plan_study

        if isinstance(experiment, Study):
            with watching() as watcher:
                numbers = plan_study(experiment, Machines(**machines), watcher)
        else:
            numbers = plan_run(experiment, Machines(**machines))
    else:
        from probekit.model.weights.sources import local_folder

        if overrides:
            raise click.UsageError("--set requires a FILE.yaml.")
        if tokens is None or not 1 <= tokens <= 1e15 or tokens != int(tokens):
            raise click.UsageError("Give the number of tokens, such as --tokens 100e6.")
        local_folder(what)

        from probekit.pipeline.experiment.plan import Machines, described_plan, plan_model

        sites, dtype = sites or ("blocks.*.hook_resid_post",), dtype or "float16"
        numbers = plan_model(what, int(tokens), sites, dtype, Machines(**machines))

    click.echo(json_text(numbers) if as_json else described_plan(numbers))


@click.command()
@file_options
@device_option
@runs_option("the tables are written to PATH/NAME/KEY/causes")
def intervene_command(file: Path, overrides: Texts, device: str, out: Path) -> None:
    """Run the interventions of an experiment without its probes."""
    from probekit.experiment.loader import load_experiment

    experiment = load_experiment(file, overrides)

    from probekit.cli.show.results import show_causes
    from probekit.pipeline.intervene.run import intervene
    from probekit.report.causes.findings import cause_answer

    with watching() as watcher:
        tables = intervene(experiment, out=out, device=device, watcher=watcher)
    click.echo(f"\n{cause_answer(tables)}")
    show_causes(tables)
    click.echo(str(tables.run_dir / "causes.html"))


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--metric", help="Metric on the test rows.  [default: main metric of the runs]")
@page_or_rows_option
def compare_command(run_a: Path, run_b: Path, metric: str | None, out: Path | None) -> None:
    """Compare two finished runs: RUN_A minus RUN_B.

    Each difference has an interval and a p-value.
    """
    from probekit.results.record import check_finished

    for run in (run_a, run_b):
        check_finished(run)

    from probekit.cli.show.results import show_comparison
    from probekit.pipeline.compare.compare import compare as compare_runs
    from probekit.pipeline.compare.compare import write_comparison

    comparison = compare_runs(run_a, run_b, metric=metric)
    show_comparison(comparison)
    if out is not None:
        click.echo(str(write_comparison(out, comparison)))


@click.command()
@click.argument("files", nargs=-1, required=True, **experiment_file)
@set_option(" in all files")
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
@cache_option
@device_option
@out_option
def transfer_command(
    files: Sequence[Path], overrides: Texts, sites: Texts, kinds: Texts, out: Path, **options: Any
) -> None:
    """Train probes on each experiment and test them on all others."""
    from probekit.experiment.loader import load_experiment
    from probekit.probes.kinds.registry import find_kind

    changes = list(overrides)
    # Sites and kinds of the command replace those of all files.
    if sites:
        changes += [f"capture.sites={json.dumps(sites)}", "capture.concatenate=[]"]
    if kinds:
        named = [{"kind": find_kind(kind).name} for kind in kinds]
        changes.append(f"probe.kinds={json.dumps(named)}")
    loaded = [load_experiment(file, changes) for file in files]

    from probekit.cli.show.results import show_transfer
    from probekit.pipeline.compare.transfer import transfer as transfer_all

    with watching() as watcher:
        result = transfer_all(loaded, out=out, watcher=watcher, **options)
    show_transfer(result)
    click.echo(str(out / "transfer.html"))


@click.command()
@file_options
@device_option
@runs_option("the run is written to PATH/NAME")
def pretrain_command(file: Path, overrides: Texts, device: str, out: Path) -> None:
    """Train a small GPT-2 from a recipe.

    An interrupted run resumes where it stopped.
    """
    from probekit.experiment.loader import load_recipe

    recipe = load_recipe(file, overrides)

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
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--out", type=OutputFile(".html"), help="Page of several runs.  [default: runs.html]")
@figure_options
def report(runs: tuple[Path, ...], out: Path | None, formats: Sequence[str], columns: int) -> None:
    """Rebuild the page of a run, or write one page of several RUNS.

    Pages are built from the files of the runs. Of a pretraining run, it draws the figure of the
    losses.
    """
    from probekit.results.record import check_finished, has_causes_alone

    if len(runs) > 1:  # a page of all runs
        out = out or Path("runs.html")
        for run in runs:
            check_finished(run)

        from probekit.files import write_atomic
        from probekit.report.figures.figure_files import write_figures
        from probekit.report.pages.runs_page import load_runs, runs_figures, runs_page
        from probekit.report.texts import line_label

        loaded = load_runs(runs)
        write_atomic(out, runs_page(loaded))
        for shown in loaded:
            click.echo(f"{line_label(shown.name)}: {shown.answer}")
        if formats:
            write_figures(runs_figures(loaded), out.with_suffix("") / "figures", formats, columns)
        click.echo(str(out))
        return
    (folder,) = runs
    if out is not None:
        raise click.UsageError(
            "--out requires several runs; the page of a single run is its report.html."
        )
    from probekit.training.run_files import is_pretraining

    if is_pretraining(folder):
        from probekit.report.pages.losses import write_losses

        if formats:
            raise click.UsageError("--figures requires the run of an experiment.")
        click.echo(str(write_losses(folder)))
        return
    if not has_causes_alone(folder):  # interventions alone have no results of probes to check
        check_finished(folder)

    from probekit.report.pages.run_page import write_report

    path = write_report(folder)
    draw_figures(folder, formats, columns)
    click.echo(str(path))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default="runs")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Local port; 0 for any free port."
)
def view(folder: Path, port: int) -> None:
    """Serve the runs in FOLDER to a browser on this machine.

    Runs in progress are included.
    """
    from probekit.results.record import check_results_folder

    check_results_folder(folder)

    from probekit.cli.view_server import HOST, make_server

    with make_server(folder, port) as server:
        click.echo(f"http://{HOST}:{server.server_port}/  (press Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)


@click.command()
def experiments() -> None:
    """List the bundled experiments and the named models."""
    from probekit.cli.show.looks import show_experiments, show_models
    from probekit.experiment.loader import bundled_experiments

    show_experiments(bundled_experiments())
    click.echo()
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
    from probekit.data.table import Columns
    from probekit.experiment.loader import write_example

    columns = None
    if data is not None and text is not None and label is not None:
        columns = Columns(text=text, label=label, group=group)
    elif any((data, text, label, group)):
        raise click.UsageError("Your own data need --data, --text and --label.")
    paths = write_example(name, data, columns)
    click.echo("\n".join(map(str, paths)))
    if data is None:
        click.echo("The rows are a sample. For your own table: probekit init --help")
    file = shlex.quote(str(paths[0]))
    click.echo(f"Next:\n  probekit validate {file}\n  probekit run {file}")
