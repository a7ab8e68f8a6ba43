"""Titles of runs: their names, and what distinguishes runs of one name."""

from types import SimpleNamespace

import pytest

from probekit.results.finished_run import run_titles


def made(name="plural", **settings):
    return SimpleNamespace(run=name), {key: str(v) for key, v in settings.items()}


@pytest.mark.parametrize(
    ("runs", "titles"),
    [
        ([made()], ["plural"]),
        ([made(seed=0), made("tense", seed=1)], ["plural", "tense"]),
        (
            [made(seed=0), made(seed=1), made("tense")],
            ["plural · seed 0", "plural · seed 1", "tense"],
        ),
        ([made(seed=0), made(seed=1)], ["seed 0", "seed 1"]),
        ([made(k=4), made()], ["k 4", "k –"]),
        (
            [made(a=0, b=0, c=0, d=0), made(a=1, b=1, c=1, d=1)],
            ["a 0 · b 0 · c 0", "a 1 · b 1 · c 1"],
        ),
        # The model's folder alone.
        ([made(m="/x/a"), made(m="/x/b")], ["m a", "m b"]),
        # What the settings do not distinguish is numbered.
        ([made(), made()], ["run 1", "run 2"]),
        (
            [made(m="y" + "x" * 40), made(m="z" + "x" * 40)],
            [f"m …{'x' * 29} · run {n}" for n in (1, 2)],
        ),
    ],
)
def test_titles_are_names_and_settings_that_differ(runs, titles):
    assert run_titles(runs) == titles
