"""`probekit cache`: capturing the activations of an experiment, and looking after the caches."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.amounts import counted, size_in_words
from probekit.cli.captures import capture_command
from probekit.cli.options import Days, Decorator, OutFolder, PlaceType, cache_option
from probekit.cli.plans import plan
from probekit.cli.streams import json_text

if TYPE_CHECKING:
    from probekit.activations.files.local import Location
    from probekit.activations.upkeep.maintenance import Summary


class _CacheGroup(click.Group):
    """Takes what is no command for the file of an experiment, whose activations are captured."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["capture", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_CacheGroup)
def cache() -> None:
    """Capture the activations of an experiment FILE, or look after what was captured.

    `probekit cache FILE.yaml` captures.
    """


cache.add_command(capture_command)
cache.add_command(plan)


_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _of_caches(n_args: int) -> Decorator:
    """Return a decorator that gives a command the places of the caches that are named."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("names", nargs=n_args, metavar="CACHE" if n_args == 1 else "[CACHE]...")
        @cache_option
        @_json_option
        @wraps(function)
        def command(names: Any, cache_root: Location | None, **others: Any) -> Any:
            from probekit.activations.upkeep.maintenance import caches_in, find_cache

            root = _root(cache_root)
            if n_args == 1:
                return function(place=find_cache(names, root), **others)
            found = [find_cache(name, root) for name in names] or caches_in(root)
            if not found:
                click.echo(f"There are no caches in {root}.", err=True)
            return function(places=found, **others)

        return command

    return decorate


def _root(cache_root: Location | None) -> Location:
    from probekit.activations.files.places import default_root

    return default_root() if cache_root is None else cache_root


@cache.command("ls")
@cache_option
@_json_option
def list_caches(cache_root: Location | None, as_json: bool) -> None:
    """List all caches: key, size, age, what they hold."""
    from probekit.activations.upkeep.maintenance import caches_in, summarize

    root = _root(cache_root)
    summaries = [summarize(place) for place in caches_in(root)]
    if as_json:
        _print_json([asdict(summary) for summary in summaries])
        return
    for summary in summaries:
        click.echo(_line(summary))
    total = sum(summary.bytes for summary in summaries)
    told = f"{counted(len(summaries), 'cache')}, {size_in_words(total)}, in {root}"
    click.echo(told, err=bool(summaries))


@cache.command()
@_of_caches(1)
def show_command(place: Location, as_json: bool) -> None:
    """Say what a cache holds: rows, sites, identity, root digest."""
    from probekit.activations.files.local import Location as AnyPlace
    from probekit.activations.store.store import ActivationStore
    from probekit.activations.upkeep.maintenance import summarize

    assert isinstance(place, AnyPlace)
    summary = summarize(place)
    if summary.problem is not None:
        _finish_with([summary.problem], as_json, {"problem": summary.problem})
    identity = ActivationStore.open(place).identity.to_json()
    if as_json:
        _print_json(asdict(summary) | {"identity": identity})
        return
    click.echo(f"{summary.place}\n{summary.what}")
    click.echo(
        f"{size_in_words(summary.bytes)}, {_age(summary.age)}, root {summary.root or 'not sealed'}"
    )
    for site, n_rows in summary.sites.items():
        partly = "" if n_rows == summary.rows else f" ({n_rows / summary.rows:.0%})"
        click.echo(f"  {site}: {n_rows:,} rows{partly}")
    for name, value in identity.items():
        click.echo(f"  {name}: {json.dumps(value) if isinstance(value, dict) else value}")


@cache.command()
@_of_caches(-1)
def verify_command(places: Sequence[Location], as_json: bool) -> None:
    """Digest every byte of caches, or of all, and name the files that are not what was written."""
    from probekit.activations.store.store import ActivationStore
    from probekit.activations.upkeep.maintenance import find_damage
    from probekit.errors import StoreError

    found: dict[str, list[dict[str, str]]] = {}
    for place in places:
        try:
            store = ActivationStore.open(place)
            found[str(place)] = [damage._asdict() for damage in find_damage(store)]
            missing = sum(len(store.missing(site)) for site in store.files.folders())
        except StoreError as error:  # the others are looked at all the same
            found[str(place)] = [{"file": "", "why": str(error)}]
        if not as_json and not found[str(place)]:
            told = f"nothing damaged; shards not there yet: {missing}" if missing else "whole"
            click.echo(f"{place}: {told}")
    bad = [f"{place}/{d['file']}: {d['why']}" for place, all_of in found.items() for d in all_of]
    if as_json:
        _print_json(found)
    _finish_with(bad, as_json, None)


@cache.command()
@_of_caches(1)
def repair_command(place: Location, as_json: bool) -> None:
    """Take away what is damaged, so that the next run makes it again."""
    from probekit.activations.store.store import ActivationStore
    from probekit.activations.upkeep.maintenance import repair_cache as repair_store

    damages = repair_store(ActivationStore.open(place))
    if as_json:
        _print_json([damage._asdict() for damage in damages])
        return
    for damage in damages:
        click.echo(f"{damage.file}: {damage.why}")
    again = "; run the capture again" if damages else ""
    click.echo(f"damaged files taken away: {len(damages)}{again}", err=True)


@cache.command()
@click.argument("names", nargs=-1, required=True, metavar="CACHE...")
@cache_option
@_json_option
def rm(names: Sequence[str], cache_root: Location | None, as_json: bool) -> None:
    """Remove caches."""
    from probekit.activations.upkeep.maintenance import find_cache, remove_cache

    places = [find_cache(name, _root(cache_root)) for name in names]
    left = {str(place): remove_cache(place) for place in places}
    if as_json:
        _print_json(left)
    for place, files in left.items():
        if files:
            click.echo(
                f"warning: {place}: left, as no cache has them: {', '.join(files)}", err=True
            )
        elif not as_json:
            click.echo(f"removed {place}")


@cache.command()
@_of_caches(-1)
@click.option(
    "--older-than",
    type=Days(0),
    metavar="DAYS",
    help="Also remove caches that were not written for so long.",
)
@click.option("--dry-run", is_flag=True, help="With --older-than: only say which ones.")
def gc(places: Sequence[Location], as_json: bool, older_than: float | None, dry_run: bool) -> None:
    """Remove what killed writers left behind, in caches or in all; committed rows stay."""
    from probekit.activations.upkeep.maintenance import (
        collect_garbage,
        is_older,
        remove_cache,
        summarize,
    )

    gone: dict[str, Any] = {}
    for place in places:
        summary = summarize(place)
        if older_than is not None and is_older(summary, older_than):
            if not dry_run:
                remove_cache(place)
            gone[str(place)] = summary.bytes
        elif summary.problem is None and not dry_run:
            gone |= {f"{place}/{name}": size for name, size in collect_garbage(place).items()}
        elif summary.problem is not None:
            click.echo(f"warning: left as it is: {summary.problem}", err=True)
    if as_json:
        _print_json(gone)
        return
    for name, size in gone.items():
        click.echo(f"{'would remove' if dry_run else 'removed'} {name}, {size_in_words(size)}")
    click.echo(f"{size_in_words(sum(gone.values()))} in all", err=True)


@cache.command()
@_of_caches(1)
@click.option("--format", "format_", default="npy", show_default=True, help="npy, parquet, zarr.")
@click.option("--site", "sites", multiple=True, help="Full name; repeatable.  [default: all]")
@click.option("--out", type=OutFolder(), required=True, help="Folder that gets the files.")
def export_command(
    place: Location, as_json: bool, format_: str, sites: tuple[str, ...], out: Path
) -> None:
    """Write the rows of sites for others to read, in the order of the data set."""
    from probekit.activations.store.store import ActivationStore
    from probekit.activations.upkeep.export import export_cache as export_rows

    paths = export_rows(ActivationStore.open(place), out, format_, sites or None)
    if as_json:
        _print_json([str(path) for path in paths])
        return
    for path in paths:
        click.echo(str(path))


@cache.command()
@click.argument("url", type=PlaceType())
@click.option("--root", "pin", metavar="DIGEST", help="The root digest that it must have.")
@cache_option
@_json_option
def pull(url: Location, pin: str | None, cache_root: Location | None, as_json: bool) -> None:
    """Copy the cache at URL (or in a folder) to the caches here, every byte digested."""
    _copy(url, _root(cache_root), pin, as_json)


@cache.command()
@_of_caches(1)
@click.argument("url", type=PlaceType())
def push(place: Location, as_json: bool, url: Location) -> None:
    """Copy a cache to URL/KEY (or a folder), every byte digested."""
    _copy(place, url, None, as_json)


def _copy(source: Location, root: Location, pin: str | None, as_json: bool) -> None:
    from probekit.activations.upkeep.copying import copy_cache
    from probekit.cli.show.progress import watching

    with watching() as watcher:
        store, copied = copy_cache(source, root, pin=pin, watcher=watcher)
    digest = store.digest_of(list(store.sites))
    if as_json:
        _print_json({"place": str(store.folder), "copied": copied, "root": digest})
        return
    click.echo(f"{store.folder}: {counted(copied, 'shard')} copied, root {digest}")


def _finish_with(bad: Sequence[str], as_json: bool, told: Any) -> None:
    """End the process with code 1 if something is damaged."""
    if as_json and told is not None:
        _print_json(told)
    for line in () if as_json else bad:
        click.echo(line)
    if bad:
        sys.exit(1)


def _line(summary: Summary) -> str:
    state = summary.problem or summary.what
    return f"{summary.key}  {size_in_words(summary.bytes):>9}  {_age(summary.age):>12}  {state}"


def _age(seconds: float | None) -> str:
    """Return an age as people read it.

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


def _print_json(value: Any) -> None:
    click.echo(json_text(value))
