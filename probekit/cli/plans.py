"""`probekit cache plan`: the estimated size and time of a capture."""

from __future__ import annotations

from typing import Any

import click

from probekit.amounts import counted, size_in_words
from probekit.cli.options import IntegerInRange, NumberInRange
from probekit.terminal import json_text


@click.command()
@click.argument("what", metavar="MODEL|FILE.yaml")
@click.option("--tokens", type=float, help="Number of tokens, such as 100e6; for a MODEL only.")
@click.option(
    "--sites",
    multiple=True,
    help="Name or glob of sites; for a MODEL; repeatable.  [default: blocks.*.hook_resid_post]",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    help="Data type on disk; for a MODEL.  [default: float16]",
)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="a.b=c",
    help="Override of a key; for a FILE only; repeatable.",
)
@click.option("--device", default="cuda", show_default=True, help="Compute device of the workers.")
@click.option("--workers", type=IntegerInRange(min=1), default=1, help="Number of workers.")
@click.option(
    "--throughput",
    type=NumberInRange(0, min_open=True),
    metavar="TOKENS/S",
    help="Measured throughput of one worker, for the time.",
)
@click.option("--json", "as_json", is_flag=True, help="Output as JSON.")
def plan(
    what: str,
    tokens: float | None,
    overrides: tuple[str, ...],
    device: str,
    workers: int,
    throughput: float | None,
    as_json: bool,
    **of_model: Any,
) -> None:
    """Estimate the bytes, files and hours of a capture without capturing.

    Either for --tokens tokens of a MODEL, or for an experiment FILE.yaml, whose data are read.
    """
    from probekit.experiment.locations import is_experiment

    given = {name: value for name, value in of_model.items() if value}
    if is_experiment(what):
        from probekit.experiment.loader import load_experiment

        if given or tokens is not None:
            name = next(iter(given), "tokens")
            raise click.UsageError(f"--{name} is for a MODEL; set it in {what}.")
        experiment = load_experiment(what, overrides)

        from probekit.pipeline.capture.sizing import plan_experiment

        numbers = plan_experiment(experiment, device)
    else:
        from probekit.model.weights.sources import local_folder

        if overrides:
            raise click.UsageError("--set requires a FILE.yaml.")
        if tokens is None or not 1 <= tokens <= 1e15 or tokens != int(tokens):
            raise click.UsageError("Give the number of tokens, such as --tokens 100e6.")
        local_folder(what)

        from probekit.pipeline.capture.sizing import plan_tokens

        sites = {"sites": ("blocks.*.hook_resid_post",)}
        numbers = plan_tokens(what, int(tokens), device=device, **(sites | given))
    parallel = min(workers, numbers["shards_of_a_site"])
    seconds = None if throughput is None else numbers["caches"] * numbers["tokens"] / throughput
    numbers["hours"] = None if seconds is None else seconds / parallel / 3600
    if as_json:
        click.echo(json_text(numbers))
        return
    n, several = numbers, numbers["caches"] > 1
    time = "unknown; give --throughput" if seconds is None else f"{n['hours']:,.2f}"
    for name, value in {
        "tokens read": f"{n['tokens']:,}" + (f", by {n['caches']} models" if several else ""),
        "rows": f"{n['rows_of_a_site']:,} at {counted(len(n['sites']), 'site')}, as {n['dtype']}",
        "sites": " to ".join(dict.fromkeys([n["sites"][0], n["sites"][-1]])),
        "bytes": f"{size_in_words(n['bytes'])}, {size_in_words(n['bytes'] / n['tokens'])} a token",
        "files": f"{n['files']:,}, in {counted(n['shards_of_a_site'], 'shard')} of each site",
        "hours": time + (f", by {counted(parallel, 'worker')}" if seconds is not None else ""),
    }.items():
        click.echo(f"{name:12} {value}")
