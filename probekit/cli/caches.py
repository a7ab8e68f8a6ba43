"""`probekit cache`: capturing activations, and maintaining the caches."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

import probekit
from probekit.amounts import counted, percent, size_in_words
from probekit.cli import options
from probekit.cli.options import Texts, later, together, watching
from probekit.errors import MissingError, ProbekitError, StoreError, nearest
from probekit.terminal import json_text

if TYPE_CHECKING:
    from probekit import accelerators, progress
    from probekit import workers as processes
    from probekit.activations import capture, local, store, upkeep
    from probekit.activations.records import Location
    from probekit.cli import terminal
    from probekit.experiment import loader, locations
    from probekit.pipeline.capture import captures, jobs
    from probekit.pipeline.experiment import ray_workers, run_job
    from probekit.results import record
globals().update(later(__file__))


class _CacheGroup(click.Group):
    """Treats an argument that is not a command as the experiment file to capture."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert `capture` before the name of an experiment; refuse names that are none."""
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            given = args[0]
            # An option, or what may be a file, is left to `capture`.
            is_of_capture = given.startswith("-") or Path(given).suffix or Path(given).exists()
            is_named = is_of_capture or locations.is_experiment(given)  # else likely a command
            if not is_named and not ctx.resilient_parsing:  # not while a shell completes a word
                raise click.UsageError(
                    f"There is no file and no bundled experiment {given}, and no such command. "
                    f"{nearest(given, [*self.commands, *locations.bundled_files()])}"
                )
            args = ["capture", *args]
        return super().parse_args(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem[str]]:
        """Return the commands and the experiments that begin with the incomplete word."""
        items = super().shell_complete(ctx, incomplete)
        return [*options.complete_experiment(ctx, None, incomplete), *items]


@click.group(cls=_CacheGroup)
def cache() -> None:
    """Capture the activations of an experiment, or maintain caches.

    `probekit cache FILE.yaml` captures.
    """


@cache.command()
@options.capture_options
@click.option(
    "--workers",
    type=click.IntRange(min=0),
    help="Number of parallel processes or Ray workers; 0 only creates the caches, to be filled by "
    "`probekit worker`.",
)
@click.option("--engine", type=click.Choice(["processes", "ray"]), help="Type of workers.")
@click.option("--address", help="Address of the Ray cluster.  [default: RAY_ADDRESS]")
@click.option(
    "--threads",
    type=click.IntRange(min=1),
    help="Threads per worker.  [default: cores divided by workers; Ray: 1]",
)
def capture_command(
    file: Path,
    overrides: Texts,
    cache_root: Location | None,
    device: str,
    workers: int | None,
    engine: str | None,
    address: str | None,
    threads: int | None,
) -> None:
    """Capture the activations of an experiment."""
    if address is not None and engine != "ray":
        raise click.UsageError("--address requires --engine ray.")
    if engine == "ray" and workers == 0:
        raise click.UsageError("--workers 0 leaves the work to `probekit worker`, without Ray.")
    if threads is not None and workers is None and engine is None:
        raise click.UsageError("--threads requires --workers.")
    experiment = loader.load_experiment(file, overrides)
    if workers == 0:
        laid_out = jobs.lay_out(experiment, cache_root=cache_root, device=device)
        for target, empty in laid_out.items():
            click.echo(
                f"{target}: {counted(empty.n_rows, 'row')} in "
                f"{counted(empty.spec.sizes.shards, 'shard')}; start any number of workers with:  "
                f"probekit worker {empty.folder}"
            )
        return
    with watching() as watcher:
        shared: dict[str, Any] = {"device": device, "n_threads": threads, "watcher": watcher}
        crew: jobs.Workers | None = None  # this process alone
        if engine == "ray":
            crew = partial(ray_workers.by_ray, n_workers=workers, address=address, **shared)
        elif workers is not None or engine is not None:
            # Local workers use this machine; those of a cluster may run on others.
            accelerators.check_device(device, several=True)
            n_workers = workers or os.cpu_count() or 1
            crew = partial(jobs.by_processes, n_workers=n_workers, **shared)
        captured = captures.capture_only(
            experiment, cache_root=cache_root, device=device, watcher=watcher, crew=crew
        )
    for target, part in captured.items():
        click.echo(f"{target}: {_described(part, 'computed')}")


def _described(part: capture.Captured, done: str) -> str:
    """Return a line on a finished capture; `done` is the verb for shards that it added."""
    return (
        f"{counted(part.store.n_rows, 'row')}, {counted(part.computed, 'shard')} {done}, "
        f"{part.reused} reused, digest {part.root[:16]}, {part.store.folder}"
    )


