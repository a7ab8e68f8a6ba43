"""`probekit cache FILE.yaml` and `probekit worker`: capturing, by one process or by many."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.amounts import counted
from probekit.cli.options import PlaceType, WholeNumber, capture_options

if TYPE_CHECKING:
    from probekit.activations.files.local import Location
    from probekit.experiment.schema import Experiment
    from probekit.pipeline.capture.local_workers import Workers
    from probekit.watcher import Watcher


@click.command()
@capture_options
@click.option(
    "--workers",
    type=WholeNumber(min=0),
    help="Processes that capture side by side, or actors of Ray; 0 only lays the caches out, for "
    "`probekit worker`.",
)
@click.option("--engine", type=click.Choice(["processes", "ray"]), help="What the workers are.")
@click.option("--address", help="Of the Ray cluster.  [default: RAY_ADDRESS, or this machine]")
@click.option(
    "--threads", type=WholeNumber(min=1), help="Of each worker.  [default: its share; Ray: 1]"
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
    """Only capture the activations of an experiment."""
    from probekit.experiment.loader import load_experiment

    _require_file(file)
    if address is not None and engine != "ray":
        raise click.UsageError("--address is of a Ray cluster: give --engine ray, too.")
    if threads is not None and workers is None and engine is None:
        raise click.UsageError("--threads is for each of several workers: give --workers, too.")
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
    """Return who captures; None for this process alone."""
    shared: dict[str, Any] = {"device": device, "n_threads": threads, "watcher": watcher}
    if engine == "ray":
        from probekit.pipeline.capture.ray_workers import by_ray

        return partial(by_ray, n_workers=workers, address=address, **shared)
    if workers is None and engine is None:
        return None
    from probekit.pipeline.capture.devices import check_device
    from probekit.pipeline.capture.local_workers import by_processes

    check_device(device)  # those of a cluster may be on other machines, these are here
    return partial(by_processes, n_workers=workers or os.cpu_count() or 1, **shared)


def _lay_out(experiment: Experiment, cache_root: Location | None, device: str) -> None:
    from probekit.pipeline.capture.captures import lay_out

    for target, store in lay_out(experiment, cache_root=cache_root, device=device).items():
        click.echo(
            f"{target}: {counted(store.n_rows, 'row')} in "
            f"{counted(store.spec.sizes.shards, 'shard')}; start as many as you like of:  "
            f"probekit worker {store.folder}"
        )


@click.command()
@click.argument("place", type=PlaceType(), metavar="CACHE_DIR")
@click.option("--device", help="Where to compute, e.g. cuda:1.  [default: as the cache says]")
@click.option("--threads", type=WholeNumber(min=1), help="That compute on a CPU.")
@click.option(
    "--seed",
    type=WholeNumber(min=0),
    help="Of the order in which shards are tried.  [default: another one for each worker]",
)
@click.option("--job", hidden=True, help="The name of the one job to be done.")
@click.option("--parent", type=int, hidden=True, help="The process to end with.")
@click.option("--json", "as_json", is_flag=True, help="A line of JSON for each shard.")
def worker(
    place: Location,
    device: str | None,
    threads: int | None,
    seed: int | None,
    job: str | None,
    parent: int | None,
    as_json: bool,
) -> None:
    """Help to fill a cache that `probekit cache FILE.yaml --workers 0` has laid out.

    CACHE_DIR is one cache, or a folder or URL of several. Any number of workers may be started, at
    any time, wherever that is seen; each leaves when nothing is missing.
    """
    from joblib import cpu_count

    from probekit.pipeline.capture.jobs import work_at
    from probekit.workers import exit_with_parent
    from probekit.workers import threads as with_threads

    if parent is not None:
        exit_with_parent(parent)
    chosen = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    n_done = 0
    with with_threads(threads or cpu_count()):
        for cache, done in work_at(place, only=job, device=device, seed=chosen):
            n_done += 1
            told = {"cache": str(cache), **done._asdict()}
            click.echo(
                json.dumps(told)
                if as_json
                else f"{cache}: shard {done.shard}, {done.rows} rows of {done.sites} sites, "
                f"{done.seconds:.1f} s"
            )
    click.echo(f"{counted(n_done, 'shard')} computed; nothing is missing in {place}", err=True)


def _require_file(file: Path) -> None:
    """Offer the commands to whoever mistyped one."""
    if not file.suffix and not file.exists():
        from probekit.errors import nearest

        parent = click.get_current_context().parent
        commands = (
            parent.command.commands if parent and isinstance(parent.command, click.Group) else ()
        )
        raise click.UsageError(
            f"There is no file {file}, and no such command. {nearest(str(file), commands)}"
        )
