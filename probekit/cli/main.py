"""The command line: each command parses, calls one function and prints.

Results go to stdout, progress and logs to stderr. Exit codes: 0 success, 1 failure, 2 usage or
configuration error, 3 model or data missing, 130 interrupted, 143 terminated. Heavy modules are
imported when they are used, after a command has checked its arguments; see `options.later`.
"""

import atexit
import gc
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any

import click

from probekit.cli import around_runs, caches, models, pictures, runs, texts
from probekit.cli.options import later
from probekit.errors import ProbekitError, nearest
from probekit.terminal import Interruptible, command_line, escape_streams

if TYPE_CHECKING:
    from probekit import provenance
globals().update(later(__file__))


def main() -> None:
    """Run the command line and exit with its exit code."""
    # Python's last collections would visit all objects, half a second with torch, before they end.
    atexit.register(gc.freeze)
    # Replace closed streams; escape control characters and characters not in the encoding.
    sys.stdout = sys.stdout or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    sys.stderr = sys.stderr or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    escape_streams()
    warnings.showwarning = lambda text, *_, **__: click.echo(f"warning: {text}", err=True)
    try:
        with _sigterm_raises(), Interruptible():
            code = cli.main(standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as error:
        resume = f"Completed work is saved; continue with:\n  {command_line()}"
        click.echo(f"\nInterrupted. {resume}", err=True)
        sys.exit(143 if isinstance(error, _Terminated) else 130)
    # Below, color=True leaves escape sequences in the text to the stream, which makes them visible.
    except ProbekitError as error:
        click.echo(f"Error: {error}", err=True, color=True)
        sys.exit(error.exit_code)
    except OSError as error:  # the output cannot be written, or a file cannot be accessed
        click.echo(f"Error: {error}.", err=True, color=True)
        # After a full disk, flushing the buffer at exit would raise again, so discard it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


# Windows has SIGBREAK instead, sent by Ctrl-Break and by the parent process of a worker.
_TERMINATE = [getattr(signal, name) for name in ("SIGTERM", "SIGBREAK") if hasattr(signal, name)]


class _Terminated(KeyboardInterrupt):
    """The process received SIGTERM, for example from a cluster; handled like Ctrl-C."""


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Raise `_Terminated` on a signal to terminate; afterwards restore the previous handlers."""

    def terminated(*_: object) -> None:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # others cannot set handlers
        yield
        return
    previous = {number: signal.signal(number, terminated) for number in _TERMINATE}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


# The commands in the order of the help.
PURPOSES = {
    "Start": "init experiments keys validate plan",
    "Run experiments and read results": (
        "run worker intervene view report compare transfer apply export"
    ),
    "Look inside a model": "sites params weights attention lens attribution patch generate",
    "Train and check models, maintain caches": "pretrain verify cache",
    "Check and set up probekit": "selftest completion",
}


class _Commands(click.Group):
    """Lists commands by purpose, and suggests similar ones for an unknown command."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write name and summary of each command, under the headings of `PURPOSES`."""
        del ctx
        width = max(map(len, self.commands))
        for purpose, names in PURPOSES.items():
            with formatter.section(purpose):
                listed = [(name.ljust(width), self.commands[name]) for name in names.split()]
                formatter.write_dl([(name, one.get_short_help_str(999)) for name, one in listed])

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command; raise UsageError with suggestions if it is unknown."""
        is_known = args[0] in self.commands or args[0].startswith("-")
        if not is_known and not ctx.resilient_parsing:  # not while a shell completes a word
            known = [*self.commands, *(f"cache {name}" for name in caches.cache.commands)]
            similar = [name for name in known if name.endswith(f" {args[0]}")]
            advice = f"Did you mean: {similar[0]}?" if similar else nearest(args[0], known)
            raise click.UsageError(f"No such command {args[0]!r}. {advice}", ctx)
        return super().resolve_command(ctx, args)


def _show_versions(ctx: click.Context, _: click.Parameter, is_given: bool) -> None:
    """Print the versions and exit if the option is given."""
    if not is_given or ctx.resilient_parsing:
        return
    import platform
    from importlib.metadata import PackageNotFoundError, version

    try:
        torch = version("torch")  # from its metadata: importing torch takes seconds
    except PackageNotFoundError:
        torch = "not installed"
    distribution = provenance.origin()
    click.echo(f"{distribution.name} {distribution.version}\npackage  {provenance.PACKAGE}")
    click.echo(f"Python   {platform.python_version()}\ntorch    {torch}")
    for warning in provenance.origin_warnings():
        click.echo(f"Warning: {warning}.", err=True)
    ctx.exit()


@click.group(
    cls=_Commands,
    # With colour, click leaves escape sequences in the text, and the stream makes them visible.
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "color": True,
        "show_default": True,
    },
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_versions,
    help="Show distribution, folder and versions, and exit.",
)
def cli() -> None:
    """Train and evaluate linear probes on language models, from one experiment file."""


# Shell -> where its completion script belongs.
_SCRIPTS = {
    "bash": "Save as ~/.local/share/probekit.bash; in ~/.bashrc: . ~/.local/share/probekit.bash",
    "zsh": "Save as _probekit in a folder of $fpath, before `compinit` in ~/.zshrc",
    "fish": "Save as ~/.config/fish/completions/probekit.fish",
}


@cli.command()
@click.argument("shell", type=click.Choice([*_SCRIPTS]))
def completion_command(shell: str) -> None:
    """Print the script for tab completion in a shell.

    Its last line is a comment on where to save it.
    """
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None, "click has a script for each of these shells"
    source = script(cli, {}, "probekit", "_PROBEKIT_COMPLETE").source()
    click.echo(f"{source.rstrip()}\n# {_SCRIPTS[shell]}")


# Commands of the group `cache`, which are not commands of the program itself.
_NESTED = set(caches.cache.commands.values())
for _module in (around_runs, caches, models, pictures, runs, texts):
    for _command in vars(_module).values():
        if isinstance(_command, click.Command) and _command not in _NESTED:
            cli.add_command(_command)
