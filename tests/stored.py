"""Texts that tests compare with stored ones: what is refused, what is printed, what is drawn.

They are in `__snapshots__` next to the tests. `pytest PATH --snapshot-update` stores new ones: read
the difference before you commit it.
"""

from difflib import unified_diff
from operator import itemgetter
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
MISTAKES = {AttributeError, NameError, SyntaxError, TypeError, UnboundLocalError}  # of a test's own


def portable(text, tmp_path=None):
    """Return a text in which folders of this machine have short names.

    Commands that install an extra name the package, whether it is installed or not.
    """
    text = text.replace(f"pip install -e '{REPOSITORY}[", "pip install 'probekit-lens[")
    for name, folder in {"TMP": tmp_path, "REPOSITORY": REPOSITORY}.items():
        if folder is not None:
            text = text.replace(str(folder), name)
    return text


@pytest.fixture
def refused(snapshot, tmp_path):
    """A function that makes a call, and compares the error that it raises with the stored one."""

    def refused(call, /, *args, **kwargs):
        with pytest.raises(Exception) as caught:  # noqa: PT011  # the text is compared below
            call(*args, **kwargs)
        assert caught.type not in MISTAKES, "the call of the test is wrong"
        assert portable(f"{caught.type.__name__}: {caught.value}", tmp_path) == snapshot

    return refused


def leaves(value, path=""):
    """Yield the path and the value of each leaf of nested dictionaries and lists of them."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, f"{path}.{key}" if path else key)
    else:
        yield path, value


def short(value):
    """Return a value as text: numbers with four digits, missing ones as `-`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        value = 0.0 if abs(value) < 1e-12 else value  # what rounding leaves of 0
        return "-" if value != value else f"{value:.4g}"
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return "[" + " ".join(map(short, value)) + "]"
    return str(value)


def line(part):
    return "  ".join(
        f"{path}={short(value)}" for path, value in sorted(leaves(part), key=itemgetter(0))
    )


def drawn(figure):
    """Return a figure as text: a line for each trace, annotation, shape and part of the layout."""
    content = figure.to_dict()
    layout = {key: part for key, part in content["layout"].items() if key != "template"}
    lines = [line(trace) for trace in content["data"]]
    for kind in ("annotations", "shapes"):
        lines += [f"{kind[:-1]}: {line(part)}" for part in layout.pop(kind, ())]
    return "\n".join(
        [*lines, *(f"{key}: {line({'': part})}" for key, part in sorted(layout.items()))]
    )


def changed(before, after):
    """Return the lines of a text that another does not have, with `-`, and its own, with `+`."""
    lines = unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def table_of(test):
    """Return the lines below the name of a test, in the table next to its file."""
    table = Path(test.__code__.co_filename).with_suffix(".txt").read_text("utf-8")
    lines = table.partition(f"# {test.__name__}\n")[2].partition("\n\n")[0].splitlines()
    assert lines, f"{test.__name__} has no lines in its table"
    return lines


def each_line(argument):
    """A mark: the test runs with each line of its table."""
    return lambda test: pytest.mark.parametrize(argument, table_of(test))(test)


def each_row(arguments):
    """A mark: the test runs with the values that Python reads in each line of its table."""

    def marked(test):
        lines = table_of(test)
        rows = [eval(line, test.__globals__) for line in lines]
        return pytest.mark.parametrize(arguments, rows, ids=lines)(test)

    return marked
