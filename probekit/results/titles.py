"""Titles of runs on pages: the settings, versions or dates in which they differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any

from probekit.results.finished_run import WITHOUT_EFFECT, leaves, one_line
from probekit.results.record import RunRecord

# A section is named by one of its keys, so that its value follows the name of the section.
_NAMING = ("source", "name", "at", "kind")
_NOTHING: tuple[Any, ...] = (None, [], "")
MOST_SETTINGS = 3  # in a title, unless more are needed to distinguish the runs
LONGEST_TITLE = 60  # characters
MOST_ITEMS = 2  # of a list in a title
LONGEST_VALUE = 30  # characters
TIMES = ("", " %H:%M", " %H:%M:%S")  # after the date, if it does not distinguish the runs


@dataclass(frozen=True)
class TitledRun:
    """The facts of a run that its title is made of.

    Attributes:
        name: the name of the experiment.
        settings: the settings that affect the results, by their dotted keys.
        versions: versions of the libraries, by name.
        created: the time at which the run began, in ISO 8601.
    """

    name: str
    settings: Mapping[str, Any]
    versions: Mapping[str, str]
    created: str

    @classmethod
    def of(cls, config: Mapping[str, Any], record: RunRecord) -> TitledRun:
        """Return the facts of a run, given the contents of its config.yaml and run.json."""
        settings = {key: v for key, v in leaves(config).items() if key not in WITHOUT_EFFECT}
        return cls(record.run, settings, record.versions, record.created)


def run_titles(runs: Sequence[TitledRun], *, with_names: bool = False) -> list[str]:
    """Return a unique title for each run: that in which it differs from the others.

    These parts are added until all titles are different, each only to titles that are equal so far:
    the name of the experiment, settings, the version of a library, the date, a number. A title
    consists of as few words of the YAML file as possible: `model mini`, `split.seed 1`,
    `no fit_rows`. An ellipsis at the end means that the runs differ in more settings.

    Args:
        runs: the runs.
        with_names: whether titles begin with the name of the experiment even if all are equal.

    >>> runs = [
    ...     TitledRun("plural", {"model.source": "gpt2", "probe.seed": seed}, {}, created)
    ...     for seed, created in ((0, "2026-11-22"), (1, "2026-11-22"), (1, "2026-11-23"))
    ... ]
    >>> run_titles(runs)
    ['seed 0', 'seed 1 · 22 Nov 2026', 'seed 1 · 23 Nov 2026']
    >>> run_titles(runs[:1])
    ['plural']
    """
    names = [run.name for run in runs]
    has_names = with_names or len(set(names)) > 1 or len(runs) == 1
    titles = names if has_names else [""] * len(runs)
    for step in (_setting_parts, _version_parts, _date_parts, _number_parts):
        titles = _refined(titles, runs, step)
    return titles


def _refined(
    titles: Sequence[str],
    runs: Sequence[TitledRun],
    parts_of: Callable[[Sequence[TitledRun]], list[str]],
) -> list[str]:
    """Return the titles, with a part added to those that are equal."""
    equal = defaultdict(list)
    for number, title in enumerate(titles):
        equal[title].append(number)
    refined = list(titles)
    for title, numbers in equal.items():
        if len(numbers) > 1:
            parts = parts_of([runs[number] for number in numbers])
            for number, part in zip(numbers, parts, strict=True):
                refined[number] = " · ".join(filter(None, (title, part)))
    return refined


def _setting_parts(runs: Sequence[TitledRun]) -> list[str]:
    """Return the settings in which each run differs from the others, as a part of its title."""
    every = list(dict.fromkeys(key for run in runs for key in run.settings))
    values = {key: [run.settings.get(key) for run in runs] for key in every}
    texts = {key: _texts(key, own, every) for key, own in values.items() if _differ(own)}
    independent = {key: own for key, own in texts.items() if not _is_determined(key, texts)}
    shown = _needed(independent)
    for key in independent:
        is_short = max(map(len, _joined(independent, [*shown, key]))) <= LONGEST_TITLE
        if key not in shown and len(shown) < MOST_SETTINGS and is_short:
            shown.append(key)
    more = " …" if len(shown) < len(independent) else ""
    in_order = [key for key in independent if key in shown]
    return [part + more for part in _joined(independent, in_order)] if shown else [""] * len(runs)


def _differ(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _is_determined(key: str, texts: Mapping[str, Sequence[str]]) -> bool:
    """Return whether the name of the section determines the value of a key in all runs.

    Runs on other data also differ in the file and its columns, which need not be listed.
    """
    for naming in texts:
        section, _, last = naming.rpartition(".")
        if last in _NAMING and naming != key and key.startswith(f"{section}."):
            pairs = set(zip(texts[naming], texts[key], strict=True))
            if len(pairs) == len(set(texts[naming])):
                return True
    return False


def _needed(texts: Mapping[str, Sequence[str]]) -> list[str]:
    """Return keys that are enough to distinguish the runs as far as settings can."""
    shown: list[str] = []
    distinct = 1
    for key in texts:
        n_titles = len(set(_joined(texts, [*shown, key])))
        if n_titles > distinct:
            shown, distinct = [*shown, key], n_titles
    return shown


def _joined(texts: Mapping[str, Sequence[str]], keys: Sequence[str]) -> list[str]:
    return [" · ".join(parts) for parts in zip(*(texts[key] for key in keys), strict=True)]


def _texts(key: str, values: Sequence[Any], every: Sequence[str]) -> list[str]:
    """Return `key value` for each run, as short as possible."""
    name = _short_key(key, every)
    lists = [value for value in values if isinstance(value, list) and value]
    items = [item for value in lists for item in value]
    if items and len(items) == len(lists) and all(isinstance(item, dict) for item in items):
        name = name.removesuffix("s")  # kinds: [{kind: svm}]
    shown = cut_texts(_short_paths([_short_value(value) for value in values]))
    return [
        f"no {name}" if value in _NOTHING else f"{name} {text}"
        for value, text in zip(values, shown, strict=True)
    ]


def _short_key(key: str, every: Sequence[str]) -> str:
    """Return the end of a dotted key that no other key has.

    >>> _short_key("probe.seed", ["probe.seed", "probe.C"])
    'seed'
    >>> _short_key("probe.seed", ["probe.seed", "split.seed"])
    'probe.seed'
    >>> _short_key("tokens.position.at", ["tokens.position.at"])
    'position'
    """
    names = Counter(_section_name(other) for other in every)
    parts = _section_name(key).split(".")
    ends = [".".join(parts[-n:]) for n in range(1, len(parts) + 1)]
    is_end = [sum(f".{name}".endswith(f".{end}") for name in names) == 1 for end in ends]
    return next((end for end, unique in zip(ends, is_end, strict=True) if unique), ends[-1])


def _section_name(key: str) -> str:
    section, _, last = key.rpartition(".")
    return section if section and last in _NAMING else key


def _short_value(value: Any) -> str:
    """Return a value in few words.

    >>> _short_value([{"kind": "k_sparse", "k": 4}, {"kind": "svm", "k": None}])
    'k_sparse k 4, svm'
    """
    if isinstance(value, dict):
        named = [
            _short_value(inner) if key in _NAMING else f"{key} {_short_value(inner)}"
            for key, inner in value.items()
            if inner is not None
        ]
        return " ".join(named)
    if isinstance(value, list):
        more = f" + {len(value) - MOST_ITEMS} more" if len(value) > MOST_ITEMS else ""
        return ", ".join(map(_short_value, value[:MOST_ITEMS])) + more
    return " ".join(one_line(value).split())


def _short_paths(texts: Sequence[str]) -> list[str]:
    """Return absolute paths without the folders that are not needed to distinguish them.

    >>> _short_paths(["/models/a/step-1", "/models/a/step-2", "mini"])
    ['step-1', 'step-2', 'mini']
    """
    for n_parts in range(1, 100):
        short = [_last_parts(text, n_parts) for text in texts]
        if len(set(short)) == len(set(texts)):
            return short
    return list(texts)


def cut_texts(texts: Sequence[str], longest: int = LONGEST_VALUE) -> list[str]:
    """Return texts of limited length; texts that differ are still different.

    A long text is cut in the middle. If that makes texts equal, they are cut before their first
    difference instead; texts that would still be equal are not cut.

    >>> cut_texts(["a-model-with-a-long-name", "a-model-with-a-long-name-2", "short"], 12)
    ['a-mode…-name', 'a-mode…ame-2', 'short']
    >>> cut_texts(["a-model-of-2-layers-with-a-norm", "a-model-of-4-layers-with-a-norm"], 12)
    ['a-mo…2-laye…', 'a-mo…4-laye…']
    """
    shown = {text: _without_middle(text, longest) for text in texts}
    shown |= _cut_at_difference(shown, longest)
    shown |= {text: text for text in _equal(shown)}
    return [shown[text] for text in texts]


def _without_middle(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    n_last = (longest - 1) // 2
    return f"{text[: longest - 1 - n_last]}…{text[-n_last:]}"


def _cut_at_difference(shown: Mapping[str, str], longest: int) -> dict[str, str]:
    """Return the texts that are shown as equal, cut before the first difference."""
    n_first = longest // 3
    n_rest = longest - n_first - 2
    cut = {}
    for text in _equal(shown):
        same = [other for other in shown if shown[other] == shown[text]]
        letters = zip(*same, strict=False)
        place = sum(1 for _ in takewhile(lambda one: len(set(one)) == 1, letters))
        more = "…" * (place + n_rest < len(text))
        cut[text] = f"{text[:n_first]}…{text[place : place + n_rest]}{more}"
    return cut


def _equal(shown: Mapping[str, str]) -> list[str]:
    """Return the texts that are shown as another text is."""
    count = Counter(shown.values())
    return [text for text in shown if count[shown[text]] > 1]


def _last_parts(text: str, n_parts: int) -> str:
    return "/".join(PurePosixPath(text).parts[-n_parts:]) if text.startswith("/") else text


def _version_parts(runs: Sequence[TitledRun]) -> list[str]:
    """Return the first version that differs; [""] for each run if none does."""
    names = dict.fromkeys(["probekit", *(name for run in runs for name in run.versions)])
    for name in names:
        own = [run.versions.get(name, "") for run in runs]
        if _differ(own):
            return [f"{name} {version or 'of unknown version'}" for version in own]
    return [""] * len(runs)


def _date_parts(runs: Sequence[TitledRun]) -> list[str]:
    """Return the dates of the runs, with the time if several began on one day."""
    for time in TIMES:
        dates = [date_text(run.created, time) for run in runs]
        if len(set(dates)) == len(runs):
            return dates
    return dates if _differ(dates) else [""] * len(runs)


def date_text(created: str, time: str = "") -> str:
    """Return the date of a time in ISO 8601, with its time in this format; other text unchanged.

    >>> date_text("2026-11-02T01:39:33+00:00"), date_text("2026-11-02T01:39:33+00:00", " %H:%M")
    ('2 Nov 2026', '2 Nov 2026 01:39')
    """
    try:
        moment = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{moment.day} {moment:%b %Y}{moment.strftime(time)}"


def _number_parts(runs: Sequence[TitledRun]) -> list[str]:
    return [f"run {number}" for number, _ in enumerate(runs, start=1)]
