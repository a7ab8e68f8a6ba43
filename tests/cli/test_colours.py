"""Colours are used on terminals only, and not with NO_COLOR (https://no-color.org)."""

import os
import pty
import re
import subprocess
import sys

import pytest

from tests.cli.conftest import COLOUR_VARIABLES, save_probe

# 1, 3 and 4 make text bold, italic or underlined: no colours.
COLOUR = re.compile(r"\x1b\[(?:[\d;:]*;)?(?:3[0-8]|4[0-8]|9\d|10\d)[\d;:]*m")
COMMANDS = {
    "tokens": ["apply", "probe", "--text", "The keys to the cabinet", "--per", "token"],
    "error": ["run", "there_is_none.yaml"],
}


@pytest.fixture(autouse=True)
def probe(tmp_path, mini_digests):
    """A saved probe in the folder of the test."""
    save_probe(tmp_path, mini_digests)


def on_terminal(arguments, folder, **variables):
    """Return the output of a command with stdout and stderr on a terminal."""
    ours, theirs = pty.openpty()
    keep = {name: text for name, text in os.environ.items() if name not in COLOUR_VARIABLES}
    environment = keep | {"TERM": "xterm-256color", "COLUMNS": "100"} | variables
    command = [sys.executable, "-m", "probekit", *arguments]
    process = subprocess.Popen(
        command, cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 1 << 16):
            written += part
    except OSError:  # Linux raises it if the other end is closed
        pass
    process.wait()
    os.close(ours)
    return written.decode()


@pytest.mark.parametrize("name", COMMANDS)
def test_no_color_removes_all_colours(tmp_path, name):
    output = on_terminal(COMMANDS[name], tmp_path, NO_COLOR="0", FORCE_COLOR="1")
    assert output.strip()
    assert not COLOUR.findall(output)


def test_empty_no_color_has_no_effect(tmp_path):
    assert COLOUR.search(on_terminal(COMMANDS["tokens"], tmp_path, NO_COLOR=""))