@cache.command("import")
@options.capture_options
@click.argument("folder", required=False, metavar="[FOLDER]")
def import_command(
    file: Path, folder: str | None, overrides: Texts, cache_root: Location | None, device: str
) -> None:
    """Import hidden states that a serving engine wrote into FOLDER.

    FOLDER replaces `capture.requests` of the experiment. Texts and requests are joined by token
    ids, and the layers are identified on some rows that the network computes again.
    """
    given = ["model.random_weights=false"]  # untrained networks are not imported
    given += [] if folder is None else [f"capture.requests={json.dumps(folder)}"]
    try:
        experiment = loader.load_experiment(file, [*overrides, *given])
        if experiment.capture.requests is None:
            raise click.UsageError("Give FOLDER, or the folder of the files as `capture.requests`.")
        with watching() as watcher:
            captured = captures.capture_only(
                experiment, cache_root=cache_root, device=device, watcher=watcher
            )["task"]
    except ProbekitError as error:
        if folder is not None:  # name what was typed
            error.args = (str(error).replace("--set capture.requests:", "FOLDER:"),)
        raise
    click.echo(_described(captured, "imported"))
    errors = captured.store.errors()
    for site in captured.store.sites:
        measured = f", {upkeep.described_errors(errors[site])}" if site in errors else ""
        click.echo(f"verified as {site}{measured}")


@click.command()
@click.argument("place", type=options.place_of, metavar="FOLDER")
@click.option(
    "--device",
    help="Compute device, e.g. cuda:1; several as cuda:0,cuda:1.  "
    "[default: that of the cache; for a run, cpu]",
)
@click.option("--threads", type=click.IntRange(min=1), help="Number of CPU threads of a capture.")
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    help="Random seed for the order of shards or tasks.  [default: different for each worker]",
)
@click.option(
    "--cache",
    "copies",
    type=options.place_of,
    metavar="PATH",
    help="Caches on a disk of this machine: sites that are copied there are probed first, from "
    "these files.",
)
@click.option(
    "--wait",
    type=click.IntRange(min=0),
    default=0,
    help="Seconds to wait for the capture or the run to begin.",
)
@click.option("--job", hidden=True, help="Name of the only job to do.")
@click.option("--parent", type=int, hidden=True, help="Process with which the worker exits.")
@click.option(
    "--json", "as_json", is_flag=True, help="Output as one line of JSON per shard or task."
)
def worker(
    place: Location,
    device: str | None,
    threads: int | None,
    seed: int | None,
    copies: Location | None,
    wait: int,
    job: str | None,
    parent: int | None,
    as_json: bool,
) -> None:
    """Help with a capture or a run that another process has begun.

    FOLDER is a cache, or a folder or URL with several caches, that `cache FILE.yaml --workers 0`
    created; or a run, or a folder with runs, in progress. Any number of workers can be started at
    any time on any machine with access to it; each exits when no shard is missing or no run is in
    progress.
    """
    # An error is raised before torch is imported.
    end = time.monotonic() + wait
    while True:
        at_run = isinstance(place, Path) and bool(
            record.is_run(place) or record.runs_in_progress(place)
        )
        if at_run or upkeep.is_cache(store.files_at(place)) or upkeep.caches_in(place):
            break
        if time.monotonic() >= end:
            is_absent = isinstance(place, Path) and not place.exists()
            fact = "does not exist" if is_absent else "contains no cache and no run in progress"
            raise MissingError(
                f"{place.absolute() if isinstance(place, Path) else place} {fact}. "
                f"{upkeep.HOW_TO_CREATE} "
                "Start a run for workers with `probekit run FILE.yaml --workers 0 --out FOLDER`, "
                "and give its workers `--wait SECONDS` if they may start first."
            )
        time.sleep(1)
    if parent is not None:
        processes.exit_with_parent(parent)
    seed = int.from_bytes(os.urandom(4), "little") if seed is None else seed
    of_all: Any = partial(jobs.work_at, place, only=job, device=device, n_threads=threads)
    if at_run:
        waiting = end - time.monotonic()
        of_all = partial(
            run_job.work_on, Path(place), device=device or "cpu", cache_root=copies, wait=waiting
        )
    found: Iterator[Any] = of_all(seed=seed, watcher=progress.ProgressLines())
    n_done, what = 0, "task" if at_run else "shard"
    for done in found:
        n_done += 1
        click.echo(json.dumps(done._asdict()) if as_json else str(done))
    click.echo(f"{counted(n_done, what)} computed; no other {what} is ready in {place}", err=True)


_common_options = together(options.cache_option, options.json_option)
_one_cache = together(click.argument("name", metavar="CACHE"), _common_options)
_several_caches = together(click.argument("names", nargs=-1, metavar="[CACHE]..."), _common_options)


