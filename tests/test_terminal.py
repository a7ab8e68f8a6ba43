"""Control characters of untrusted texts are escaped; interrupts reach the caller."""

import contextlib
import ctypes
import io
import json
import signal
import sys
import threading
import unicodedata
import warnings

import click
import pytest
from rich.table import Table
from rich.text import Text

from probekit import terminal as streams
from probekit.cli.options import watching
from probekit.progress import Console
from probekit.terminal import SIGNALS, Interruptible
from tests.report.conftest import HOSTILE

# A title of the window, a cleared screen, C1's CSI, bidirectional overrides and a lone return.
CONTROLS = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\u2066\r\0\x7f"
EVIL = f"a{CONTROLS}b{HOSTILE}"
SHOWN = "a<U+001B>]0;owned<U+0007><U+001B>[2J<U+009B>31m<U+202E><U+2066><U+000D><U+0000><U+007F>b"


def hidden(text):
    """Return the control characters of a text."""
    of_direction = {"RE", "LE", "RO", "LO", "DF", "RI", "LI", "SI", "DI"}
    return {
        letter
        for letter in set(text) - set("\t\n")
        if unicodedata.category(letter) == "Cc"
        or unicodedata.bidirectional(letter)[1:] in of_direction
    }


class Terminal(io.StringIO):
    """A stream that reports to be a terminal."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A function that connects both streams, filtered as in `main`, to one terminal."""
    for name, value in {"TERM": "xterm-256color", "COLUMNS": "300"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("NO_COLOR", raising=False)

    def connect():  # in the test: pytest sets the streams again after its fixtures
        written = Terminal()
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, written)
        streams.escape_streams()
        streams.escape_streams()  # has no effect the second time
        return written

    return connect


def test_control_characters_of_lines_warnings_and_prints_are_escaped(terminal):
    written = terminal()
    click.echo(EVIL)
    click.echo(EVIL, err=True)
    print(EVIL)  # noqa: T201  what a library may do
    sys.stderr.writelines([EVIL])
    sys.stderr.write(warnings.formatwarning(EVIL, UserWarning, "x.py", 1, EVIL))
    assert written.getvalue().count(SHOWN) == 6
    assert not hidden(written.getvalue())
    ordinary = "two\nlines\tÜ שלום 👩‍👩‍👧 \\x1b"
    assert streams.visible(ordinary) == ordinary


def test_control_characters_and_markup_of_tables_are_escaped(terminal):
    written = terminal()
    table = Table(EVIL, "[red]x[/]", box=None)
    table.add_row(Text(EVIL), EVIL)
    Console().print(table)
    Console().print(Text(EVIL, "red"))
    assert written.getvalue().count(SHOWN) == 2  # the strings
    assert "<U+001B>]0;owned<U+001B>[2J<U+009B>" in written.getvalue()
    assert "[red]x[/]" in written.getvalue()
    assert "\x1b[31m" in written.getvalue()
    assert "\x1b[2J" not in written.getvalue()
    assert hidden(written.getvalue()) == {"\x1b"}


def test_control_characters_of_progress_bars_are_escaped(terminal):
    written = terminal()
    with watching() as watcher:
        watcher.progress(EVIL, 1, 2)
        watcher.tell(EVIL)
        click.echo(EVIL)
        click.echo(EVIL, err=True)
    for text in ("\x1b]0;owned", "\x1b[2J", "\x9b", "\u202e", "\0"):
        assert text not in written.getvalue()
    assert written.getvalue().count("<U+001B>[2J") >= 4
    assert "\x1b[?25l" in written.getvalue()  # progress bars move the cursor
    assert isinstance(sys.stdout, streams.VisibleStream)


def test_json_contains_the_values_and_no_control_character():
    value = {EVIL: [EVIL, 1.5, None]}
    assert json.loads(streams.json_text(value)) == value
    assert not hidden(streams.json_text(value))
    assert streams.visible(streams.json_text(value)) == streams.json_text(value)


@pytest.mark.parametrize(
    "arguments",
    [["report", f"run{EVIL[:20]}"], [EVIL], ["experiments", f"--{EVIL}"], ["cache", "show", EVIL]],
    ids=["our error", "a command", "an option", "a cache"],
)
def test_control_characters_of_error_messages_are_escaped(call, arguments):
    done = call(*(text.replace("\0", "") for text in arguments))  # which none can contain
    assert done.code in (1, 2, 3)
    assert not hidden(done.stdout + done.stderr)
    assert "U+001B" in done.stderr or r"\x1b" in done.stderr


def test_ascii_streams_are_filtered(monkeypatch):
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    streams.escape_streams()
    click.echo("\x1b]0;ü")  # click itself drops `ESC [ 2 J`
    stream.flush()
    assert raw.getvalue() == rb"<U+001B>]0;\xfc" + b"\n"


class Terminated(KeyboardInterrupt):
    """Handle SIGTERM like the command line."""


@pytest.fixture(autouse=True)
def handlers():
    """Install raising handlers as the command line does, and restore them afterwards."""

    def terminate(number, frame):
        raise Terminated

    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, terminate)
    yield {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        signal.signal(number, handler)


def swallow_in_except(number):
    with contextlib.suppress(BaseException):
        signal.raise_signal(number)


def swallow_in_destructor(number):
    class Careless:
        def __del__(self):
            signal.raise_signal(number)

    Careless()


def swallow_in_ctypes(number):
    def callback():
        signal.raise_signal(number)
        return 0

    ctypes.CFUNCTYPE(ctypes.c_int)(callback)()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("swallow", [swallow_in_except, swallow_in_destructor, swallow_in_ctypes])
@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)]
)
def test_an_interrupt_that_is_caught_ends_the_block(handlers, number, error, swallow):
    with pytest.raises(error) as caught, Interruptible(), Interruptible():
        swallow(number)
    assert type(caught.value) is error
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_an_error_that_replaces_an_interrupt_is_its_cause():
    def replace():
        try:
            signal.raise_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            raise RuntimeError("the library failed") from None

    with pytest.raises(Terminated) as caught, Interruptible():
        replace()
    assert str(caught.value.__cause__) == "the library failed"


def test_a_block_without_interrupts_changes_nothing(handlers):
    with Interruptible():
        pass
    with pytest.raises(ValueError, match="other"), Interruptible():
        raise ValueError("other")
    assert {number: signal.getsignal(number) for number in SIGNALS} == handlers


def test_system_exit_answers_an_interrupt():
    def serve():
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise SystemExit(0) from None

    with pytest.raises(SystemExit), Interruptible():
        serve()


def test_ignored_signals_stay_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with Interruptible():
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_other_threads_are_left_alone(handlers):
    inside = []

    def work():
        with Interruptible():
            inside.append({number: signal.getsignal(number) for number in SIGNALS})

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [handlers]
