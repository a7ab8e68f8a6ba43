"""`probekit cache`: capturing the activations of an experiment and maintaining the caches."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from probekit.amounts import counted, size_in_words
from probekit.cli.captures import capture_command, plan
from probekit.cli.options import Days, Decorator, PlaceType, cache_option, json_option, out_option
from probekit.terminal import json_text

if TYPE_CHECKING:
    from probekit.activations.records import Location


class _CacheGroup(click.Group):
    """Treats an argument that is not a command as the experiment file to capture."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("-h", "--help"):
            args = ["capture", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_CacheGroup)
def cache() -> None:
    """Capture the activations of an experiment FILE, or maintain the caches.

    `probekit cache FILE.yaml` captures.
    """


cache.add_command(capture_command)
cache.add_command(plan)


def _of_caches(n_args: int) -> Decorator:
    """Return a decorator that passes the locations of the named caches to a command."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("names", nargs=n_args, metavar="CACHE" if n_args == 1 else "[CACHE]...")
        @cache_option
        @json_option
        @wraps(function)
        def command(names: Any, cache_root: Location | None, **others: Any) -> Any:
            from probekit.activations.upkeep import caches_in, find_cache

            root = _root(cache_root)
            if n_args == 1:
                return function(place=find_cache(names, root), **others)
            places = [find_cache(name, root) for name in names] or caches_in(root)
            if not places:
                click.echo(f"There are no caches in {root}.", err=True)
            return function(places=places, **others)

        return command

    return decorate


def _root(cache_root: Location | None) -> Location:
    from probekit.activations.local import default_root

    return default_root() if cache_root is None else cache_root


@cache.command("ls")
@cache_option
@json_option
def list_caches(cache_root: Location | None, as_json: bool) -> None:
    """List all caches with key, size, age and contents."""
    from probekit.activations.upkeep import caches_in, summarize

    root = _root(cache_root)
    summaries = [summarize(place) for place in caches_in(root)]
    lines = [
        f"{one.key}  {size_in_words(one.bytes):>9}  {_age(one.age):>12}  {one.problem or one.what}"
        for one in summaries
    ]
    if _show(as_json, [asdict(summary) for summary in summaries], lines):
        total = size_in_words(sum(summary.bytes for summary in summaries))
        message = f"{counted(len(summaries), 'cache')}, {total}, in {root}"
        click.echo(message, err=bool(summaries))


@cache.command()
@_of_caches(1)
def show_command(place: Location, as_json: bool) -> None:
    """Show the contents of a cache: rows, sites, identity, root digest."""
    from probekit.activations.records import Location as AnyPlace
    from probekit.activations.store import ActivationStore
    from probekit.activations.upkeep import summarize

    assert isinstance(place, AnyPlace)
    summary = summarize(place)
    if summary.problem is not None:
        _show(as_json, {"problem": summary.problem}, [summary.problem])
        sys.exit(1)
    identity = ActivationStore.open(place).identity.to_json()
    state = f"{_age(summary.age)}, root {summary.root or 'not sealed'}"
    lines = [str(summary.place), summary.what, f"{size_in_words(summary.bytes)}, {state}"]
    for site, n_rows in summary.sites.items():
        partly = "" if n_rows == summary.rows else f" ({n_rows / summary.rows:.0%})"
        lines.append(f"  {site}: {n_rows:,} rows{partly}")
    for name, value in identity.items():
        lines.append(f"  {name}: {json.dumps(value) if isinstance(value, dict) else value}")
    _show(as_json, asdict(summary) | {"identity": identity}, lines)


@cache.command()
@_of_caches(-1)
def verify_command(places: Sequence[Location], as_json: bool) -> None:
    """Verify the checksum of every file of the caches (default: all) and list damaged files."""
    from probekit.activations.store import ActivationStore
    from probekit.activations.upkeep import find_damage
    from probekit.errors import StoreError

    damages: dict[str, list[dict[str, str]]] = {}
    for place in places:
        try:
            store = ActivationStore.open(place)
            damages[str(place)] = [damage._asdict() for damage in find_damage(store)]
            missing = sum(len(store.missing(site)) for site in store.files.folders())
        except StoreError as error:  # continue with the other caches
            damages[str(place)] = [{"file": "", "why": str(error)}]
        if not as_json and not damages[str(place)]:
            state = f"no damage; shards not captured yet: {missing}" if missing else "intact"
            click.echo(f"{place}: {state}")
    bad = [f"{place}/{d['file']}: {d['why']}" for place, items in damages.items() for d in items]
    _show(as_json, damages, bad)
    if bad:
        sys.exit(1)


@cache.command()
@_of_caches(1)
def repair_command(place: Location, as_json: bool) -> None:
    """Remove damaged files, so that the next capture computes them again."""
    from probekit.activations.store import ActivationStore
    from probekit.activations.upkeep import repair_cache as repair_store

    damages = repair_store(ActivationStore.open(place))
    content = [damage._asdict() for damage in damages]
    if _show(as_json, content, [f"{damage.file}: {damage.why}" for damage in damages]):
        advice = "; run the capture again" if damages else ""
        click.echo(f"damaged files removed: {len(damages)}{advice}", err=True)


@cache.command()
@click.argument("names", nargs=-1, required=True, metavar="CACHE...")
@cache_option
@json_option
def rm(names: Sequence[str], cache_root: Location | None, as_json: bool) -> None:
    """Remove caches."""
    from probekit.activations.upkeep import find_cache, remove_cache

    places = [find_cache(name, _root(cache_root)) for name in names]
    left = {str(place): remove_cache(place) for place in places}
    _show(as_json, left, [f"removed {place}" for place, files in left.items() if not files])
    for place, files in left.items():
        if files:
            problem = f"not removed, not files of a cache: {', '.join(files)}"
            click.echo(f"warning: {place}: {problem}", err=True)


@cache.command()
@_of_caches(-1)
@click.option(
    "--older-than",
    type=Days(0),
    metavar="DAYS",
    help="Minimum age in days since the last write of caches to remove as well.",
)
@click.option("--dry-run", is_flag=True, help="List of caches to remove, without removing them.")
def gc(places: Sequence[Location], as_json: bool, older_than: float | None, dry_run: bool) -> None:
    """Remove temporary files of killed writers from caches (default: all); committed rows stay."""
    from probekit.activations.upkeep import collect_garbage, is_older, remove_cache, summarize

    removed: dict[str, Any] = {}
    for place in places:
        summary = summarize(place)
        if older_than is not None and is_older(summary, older_than):
            if not dry_run:
                remove_cache(place)
            removed[str(place)] = summary.bytes
        elif summary.problem is None and not dry_run:
            removed |= {f"{place}/{name}": size for name, size in collect_garbage(place).items()}
        elif summary.problem is not None:
            click.echo(f"warning: skipped: {summary.problem}", err=True)
    done = "would remove" if dry_run else "removed"
    lines = [f"{done} {name}, {size_in_words(size)}" for name, size in removed.items()]
    if _show(as_json, removed, lines):
        click.echo(f"{size_in_words(sum(removed.values()))} in total", err=True)


@cache.command()
@_of_caches(1)
@click.option(
    "--format",
    "format_",
    default="npy",
    show_default=True,
    help="Output format: npy, safetensors or parquet.",
)
@click.option(
    "--site", "sites", multiple=True, help="Full name of a site; repeatable.  [default: all]"
)
@out_option
def export_command(
    place: Location, as_json: bool, format_: str, sites: tuple[str, ...], out: Path
) -> None:
    """Export the rows of sites to other formats, in the order of the data set."""
    from probekit.activations.export import export_cache as export_rows
    from probekit.activations.store import ActivationStore

    paths = [*map(str, export_rows(ActivationStore.open(place), out, format_, sites or None))]
    _show(as_json, paths, paths)


@cache.command()
@click.argument("url", type=PlaceType())
@click.option("--root", "pin", metavar="DIGEST", help="Expected root digest of the cache.")
@cache_option
@json_option
def pull(url: Location, pin: str | None, cache_root: Location | None, as_json: bool) -> None:
    """Copy the cache at URL (or in a folder) to the local caches and verify its checksums."""
    _copy(url, _root(cache_root), pin, as_json)


@cache.command()
@_of_caches(1)
@click.argument("url", type=PlaceType())
def push(place: Location, as_json: bool, url: Location) -> None:
    """Copy a cache to URL/KEY (or a folder) and verify its checksums."""
    _copy(place, url, None, as_json)


def _copy(source: Location, root: Location, pin: str | None, as_json: bool) -> None:
    from probekit.activations.upkeep import copy_cache
    from probekit.cli.show.progress import watching

    with watching() as watcher:
        store, copied = copy_cache(source, root, pin=pin, watcher=watcher)
    digest = store.digest_of(list(store.sites))
    content = {"place": str(store.folder), "copied": copied, "root": digest}
    line = f"{store.folder}: {counted(copied, 'shard')} copied, root {digest}"
    _show(as_json, content, [line])


def _show(as_json: bool, content: Any, lines: Iterable[str]) -> bool:
    """Print the content as JSON, or the lines; return whether these are printed."""
    for line in [json_text(content)] if as_json else lines:
        click.echo(line)
    return not as_json


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
