"""Titles of runs: the shortest words of the YAML that distinguish them, never a hash."""

import pytest

from probekit.results.finished_run import leaves
from probekit.results.titles import LONGEST_VALUE, TitledRun, run_titles

NIGHT = "2026-11-22T23:59:01+00:00"


def made(settings=None, name="plural", created=NIGHT, **versions):
    return TitledRun(name, leaves(settings or {}), versions, created)


def config(**others):
    """The settings of a run, some of them replaced; keys contain a dot for a section."""
    settings = {
        "model": {"source": "mini", "path": None, "dtype": "float32"},
        "data": {"name": "nouns", "file": "nouns.csv", "columns": {"text": "text"}},
        "tokens": {"position": {"at": "last", "index": None}, "sweep": []},
        "split": {"seed": 0, "folds": None},
        "probe": {
            "kinds": [{"kind": "logistic", "k": None}],
            "folds": 5,
            "fit_rows": None,
            "seed": 0,
        },
    }
    for key, value in others.items():
        section, _, last = key.rpartition("__")
        inner = settings
        for part in section.split("__"):
            inner = inner[part]
        inner[last] = value
    return made(settings)


@pytest.mark.parametrize(
    ("others", "titles"),
    [
        ({"model__source": "gpt2"}, ["model mini", "model gpt2"]),
        ({"tokens__position__at": "mean"}, ["position last", "position mean"]),
        ({"probe__seed": 1}, ["probe.seed 0", "probe.seed 1"]),
        ({"probe__fit_rows": 500}, ["no fit_rows", "fit_rows 500"]),
        ({"tokens__sweep": [-1, 0]}, ["no sweep", "sweep -1, 0"]),
        ({"probe__kinds": [{"kind": "svm"}]}, ["kind logistic", "kind svm"]),
        (
            {"probe__kinds": [{"kind": "lda"}, {"kind": "k_sparse", "k": 4}, {"kind": "svm"}]},
            ["kinds logistic", "kinds lda, k_sparse k 4 + 1 more"],
        ),
        # The name of a section determines its other keys.
        (
            {"data__name": "verbs", "data__file": "verbs.csv", "data__columns": {"text": "verb"}},
            ["data nouns", "data verbs"],
        ),
        (
            {"tokens__position": {"at": "index", "index": 3}},
            ["position last", "position index"],
        ),
        ({"data__file": "new.csv"}, ["file nouns.csv", "file new.csv"]),
        ({"model__source": "/models/a/step-9"}, ["model mini", "model step-9"]),
        (
            {"model__source": "gpt2", "data__name": "verbs", "split__seed": 3, "probe__folds": 2},
            [
                "model mini · data nouns · split.seed 0 …",
                "model gpt2 · data verbs · split.seed 3 …",
            ],
        ),
    ],
)
def test_a_title_is_what_differs_in_the_words_of_the_file(others, titles):
    assert run_titles([config(), config(**others)]) == titles


def test_a_part_is_added_only_to_runs_that_need_it():
    runs = [
        made({"seed": 0}),
        made({"seed": 1}),
        made({"seed": 1}, created="2026-11-20T10:00:00+00:00"),
        made({"seed": 1}, name="verbs"),
    ]
    titles = ["plural · seed 0", "plural · seed 1 · 22 Nov 2026", "plural · seed 1 · 20 Nov 2026"]
    assert run_titles(runs) == [*titles, "verbs"]
    assert run_titles(runs[:1]) == ["plural"]
    assert run_titles(runs[:2]) == ["seed 0", "seed 1"]
    assert run_titles(runs[:2], with_names=True) == ["plural · seed 0", "plural · seed 1"]


@pytest.mark.parametrize(
    ("other", "titles"),
    [
        (made(probekit="0.2", torch="3"), ["probekit 0.1", "probekit 0.2"]),
        (made(probekit="0.1", torch="3"), ["torch 2", "torch 3"]),
        (
            made(created="2026-11-23T00:00:01+00:00", probekit="0.1", torch="2"),
            ["22 Nov 2026", "23 Nov 2026"],
        ),
        (
            made(created="2026-11-22T08:00:00+00:00", probekit="0.1", torch="2"),
            ["22 Nov 2026 23:59", "22 Nov 2026 08:00"],
        ),
        (
            made(created="2026-11-22T23:59:02+00:00", probekit="0.1", torch="2"),
            ["22 Nov 2026 23:59:01", "22 Nov 2026 23:59:02"],
        ),
        (made(probekit="0.1", torch="2"), ["run 1", "run 2"]),
    ],
    ids=["release", "library", "day", "minute", "second", "nothing"],
)
def test_equal_configurations_are_titled_by_version_or_date(other, titles):
    assert run_titles([made(probekit="0.1", torch="2"), other]) == titles


def test_all_settings_that_distinguish_runs_are_in_a_grid_of_titles():
    runs = [
        made({"a": a, "b": b, "c": c, "d": d})
        for a in (0, 1)
        for b in (0, 1)
        for c in (0, 1)
        for d in (0, 1)
    ]
    titles = run_titles(runs)
    assert len(set(titles)) == len(runs)
    assert titles[0] == "a 0 · b 0 · c 0 · d 0"


def test_long_values_are_cut():
    titles = run_titles([made({"a": "x" * 60}), made({"a": "y"})])
    assert titles == [f"a {'x' * 15}…{'x' * 14}", "a y"]


@pytest.mark.parametrize(
    "values",
    [
        ["x" * 60 + end for end in "yz"],
        ["x" * 30 + middle + "x" * 30 for middle in "yz"],
        ["x" * 30 + middle + "x" * 30 for middle in ("y", "z", "zz")],
        [start + "x" * 60 for start in "yz"],
        ["mini-with-a-very-long-name-number-1", "mini-with-a-very-long-name-number-2"],
    ],
    ids=["end", "middle", "three", "start", "names"],
)
def test_cut_values_keep_what_distinguishes_the_runs(values):
    titles = run_titles([made({"a": value}) for value in values])
    assert len(set(titles)) == len(values)
    assert all(title.startswith("a ") and "run" not in title for title in titles)
    assert max(map(len, titles)) <= len("a ") + LONGEST_VALUE


def test_values_that_cannot_be_cut_are_whole():
    values = ["x" * 30 + middle + "x" * 30 + end for middle in "yz" for end in "12"]
    values += [value[:-2] + "z" + value[-1] for value in values]
    assert len(set(run_titles([made({"a": value}) for value in values]))) == len(values)
