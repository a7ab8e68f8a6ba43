"""Titles of runs: their names, and what distinguishes runs of one name."""

from types import SimpleNamespace

import pytest

from probekit.results.comparison import run_titles
from probekit.results.record import load_config


def made(name="plural", **settings):
    return SimpleNamespace(run=name), {key: str(v) for key, v in settings.items()}


RUNS = {
    "one": [made()],
    "names": [made(seed=0), made("tense", seed=1)],
    "a setting for two of a name": [made(seed=0), made(seed=1), made("tense")],
    "a setting": [made(seed=0), made(seed=1)],
    "a setting of one": [made(k=4), made()],
    "three settings at most": [made(a=0, b=0, c=0, d=0), made(a=1, b=1, c=1, d=1)],
    "the model's folder alone": [made(m="/x/a"), made(m="/x/b")],
    "what the settings do not distinguish is numbered": [made(), made()],
    "long ones too": [made(m="y" + "x" * 40), made(m="z" + "x" * 40)],
}


@pytest.mark.parametrize("name", RUNS)
def test_titles_are_names_and_settings_that_differ(snapshot, name):
    assert "\n".join(run_titles(RUNS[name])) == snapshot


@pytest.mark.parametrize("content", [None, "folder", b"\xff", b"- a"])
def test_settings_that_cannot_be_read_are_refused(tmp_path, refused, content):
    path = tmp_path / "config.yaml"
    path.mkdir() if content == "folder" else content and path.write_bytes(content)
    refused(load_config, path)
