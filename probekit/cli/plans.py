"""`probekit cache plan`: the estimated cost of a capture."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from probekit.amounts import size_in_words
from probekit.cli.options import IntegerInRange, NumberInRange
from probekit.experiment.bundled import is_experiment
from probekit.terminal.streams import json_text

if TYPE_CHECKING:
    from probekit.pipeline.capture.sizing import CapturePlan


@click.command()
@click.argument("what", metavar="MODEL|FILE.yaml")
@click.option("--tokens", type=float, help="Number of tokens, such as 100e6; for a MODEL only.")
@click.option(
    "--length", type=IntegerInRange(min=1), help="Tokens per sequence.  [default: the context]"
)
@click.option(
    "--position",
    type=click.Choice(["all", "last"]),
    help="Captured tokens of each sequence.  [default: all]",
)
@click.option(
    "--sites",
    multiple=True,
    help="Name or glob of sites; repeatable.  [default: blocks.*.hook_resid_post]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    help="Data type on disk.  [default: float16]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="a.b=c",
    help="Override of a key; for a FILE only; repeatable.",
)
@click.option("--device", default="cuda", show_default=True, help="Compute device of the workers.")
@click.option(
    "--workers",
    type=IntegerInRange(min=1),
    default=1,
    show_default=True,
    help="Number of workers.",
)
@click.option(
    "--throughput",
    type=NumberInRange(0, min_open=True),
    metavar="TOKENS/S",
    help="Measured throughput of one worker.",
)
@click.option(
    "--tflops",
    type=NumberInRange(0, min_open=True),
    help="Peak speed of one worker's processor in 10^12 operations per second.",
)
@click.option(
    "--utilisation",
    type=NumberInRange(0, 1, min_open=True),
    help="Fraction of --tflops that is achieved.  [default: 0.4]",
)
@click.option(
    "--bandwidth",
    type=NumberInRange(0, min_open=True),
    metavar="MB/S",
    help="Write bandwidth of the cache, for all workers together.",
)
@click.option("--json", "as_json", is_flag=True, help="Output as JSON.")
def plan(
    what: str,
    overrides: tuple[str, ...],
    device: str,
    workers: int,
    as_json: bool,
    throughput: float | None,
    tflops: float | None,
    utilisation: float | None,
    bandwidth: float | None,
    **of_tokens: Any,
) -> None:
    """Estimate the cost of a capture without capturing: bytes, files, hours, network.

    Either for a MODEL and --tokens tokens, or for an experiment FILE.yaml, whose data are read.
    """
    _check_speed(throughput, tflops, utilisation)
    given = {name: value for name, value in of_tokens.items() if value not in (None, ())}
    if is_experiment(what):
        capture_plan = _of_file(what, overrides, device, given)
    else:
        capture_plan = _of_model(what, overrides, device, given)

    from probekit.pipeline.capture.sizing import Speed

    speed = Speed(throughput, tflops, *([] if utilisation is None else [utilisation]))
    capture_plan = replace(capture_plan, workers=workers, speed=speed, bandwidth=bandwidth)
    if as_json:
        click.echo(json_text(capture_plan.numbers))
    else:
        print_plan(capture_plan)


def _check_speed(throughput: float | None, tflops: float | None, share: float | None) -> None:
    if throughput is not None and tflops is not None:
        raise click.UsageError("Give --throughput or --tflops, not both.")
    if share is not None and tflops is None:
        raise click.UsageError("--utilisation is a fraction of --tflops: give --tflops too.")


def _of_file(
    what: str, overrides: tuple[str, ...], device: str, given: dict[str, Any]
) -> CapturePlan:
    from probekit.experiment.loader import load_experiment

    if given:
        raise click.UsageError(
            f"--{next(iter(given))} is for a MODEL; for an experiment it is set in {what}."
        )
    experiment = load_experiment(what, overrides)

    from probekit.pipeline.capture.sizing import plan_experiment

    return plan_experiment(experiment, device)


def _of_model(
    what: str, overrides: tuple[str, ...], device: str, given: dict[str, Any]
) -> CapturePlan:
    from probekit.model.weights.sources import local_folder

    if overrides:
        raise click.UsageError("--set requires a FILE.yaml.")
    tokens = given.pop("tokens", None)
    if tokens is None or not 1 <= tokens <= 1e15 or tokens != int(tokens):
        raise click.UsageError("Give the number of tokens, such as --tokens 100e6.")
    given.setdefault("sites", ("blocks.*.hook_resid_post",))
    local_folder(what)

    from probekit.pipeline.capture.sizing import plan_tokens

    return plan_tokens(what, int(tokens), device=device, **given)


def print_plan(capture_plan: CapturePlan) -> None:
    """Print the numbers of a plan, one per line."""
    for name, value in lines(capture_plan.numbers):
        click.echo(f"{name:20} {value}")


def lines(numbers: dict[str, Any]) -> list[tuple[str, str]]:
    """Return names and formatted numbers with units."""
    n, size = numbers, size_in_words
    models = f", by {n['caches']} models" if n["caches"] > 1 else ""
    first, *others = n["sites"]
    sites = f"each of {len(n['sites'])} sites" if others else "one site"
    named = f"{first} to {others[-1]}" if others else first
    workers = f"{n['workers']} worker{'s' if n['workers'] > 1 else ''}"
    shown = [
        ("tokens read", f"{n['tokens']:,}{models}"),
        ("rows", f"{n['rows_of_a_site']:,} at {sites}, as {n['dtype']}"),
        ("sites", named),
        ("shards", f"{n['shards_of_a_site']:,} of each site"),
        ("bytes", f"{size(n['bytes'])}, {size(n['bytes_of_a_token'])} a token"),
        ("files", f"{n['files']:,}, the largest {size(n['bytes_of_the_largest_file'])}"),
        ("operations", f"{n['operations']:.2e}"),
        ("weights read", f"{size(n['bytes_of_weights_read'])}, by {workers}"),
    ]
    if n["hours_of_writing"] is not None:
        shown.append(("hours of writing", f"{n['hours_of_writing']:,.2f}"))
    if n["hours"] is None:
        unknown = "unknown; give --throughput, or --tflops and --utilisation"
        return [*shown, ("hours of computing", unknown)]
    shown += [
        (
            "hours of computing",
            f"{n['hours_of_computing']:,.2f} by {workers}, "
            f"{n['worker_hours_of_computing']:,.2f} by one",
        ),
        ("hours in all", f"{n['hours']:,.2f}"),
    ]
    rate, of_one = n["megabytes_per_second"], n["megabytes_per_second_of_a_worker"]
    return (
        shown
        if rate is None
        else [*shown, ("network", f"{rate:,.0f} MB/s, {of_one:,.0f} MB/s from each worker")]
    )