def _root(cache_root: Location | None) -> Location:
    return local.default_root() if cache_root is None else cache_root


def _find(names: Sequence[str], cache_root: Location | None) -> Sequence[Location]:
    """Return the locations of the named caches, or of all without names.

    If there are none, a line on stderr reports it.
    """
    root = _root(cache_root)
    places = [upkeep.find_cache(name, root) for name in names] or upkeep.all_in(root)
    if not places:
        click.echo(f"There are no caches in {root}.", err=True)
    return places


@cache.command("ls")
@_common_options
def list_caches(cache_root: Location | None, as_json: bool) -> None:
    """List all caches with key, size, age and contents."""
    root = _root(cache_root)
    summaries = list(map(upkeep.summarize, upkeep.all_in(root)))
    lines = []
    for summary in summaries:
        size, age = size_in_words(summary.bytes), _age(summary.age)
        lines.append(f"{summary.key}  {size:>9}  {age:>12}  {summary.problem or summary.what}")
    _show(as_json, [asdict(summary) for summary in summaries], lines)
    if not as_json:
        total = size_in_words(sum(summary.bytes for summary in summaries))
        message = f"{counted(len(summaries), 'cache')}, {total}, in {root}"
        click.echo(message, err=bool(summaries))  # to stderr if there is a table on stdout


@cache.command()
@_one_cache
def show_command(name: str, cache_root: Location | None, as_json: bool) -> None:
    """Show the contents of a cache: rows, sites, identity."""
    (place,) = _find([name], cache_root)
    summary, stores = upkeep.summarize(place), upkeep.stores_of(place)
    if summary.problem is not None:
        _show(as_json, {"problem": summary.problem}, [summary.problem])
        sys.exit(1)
    identity = probekit.ActivationStore.open(stores[0]).identity.to_json() if stores else {}
    root = f", root {summary.root or 'not sealed'}" if stores == [place] else ""
    state = f"{_age(summary.age)}{root}"
    lines = [str(summary.place), summary.what, f"{size_in_words(summary.bytes)}, {state}"]
    for site, n_rows in summary.sites.items():
        share = "" if n_rows == summary.rows else f" ({percent(n_rows / summary.rows)})"
        lines.append(f"  {site}: {n_rows:,} rows{share}")
    for key, value in identity.items():
        lines.append(f"  {key}: {json.dumps(value) if isinstance(value, dict) else value}")
    _show(as_json, asdict(summary) | {"identity": identity}, lines)


@cache.command()
@_several_caches
def verify_command(names: Sequence[str], cache_root: Location | None, as_json: bool) -> None:
    """Verify the checksums of caches (default: all).

    Every file is read, and damaged ones are listed.
    """
    damages: dict[str, list[dict[str, str]]] = {}
    for place in chain.from_iterable(map(upkeep.stores_of, _find(names, cache_root))):
        try:
            opened = probekit.ActivationStore.open(place)
            damages[str(place)] = [damage._asdict() for damage in upkeep.find_damage(opened)]
            missing = sum(len(opened.missing(site)) for site in opened.files.folders())
        except StoreError as error:  # continue with the other caches
            damages[str(place)] = [{"file": "", "why": str(error)}]
        # An error counts as damage, so without damage `missing` is known.
        if not as_json and not damages[str(place)]:
            state = f"no damage; shards not captured yet: {missing}" if missing else "intact"
            click.echo(f"{place}: {state}")
    lines = []
    for folder, of_cache in damages.items():
        lines += [f"{folder}/{damage['file']}: {damage['why']}" for damage in of_cache]
    _show(as_json, damages, lines)
    if lines:
        sys.exit(1)


@cache.command()
@_one_cache
def repair_command(name: str, cache_root: Location | None, as_json: bool) -> None:
    """Remove damaged files, which the next capture restores."""
    (place,) = _find([name], cache_root)
    stores = map(probekit.ActivationStore.open, upkeep.stores_of(place))
    damages = [damage for one in stores for damage in upkeep.repair_cache(one)]
    content = [damage._asdict() for damage in damages]
    _show(as_json, content, [f"{damage.file}: {damage.why}" for damage in damages])
    if not as_json:
        advice = "; run the capture again" if damages else ""
        click.echo(f"damaged files removed: {len(damages)}{advice}", err=True)


@cache.command()
@click.argument("names", nargs=-1, required=True, metavar="CACHE...")
@_common_options
def rm(names: Sequence[str], cache_root: Location | None, as_json: bool) -> None:
    """Remove caches."""
    # A folder with files of its own is kept, and `remove_cache` returns these files.
    other_files = {str(place): upkeep.remove_cache(place) for place in _find(names, cache_root)}
    removed = [folder for folder, files in other_files.items() if not files]
    _show(as_json, other_files, [f"removed {folder}" for folder in removed])
    for folder, files in other_files.items():
        _warn_of_kept(folder, files)


