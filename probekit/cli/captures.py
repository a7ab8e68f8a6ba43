"""`probekit cache FILE.yaml`, `probekit worker` and `probekit cache plan`: capturing."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.amounts import counted, size_in_words
from probekit.cli.options import (
    IntegerInRange,
    NumberInRange,
    PlaceType,
    capture_options,
    json_option,
    set_option,
)
from probekit.errors import nearest
from probekit.terminal import json_text

if TYPE_CHECKING:
    from probekit.activations.records import Location
    from probekit.experiment.schema import Experiment
    from probekit.pipeline.capture.jobs import Workers
    from probekit.terminal import Watcher


@click.command()
@capture_options
@click.option(
    "--workers",
    type=IntegerInRange(min=0),
    help="Number of parallel processes or Ray actors; 0 only creates the caches, to be filled by "
    "`probekit worker`.",
)
@click.option("--engine", type=click.Choice(["processes", "ray"]), help="Type of workers.")
@click.option(
    "--address", help="Address of the Ray cluster.  [default: RAY_ADDRESS, or this machine]"
)
@click.option(
    "--threads",
    type=IntegerInRange(min=1),
    help="Threads per worker.  [default: cores divided by workers; Ray: 1]",
)
def capture_command(
    file: Path,
    overrides: tuple[str, ...],
    cache_root: Location | None,
    device: str,
    workers: int | None,
    engine: str | None,
    address: str | None,
    threads: int | None,
) -> None:
    """Capture the activations of an experiment without probing them."""
    from probekit.experiment.loader import load_experiment

    _require_file(file)
    if address is not None and engine != "ray":
        raise click.UsageError("--address requires --engine ray.")
    if threads is not None and workers is None and engine is None:
        raise click.UsageError("--threads requires --workers.")
    experiment = load_experiment(file, overrides)
    if workers == 0:
        _lay_out(experiment, cache_root, device)
        return

    from probekit.cli.show.progress import watching
    from probekit.pipeline.capture.captures import capture_only

    with watching() as watcher:
        captured = capture_only(
            experiment,
            cache_root=cache_root,
            device=device,
            watcher=watcher,
            crew=_crew(workers, engine, address, threads, device, watcher),
        )
    for target, part in captured.items():
        click.echo(
            f"{target}: {counted(part.store.n_rows, 'row')}, "
            f"{counted(part.computed, 'shard')} computed, {part.reused} reused, "
            f"digest {part.root[:16]}, {part.store.folder}"
        )


def _crew(
    workers: int | None,
    engine: str | None,
    address: str | None,
    threads: int | None,
    device: str,
    watcher: Watcher,
) -> Workers | None:
    """Return the function that captures with several workers; None for this process alone."""
    shared: dict[str, Any] = {"device": device, "n_threads": threads, "watcher": watcher}
    if engine == "ray":
        from probekit.pipeline.capture.ray_workers import by_ray

        return partial(by_ray, n_workers=workers, address=address, **shared)
    if workers is None and engine is None:
        return None
    from probekit.pipeline.capture.jobs import by_processes
    from probekit.products import check_device

    check_device(device)  # local workers use this machine; Ray actors may run on others
    return partial(by_processes, n_workers=workers or os.cpu_count() or 1, **shared)


def _lay_out(experiment: Experiment, cache_root: Location | None, device: str) -> None:
    from probekit.pipeline.capture.captures import lay_out

    for target, store in lay_out(experiment, cache_root=cache_root, device=device).items():
        click.echo(
            f"{target}: {counted(store.n_rows, 'row')} in "
            f"{counted(store.spec.sizes.shards, 'shard')}; start any number of workers with:  "
            f"probekit worker {store.folder}"
        )


@click.command()
@click.argument("place", type=PlaceType(), metavar="CACHE_DIR")
@click.option("--device", help="Compute device, e.g. cuda:1.  [default: that of the cache]")
@click.option("--threads", type=IntegerInRange(min=1), help="Number of CPU threads.")
@click.option(
    "--seed",
    type=IntegerInRange(min=0),
    help="Random seed for the order of shards.  [default: different for each worker]",
)
@click.option("--job", hidden=True, help="Name of the only job to do.")
@click.option(
    "--parent", type=int, hidden=True, help="Id of the process with which the worker exits."
)
@click.option("--json", "as_json", is_flag=True, help="Output as one line of JSON per shard.")
def worker(
    place: Location,
    device: str | None,
    threads: int | None,
    seed: int | None,
    job: str | None,
    parent: int | None,
    as_json: bool,
) -> None:
    """Fill a cache that `probekit cache FILE.yaml --workers 0` has created.

    CACHE_DIR is a cache, or a folder or URL with several caches. Any number of workers can be
    started at any time on any machine with access to it; each exits when no shard is missing.
    """
    from probekit.activations.upkeep import caches_at

    caches_at(place)  # raises an error before torch is imported

    from joblib import cpu_count

    from probekit.pipeline.capture.jobs import work_at
    from probekit.workers import exit_with_parent
    from probekit.workers import threads as with_threads

    if parent is not None:
        exit_with_parent(parent)
    used_seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    n_done = 0
    with with_threads(threads or cpu_count()):
        for cache, done in work_at(place, only=job, device=device, seed=used_seed):
            n_done += 1
            content = {"cache": str(cache), **done._asdict()}
            click.echo(
                json.dumps(content)
                if as_json
                else f"{cache}: shard {done.shard}, {done.rows} rows of {done.sites} sites, "
                f"{done.seconds:.1f} s"
            )
    click.echo(f"{counted(n_done, 'shard')} computed; no shard is missing in {place}", err=True)


def _require_file(file: Path) -> None:
    """Raise UsageError if FILE is likely a mistyped command, and suggest similar commands."""
    from probekit.experiment.locations import bundled_files, is_experiment

    if not file.suffix and not file.exists() and not is_experiment(file):
        parent = click.get_current_context().parent
        commands = (
            parent.command.commands if parent and isinstance(parent.command, click.Group) else ()
        )
        names = [*commands, *bundled_files()]
        raise click.UsageError(
            f"There is no file and no bundled experiment {file}, and no such command. "
            f"{nearest(str(file), names)}"
        )


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
@set_option("; for a FILE only")
@click.option("--device", default="cuda", show_default=True, help="Compute device of the workers.")
@click.option("--workers", type=IntegerInRange(min=1), default=1, help="Number of workers.")
@click.option(
    "--throughput",
    type=NumberInRange(0, min_open=True),
    metavar="TOKENS/S",
    help="Measured throughput of one worker, for the time.",
)
@json_option
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

        from probekit.pipeline.capture.captures import plan_experiment

        numbers = plan_experiment(experiment, device)
    else:
        from probekit.model.weights.sources import local_folder

        if overrides:
            raise click.UsageError("--set requires a FILE.yaml.")
        if tokens is None or not 1 <= tokens <= 1e15 or tokens != int(tokens):
            raise click.UsageError("Give the number of tokens, such as --tokens 100e6.")
        local_folder(what)

        from probekit.pipeline.capture.captures import plan_tokens

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
