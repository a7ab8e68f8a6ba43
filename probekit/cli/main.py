"""The command line: each command parses, calls one function and prints.

Results go to stdout, progress and logs to stderr. Exit codes: 0 success, 1 failure, 2 usage or
configuration error, 3 model or data missing, 130 interrupted, 143 terminated. Heavy modules are not
imported at the top: a command checks its arguments first and then imports the step that it calls.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.cli.caches import cache
from probekit.cli.captures import worker
from probekit.cli.causes import cause_command
from probekit.cli.experiments import experiments, init
from probekit.cli.generation import generate_command
from probekit.cli.models import params, verify_model_command
from probekit.cli.options import (
    IntegerInRange,
    ModelName,
    OutFolder,
    OutputFile,
    cache_option,
    capture_options,
    file_options,
    together,
    with_choices,
)
from probekit.cli.pages import draw_figures, figure_options, report, view
from probekit.cli.patching import patch_command
from probekit.cli.pictures import attention, attribution, heads, lens, weights
from probekit.cli.pretraining import pretrain_command
from probekit.cli.saved_probes import apply
from probekit.cli.versions import version_option
from probekit.errors import ProbekitError, nearest
from probekit.pipeline.look.endings import PAGE_OR_ROWS
from probekit.terminal import Interruptible, escape_streams

if TYPE_CHECKING:
    from probekit.activations.records import Location


def main() -> None:
    """Run the command line and exit with its exit code."""
    _prepare_streams()
    try:
        with _sigterm_raises(), Interruptible():
            code = cli.main(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        name = Path(sys.argv[0]).name
        program = ["python", "-m", "probekit"] if name == "__main__.py" else [name]
        command = shlex.join([*program, *sys.argv[1:]])
        click.echo(f"\nInterrupted. Completed work is saved; continue with:\n  {command}", err=True)
        sys.exit(143 if isinstance(error, _Terminated) else 130)
    except ProbekitError as error:
        click.echo(f"Error: {error}", err=True, color=True)
        sys.exit(error.exit_code)
    except OSError as error:  # the output cannot be written, or a file cannot be accessed
        click.echo(f"Error: {error}.", err=True, color=True)
        # After a full disk, flushing the buffer at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


# Windows has SIGBREAK instead, sent by Ctrl-Break and by the parent process of a worker.
_TERMINATE = [getattr(signal, n) for n in ("SIGTERM", "SIGBREAK") if hasattr(signal, n)]


class _Terminated(KeyboardInterrupt):
    """The process received SIGTERM, for example from a cluster; handled like Ctrl-C."""


def _terminated(*_: object) -> None:
    raise _Terminated


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
        yield
        return
    before = {number: signal.signal(number, _terminated) for number in _TERMINATE}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _prepare_streams() -> None:
    """Replace closed streams; escape control characters and characters not in the encoding."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    escape_streams()


class _Commands(click.Group):
    """Suggests similar commands, including those of `cache`, for an unknown command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command; raise UsageError with suggestions if it is unknown."""
        if args[0] not in self.commands and not args[0].startswith("-"):
            known = [*self.commands, *(f"cache {name}" for name in cache.commands)]
            similar = [name for name in known if name.endswith(f" {args[0]}")]
            advice = f"Did you mean: {similar[0]}?" if similar else nearest(args[0], known)
            raise click.UsageError(f"No such command {args[0]!r}. {advice}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Commands,
    # With colour, click leaves escape sequences in the text, and the stream makes them visible.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "color": True,
    },
)
@version_option
def cli() -> None:
    """Train and evaluate linear probes on language models, from one experiment file."""


_out_option = click.option(
    "--out",
    type=OutFolder(),
    default="runs",
    show_default=True,
    help="Results folder; the run is written to PATH/NAME/KEY.",
)
_run_options = together(
    capture_options,
    _out_option,
    click.option(
        "--workers",
        type=IntegerInRange(min=1),
        help="Number of sites probed in parallel.  [default: number of cores]",
    ),
)


@cli.command()
@_run_options
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

    from probekit.cli.show.progress import watching
    from probekit.cli.show.results import show_causes_of, show_results, show_warnings
    from probekit.pipeline.experiment.run import run as run_experiment

    with watching() as watcher:
        result = run_experiment(experiment, **options, page=page, watcher=watcher)
    show_results(result)
    show_causes_of(result)
    show_warnings(result)
    draw_figures(result.folder, formats, columns)
    click.echo(str(result.report if page else result.results))


@cli.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option("--metric", help="Metric on the test rows.  [default: main metric of the runs]")
@click.option("--out", type=OutputFile(*PAGE_OR_ROWS), help="Output file (.csv or .html).")
def compare_command(run_a: Path, run_b: Path, metric: str | None, out: Path | None) -> None:
    """Compare two finished runs: differences RUN_A minus RUN_B, with intervals and p-values."""
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


@cli.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="a.b=c",
    help="Override of a key in all files; repeatable.",
)
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
@click.option("--device", default="cpu", help="Compute device, e.g. cuda.")
@click.option("--out", type=OutFolder(), required=True, help="Output folder.")
def transfer_command(
    files: tuple[Path, ...],
    overrides: tuple[str, ...],
    sites: tuple[str, ...],
    kinds: tuple[str, ...],
    null_draws: int,
    cache_root: Location | None,
    device: str,
    out: Path,
) -> None:
    """Train probes on the data of each experiment and test them on all others."""
    from probekit.experiment.loader import load_experiment

    all_overrides = with_choices(overrides, sites, kinds)
    experiments = [load_experiment(file, all_overrides) for file in files]

    from probekit.cli.show.progress import watching
    from probekit.cli.show.results import show_transfer
    from probekit.pipeline.compare.transfer import transfer as transfer_all

    with watching() as watcher:
        result = transfer_all(
            experiments,
            out=out,
            null_draws=null_draws,
            cache_root=cache_root,
            device=device,
            watcher=watcher,
        )
    show_transfer(result)
    click.echo(str(out / "transfer.html"))


@cli.command()
@file_options
def validate_command(file: Path, overrides: tuple[str, ...]) -> None:
    """Validate file and data before a run: counts, duplicates, leaks, sizes, time."""
    from probekit.experiment.loader import load_any_experiment

    experiment = load_any_experiment(file, overrides)

    from probekit.pipeline.experiment.validate import validate as validate_experiment

    validation = validate_experiment(experiment)
    click.echo(str(validation))
    if not validation.ok:
        sys.exit(2)


@cli.command()
@click.option("--quick", is_flag=True, help="Fewer simulations; half a minute instead of a minute.")
def selftest_command(quick: bool) -> None:
    """Test the engine on data and tiny models with known answers: signals, noise, intervals."""
    from probekit.cli.show.progress import watching
    from probekit.cli.show.results import show_verdicts
    from probekit.pipeline.selftest import selftest as run_selftest

    with watching() as watcher:
        verdicts = run_selftest(quick=quick, watcher=watcher)
    show_verdicts(verdicts)
    if not all(verdict.ok for verdict in verdicts):
        sys.exit(1)


@cli.command()
@click.argument("model", type=ModelName())
def sites(model: str) -> None:
    """List the sites of a model with name, shape and formula."""
    from probekit.cli.show.catalogues import show_sites

    show_sites(model)


for _command in (
    apply,
    attention,
    attribution,
    cache,
    cause_command,
    experiments,
    generate_command,
    heads,
    init,
    lens,
    params,
    patch_command,
    pretrain_command,
    report,
    verify_model_command,
    view,
    weights,
    worker,
):
    cli.add_command(_command)
