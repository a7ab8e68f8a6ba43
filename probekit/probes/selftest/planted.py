"""Data whose answer is known, because it was put there: what probes are tested on.

direction      two classes apart along a known direction
number         a number that rises along a known direction
exclusive_or   two classes that no line tells apart
noise          labels that have nothing to do with the rows
looked_up      labels that belong to words, and features that name the word
copied_groups  rows repeated within their group, labels of the group, features of chance
texts          texts told by one of their tokens
trees          tokens whose squared distances are those of a tree
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.probes.controls.control_labels import control_labels
from probekit.probes.data import ProbeData
from probekit.probes.solve.design import Floats

LABELS = np.array(["no", "yes"])
# The share of rows that are trained on.
TRAIN = 2 / 3
WIDTH = 12  # features
CARRIERS = 4  # features that a direction is made of
OFFSET = 3.0  # the mean of every feature, which a probe must fold into its bias


@dataclass(frozen=True, eq=False)
class Planted:
    """Features X (n_rows, n_features), what a probe needs beside them, and the direction if any."""

    X: Floats
    data: ProbeData
    direction: Floats | None = None


def class_direction(n_rows: int, seed: int, share: float = 0.5) -> Planted:
    """Return rows of two classes whose means differ along a direction by two deviations.

    `share` of the rows are "yes", each with probability by itself.

    >>> planted = class_direction(300, seed=0)
    >>> planted.X.shape, int(np.count_nonzero(planted.direction))
    ((300, 12), 4)
    """
    generator = np.random.default_rng(seed)
    towards = np.zeros(WIDTH)
    towards[generator.permutation(WIDTH)[:CARRIERS]] = generator.choice([-1, 1], CARRIERS)
    towards /= np.linalg.norm(towards)
    codes = (generator.random(n_rows) < share).astype(int)
    X = _chance(generator, n_rows) + np.outer(2.0 * codes - 1, towards)
    return Planted(X, rows_apart(LABELS[codes]), towards)


def number(n_rows: int, seed: int) -> Planted:
    """Return rows along whose direction a number rises, with a third of its spread as noise.

    >>> float(number(300, seed=0).data.y[0]) != float(number(300, seed=0).data.y[1])
    True
    """
    planted = class_direction(n_rows, seed)
    assert planted.direction is not None
    noise = np.random.default_rng(seed + 1).normal(size=n_rows) / 3
    y = (planted.X @ planted.direction + noise).astype(str)
    return Planted(planted.X, rows_apart(y), planted.direction)


def exclusive_or(n_rows: int, seed: int) -> Planted:
    """Return rows that are "yes" where exactly one of two features is above its mean.

    >>> planted = exclusive_or(30, seed=0)
    >>> above = planted.X[:, :2] > OFFSET
    >>> bool(np.all((above.sum(axis=1) == 1) == (planted.data.y == "yes")))
    True
    """
    generator = np.random.default_rng(seed)
    X = _chance(generator, n_rows)
    signs = generator.choice([-1.0, 1.0], size=(n_rows, 2))
    X[:, :2] = OFFSET + signs * generator.uniform(1, 2, size=(n_rows, 2))
    return Planted(X, rows_apart(LABELS[(signs[:, 0] != signs[:, 1]).astype(int)]))


def noise(n_rows: int, seed: int, share: float = 0.5) -> Planted:
    """Return rows whose labels, `share` of them "yes", are of chance.

    >>> noise(30, seed=0).X.shape
    (30, 12)
    """
    generator = np.random.default_rng(seed)
    codes = (generator.random(n_rows) < share).astype(int)
    return Planted(_chance(generator, n_rows), rows_apart(LABELS[codes]))


def looked_up(n_rows: int, seed: int, n_words: int = 40) -> Planted:
    """Return rows whose labels belong to their words at random, and whose features name the word.

    >>> planted = looked_up(90, seed=0)
    >>> words, labels = planted.data.types, planted.data.y
    >>> all(len(set(labels[words == word])) == 1 for word in words)
    True
    """
    generator = np.random.default_rng(seed)
    word = generator.integers(n_words, size=n_rows)
    types = np.char.add("w", word.astype(str))
    y = control_labels(types, LABELS, seed=seed + 1000, draw=0)
    X = generator.normal(size=(n_words, 5 * n_words))[word]
    return Planted(X, rows_apart(y, types=types))


def copied_groups(n_groups: int, copies: int, seed: int) -> Planted:
    """Return each group's one row of chance several times, with the group's label of chance.

    A probe that sees a copy of the row that it is asked for has the answer by heart.

    >>> copied_groups(6, copies=2, seed=0).data.groups.tolist()[:4]
    ['0', '0', '1', '1']
    """
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), copies)
    X = generator.normal(size=(n_groups, n_groups))[group]
    y = LABELS[generator.integers(2, size=n_groups)][group]
    return Planted(X, rows_apart(y, groups=group.astype(str)))


def texts(n_texts: int, seed: int, n_tokens: int = 6) -> Planted:
    """Return tokens of texts, one of which carries the label and a mark by which it is found.

    >>> planted = texts(9, seed=0)
    >>> planted.X.shape, planted.data.examples.tolist()[:7]
    ((54, 12), [0, 0, 0, 0, 0, 0, 1])
    """
    generator = np.random.default_rng(seed)
    text = np.repeat(np.arange(n_texts), n_tokens)
    codes = generator.integers(2, size=n_texts)
    X = generator.normal(size=(len(text), WIDTH))
    told = np.arange(n_texts) * n_tokens + generator.integers(n_tokens, size=n_texts)
    X[told, 0] += 6
    X[told, 1] += 6 * (2 * codes - 1)
    names = text.astype(str)
    return Planted(X, rows_apart(LABELS[codes][text], groups=names, examples=text))


def trees(n_sentences: int, seed: int, n_tokens: int = 7) -> Planted:
    """Return tokens of sentences with heads of chance: a row is the sum of a vector for each edge.

    So the squared distance of two tokens is the number of edges between them. Labels are the
    places of the heads, from 0; the root has -1.

    >>> trees(4, seed=0).data.y[:7].tolist()
    ['6', '0', '-1', '4', '2', '6', '2']
    """
    generator = np.random.default_rng(seed)
    heads, X = [], []
    for _ in range(n_sentences):
        order = generator.permutation(n_tokens)
        head, rows = np.full(n_tokens, -1), np.zeros((n_tokens, WIDTH))
        edges = np.eye(WIDTH)[generator.permutation(WIDTH)]
        for place in range(1, n_tokens):
            parent = order[generator.integers(place)]
            head[order[place]] = parent
            rows[order[place]] = rows[parent] + edges[place]
        heads.append(head)
        X.append(rows)
    sentence = np.repeat(np.arange(n_sentences), n_tokens)
    y = np.concatenate(heads).astype(str)
    data = rows_apart(y, groups=sentence.astype(str), examples=sentence)
    return Planted(np.concatenate(X), data)


def rows_apart(
    y: NDArray[np.str_],
    *,
    groups: NDArray[np.str_] | None = None,
    types: NDArray[np.str_] | None = None,
    examples: NDArray[np.int64] | None = None,
) -> ProbeData:
    """Return labels with a split after two thirds of the groups; each row is a group if none is.

    >>> rows_apart(np.array(list("xyxyxy"))).test.tolist()
    [4, 5]
    """
    own = np.arange(len(y)).astype(str)
    groups = own if groups is None else groups
    names, first = np.unique(groups, return_index=True)
    start = int(np.sort(first)[int(TRAIN * len(names))])
    return ProbeData(
        y,
        groups,
        own if types is None else types,
        train=np.arange(start),
        test=np.arange(start, len(y)),
        examples=examples,
    )


def _chance(generator: np.random.Generator, n_rows: int) -> Floats:
    drawn: Floats = generator.normal(size=(n_rows, WIDTH)) + OFFSET
    return drawn