def _warn_of_kept(folder: str, files: Sequence[str]) -> None:
    """Print a warning on the files that `remove_cache` has kept in a folder, if there are any."""
    if files:
        problem = f"not removed, not files of a cache: {', '.join(files)}"
        click.echo(f"warning: {folder}: {problem}", err=True)


@cache.command()
@_several_caches
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    metavar="DAYS",
    help="Minimum age of caches to remove as well, in days since creation or last seal.",
)
@click.option("--dry-run", is_flag=True, help="List of caches to remove, without removing them.")
def gc(
    names: Sequence[str],
    cache_root: Location | None,
    as_json: bool,
    older_than: float | None,
    dry_run: bool,
) -> None:
    """Remove temporary files of killed writers.

    They are removed from the named caches (default: all); committed rows stay. With --older-than,
    whole caches are removed as well.
    """
    removed: dict[str, Any] = {}  # path of a cache or file -> its bytes
    for place in _find(names, cache_root):
        summary = upkeep.summarize(place)
        if older_than is not None and upkeep.is_older(summary, older_than):
            if not dry_run:  # of a folder with other files, the cache itself is removed
                _warn_of_kept(str(place), upkeep.remove_cache(place))
            removed[str(place)] = summary.bytes
        elif summary.problem is not None:
            click.echo(f"warning: skipped: {summary.problem}", err=True)
        elif not dry_run:
            garbage = upkeep.collect_garbage(place)
            removed |= {f"{place}/{name}": size for name, size in garbage.items()}
    verb = "would remove" if dry_run else "removed"
    lines = [f"{verb} {name}, {size_in_words(size)}" for name, size in removed.items()]
    _show(as_json, removed, lines)
    if not as_json:
        click.echo(f"{size_in_words(sum(removed.values()))} in total", err=True)


@cache.command()
@_one_cache
@click.option(
    "--format", "format_", default="npy", help="Output format: npy, safetensors or parquet."
)
@click.option(
    "--site", "sites", multiple=True, help="Full name of a site; repeatable.  [default: all]"
)
@options.out_option
def export_command(
    name: str, cache_root: Location | None, as_json: bool, format_: str, sites: Texts, out: Path
) -> None:
    """Export the rows of sites to other formats.

    Rows are in the order of the data set.
    """
    opened = probekit.ActivationStore.open(*_find([name], cache_root))
    files = upkeep.export_cache(opened, out, format_, sites=sites or None)
    paths = [str(file) for file in files]
    _show(as_json, paths, paths)


@cache.command()
@click.argument("url", type=options.place_of)
@click.option("--root", "pin", metavar="DIGEST", help="Expected root digest of the cache.")
@_common_options
def pull(url: Location, pin: str | None, cache_root: Location | None, as_json: bool) -> None:
    """Copy the cache at URL to the local caches and verify it.

    URL may also be a folder. Checksums are verified.
    """
    _copy(url, _root(cache_root), pin=pin, as_json=as_json)


@cache.command()
@_one_cache
@click.argument("url", type=options.place_of)
def push(name: str, cache_root: Location | None, as_json: bool, url: Location) -> None:
    """Copy a cache to URL/KEY and verify it.

    URL may also be a folder. Checksums are verified.
    """
    (place,) = _find([name], cache_root)
    _copy(place, url, pin=None, as_json=as_json)


def _copy(source: Location, target: Location, *, pin: str | None, as_json: bool) -> None:
    """Copy a cache into a folder or URL of caches, and print its new place and root digest."""
    with watching() as watcher:
        new, copied = upkeep.copy_cache(source, target, pin=pin, watcher=watcher)
    digest = new.expected_manifest().root
    content = {"place": str(new.folder), "copied": copied, "root": digest}
    line = f"{new.folder}: {counted(copied, 'shard')} copied, root {digest}"
    _show(as_json, content, [line])


def _show(as_json: bool, content: Any, lines: Iterable[str]) -> None:
    """Print the content as JSON, or else the lines."""
    if as_json:
        click.echo(json_text(content))
    for line in () if as_json else lines:
        terminal.echo(line)


def _age(seconds: float | None) -> str:
    """Return an age in words.

    >>> _age(30), _age(7_300), _age(3 * 86_400)
    ('just now', '2 hours ago', '3 days ago')
    """
    if seconds is None:
        return "age unknown"
    for unit, size in (("day", 86_400), ("hour", 3600), ("minute", 60)):
        count = int(seconds // size)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"
