"""Commands that run experiments and recipes, compare the runs, and show their pages."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import probekit
from probekit.cli import options
from probekit.cli.later import later
from probekit.cli.options import OutputFile, Texts, together, watching
from probekit.terminal import json_text

if TYPE_CHECKING:
    from probekit import files
    from probekit.cli import view_server
    from probekit.cli.show import looks, results, terminal
    from probekit.data import table
    from probekit.experiment import loader, locations, study
    from probekit.model.weights import sources
    from probekit.pipeline.compare import compare, transfer
    from probekit.pipeline.experiment import plan, run_study
    from probekit.probes.kinds import registry
    from probekit.report.causes import cause_words
    from probekit.report.elements import texts
    from probekit.report.figures import figure_files
    from probekit.report.pages import compare_page, losses, run_page
    from probekit.results import record
    from probekit.results import study as study_results
    from probekit.training import run_files
globals().update(later(__file__))


def _read_formats(ctx: click.Context, param: click.Parameter, given: str | None) -> Sequence[str]:
    """Return the file formats of --figures, which are checked before any work."""
    del ctx, param
    if given is None:
        return ()
    formats = figure_files.read_formats(given)
    figure_files.check_engine()
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
        folder, drawn = files.inside(run_dir / "figures"), run_page.run_figures(run_dir)
        written = figure_files.write_figures(drawn, folder, formats, columns)
        click.echo(f"{len(written)} figures in {run_dir / 'figures'}", err=True)


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
    file: Path, overrides: Texts, formats: Sequence[str], columns: int, page: bool, **given: Any
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
    results.show_results(result)
    results.show_causes_of(result)
    results.show_warnings(result)
    draw_figures(result.folder, formats, columns)
    click.echo(str(result.report if page else result.results))


@click.command()
@options.file_options
def validate_command(file: Path, overrides: Texts) -> None:
    """Check file and data before a run: counts, leaks, sizes, time."""
    experiment = loader.load_any(file, overrides)
    with watching() as watcher:
        validation = probekit.validate(experiment, watcher=watcher)
    terminal.echo(str(validation))
    if not validation.ok:
        sys.exit(2)


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
    click.echo(f"\n{cause_words.cause_answer(tables)}")
    results.show_causes(tables)
    click.echo(str(tables.run_dir / "causes.html"))


@click.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--metric", help="Metric on the test rows.  [default: main metric of the runs]")
@options.page_or_rows_option
def compare_command(run_a: Path, run_b: Path, metric: str | None, out: Path | None) -> None:
    """Compare two finished runs: RUN_A minus RUN_B.

    Each difference has an interval and a p-value.
    """
    for run in (run_a, run_b):
        record.check_finished(run)
    comparison = compare.compare(run_a, run_b, metric=metric)
    results.show_comparison(comparison)
    if out is not None:
        click.echo(str(compare.write_comparison(out, comparison)))


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
def transfer_command(
    files: Sequence[Path], overrides: Texts, sites: Texts, kinds: Texts, out: Path, **given: Any
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
    results.show_transfer(result)
    click.echo(str(out / "transfer.html"))


@click.command()
@options.file_options
@options.device_option
@options.runs_option("the run is written to PATH/NAME")
def pretrain_command(file: Path, overrides: Texts, device: str, out: Path) -> None:
    """Train a small GPT-2 from a recipe.

    An interrupted run resumes where it stopped.
    """
    recipe = loader.load_recipe(file, overrides)
    with watching() as watcher:
        result = probekit.pretrain(recipe, out=out, device=device, watcher=watcher)
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
    if len(runs) > 1:  # a page of all runs
        out = out or Path("runs.html")
        for run in runs:
            record.check_finished(run)
        loaded = compare_page.load_runs(runs)
        files.write_atomic(out, compare_page.runs_page(loaded))
        for shown in loaded:
            click.echo(f"{texts.line_label(shown.name)}: {shown.answer}")
        if formats:
            drawn, folder = compare_page.runs_figures(loaded), out.with_suffix("") / "figures"
            figure_files.write_figures(drawn, folder, formats, columns)
        click.echo(str(out))
        return
    (folder,) = runs
    if out is not None:
        raise click.UsageError(
            "--out requires several runs; the page of a single run is its report.html."
        )
    if run_files.is_pretraining(folder):
        if formats:
            raise click.UsageError("--figures requires the run of an experiment.")
        click.echo(str(losses.write_losses(folder)))
        return
    if not record.has_causes_alone(folder):  # interventions alone have no results of probes
        record.check_finished(folder)
    path = run_page.write_report(folder)
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
    record.check_results_folder(folder)
    with view_server.make_server(folder, port) as server:
        click.echo(f"http://{view_server.HOST}:{server.server_port}/  (press Ctrl-C to stop)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            sys.exit(0)


@click.command()
def experiments() -> None:
    """List the bundled experiments and the named models."""
    looks.show_experiments(loader.bundled_experiments())
    click.echo()
    looks.show_models()


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
        raise click.UsageError("Your own data need --data, --text and --label.")
    paths = loader.write_example(name, data, columns)
    click.echo("\n".join(map(str, paths)))
    if data is None:
        click.echo("The rows are a sample. For your own table: probekit init --help")
    file = shlex.quote(str(paths[0]))
    click.echo(f"Next:\n  probekit validate {file}\n  probekit run {file}")
