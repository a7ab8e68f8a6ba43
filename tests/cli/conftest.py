"""Fixtures: a saved probe, and commands whose exit code, streams and new files are text."""

import re
import shlex

import numpy as np
import pytest

from probekit.model.families.gpt2 import GPT2
from probekit.model.text.tokenizer import Tokenizer
from probekit.model.weights.state_dict import digest_weights
from probekit.probes.saved_probe import SavedProbe
from tests.report.pages.test_texts_page import make_facts
from tests.stored import portable

COLOUR_VARIABLES = ("NO_COLOR", "FORCE_COLOR", "COLORTERM")
# What varies between machines and releases, and progress of a slow machine.
VARYING = {
    r"(?m)^\w[^\n]*: (?!(\d+) of \1$)\d+ of \d+\n": "",
    # A run key has 12 characters, which may all be digits.
    r"\b([0-9a-f]{12}|(?=\d*[a-f])[0-9a-f]{10,})\b": "DIGEST",
    r"48;2;\d+;\d+;\d+": "48;2;RGB",
    r"[\d,]+ (tokens|texts)/s": r"N \1/s",
    r"\d+ % of the time is the step `.*": "THE LONGEST STEP",
    r"(less than a|about \d+) (seconds?|minutes)": "SECONDS",
    r"[\d.]+ [MG]B of memory": "SIZE of memory",  # with the libraries of the process
    r"Expected one of .* at start": "Expected one of DEVICES at start",
    r"Available devices: .*": "Available devices: DEVICES.",
}


def readable(text, tmp_path=None):
    """Return a text without what varies, and with escape characters as ESC."""
    text = portable(text, tmp_path).replace("\x1b", "ESC")
    for pattern, name in VARYING.items():
        text = re.sub(pattern, name, text)
    return "\n".join(line.rstrip() for line in text.splitlines())


def without_digits(text):
    """Return a text in which digits of fractions and of numbers above 999 are 9."""
    return re.sub(r"\d[\d,]*[.,]\d+", lambda number: re.sub(r"\d", "9", number[0]), text)


def files_of(folder):
    """Return the files of a folder, except caches, and what marks or logs an unfinished run."""
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    left_out = {("cache",), ("hub",), ("runs", "tiny")}
    return {
        path.as_posix()
        for path in files
        if path.name != ".started" and not left_out & {path.parts[:1], path.parts[:2]}
    }


def written(folder, path):
    """Return the path of a file and, of a table, its header and its number of lines."""
    if not path.endswith(".csv"):
        return path
    first, *others = (folder / path).read_text("utf-8").splitlines()
    return f"{path}: {len(others)} lines after {first}"


@pytest.fixture
def printed(call, tmp_path, monkeypatch):
    """A function that runs a command line and returns exit code, streams and new files as text.

    Variables of the environment may precede the command.
    """
    monkeypatch.setenv("PROBEKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    def printed(line):
        before, arguments = files_of(tmp_path), shlex.split(line)
        with monkeypatch.context() as patch:
            for name in COLOUR_VARIABLES:
                patch.delenv(name, raising=False)
            while re.match("[A-Z_]+=", arguments[0]):
                patch.setenv(*arguments.pop(0).split("=", 1))
            done = call(*arguments)
        assert "Traceback" not in done.stderr
        parts = {"exit code": str(done.code), "stdout": done.stdout, "stderr": done.stderr}
        new = [written(tmp_path, path) for path in sorted(files_of(tmp_path) - before)]
        return "\n".join(
            f"{name}: {readable(text, tmp_path)}".rstrip()
            for name, text in {**parts, "new files": "\n".join(new)}.items()
        )

    return printed


@pytest.fixture(scope="session")
def mini_digests():
    """Digests of mini, as stored with a probe."""
    return {
        "weights": digest_weights(GPT2.from_pretrained("mini")),
        "tokenizer": Tokenizer.from_pretrained("mini").digest,
    }


def save_probe(folder, digests, name="probe", classes=("no", "yes"), **facts):
    """Save a probe of mini with random directions under a name."""
    n_scores = len(classes) if len(classes) > 2 else 1
    layer = np.random.default_rng(1).normal(size=(n_scores, 256)) / 10, np.zeros(n_scores)
    of_last = {"sites": ("blocks.1.hook_resid_post",), "position": {"at": "last"}, "metrics": {}}
    probe = SavedProbe((layer,), classes, make_facts(**(of_last | digests | facts)))
    return probe.save(folder / name)
