"""`probekit cache FILE.yaml` and `probekit worker`: capturing with one or several processes."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.amounts import counted
from probekit.cli.options import IntegerInRange, PlaceType, capture_options
from probekit.errors import nearest

if TYPE_CHECKING:
    from probekit.activations.records import Location
    from probekit.experiment.schema import Experiment
    from probekit.pipeline.capture.local_workers import Workers
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
    from probekit.pipeline.capture.devices import check_device
    from probekit.pipeline.capture.local_workers import by_processes

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
