"""Synthetic data sets with a known structure, for testing probes.

class_direction  two classes separated along a known direction
number           a number that increases along a known direction
exclusive_or     two classes that are not linearly separable
noise            labels that are independent of the features
wide_noise       the same with more features than rows
own_outliers     separable classes, with outliers in one feature of each group
looked_up        random labels of words, and features that identify the word
copied_groups    identical rows within each group, with random features and labels per group
texts            texts whose label is encoded in one of their tokens
trees            tokens whose squared distances are tree distances
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from probekit.probes.controls.control_task import control_labels
from probekit.probes.data import ProbeData
from probekit.probes.solve.design import Floats

LABELS = np.array(["no", "yes"])
# Fraction of the groups that are used for training.
TRAIN = 2 / 3
WIDTH = 12  # number of features
CARRIERS = 4  # number of features with a non-zero weight in the direction
OFFSET = 3.0  # mean of every feature, which a probe must absorb in its bias


@dataclass(frozen=True, eq=False)
class Planted:
    """Features X (n_rows, n_features), labels with a split, and the planted direction, if any."""

    X: Floats
    data: ProbeData
    direction: Floats | None = None


def class_direction(n_rows: int, seed: int, share: float = 0.5) -> Planted:
    """Return two classes whose means differ by two standard deviations along a direction.

    Each row is "yes" with probability `share`, independently of the others.

    >>> planted = class_direction(300, seed=0)
    >>> planted.X.shape, int(np.count_nonzero(planted.direction))
    ((300, 12), 4)
    """
    generator = np.random.default_rng(seed)
    direction = np.zeros(WIDTH)
    direction[generator.permutation(WIDTH)[:CARRIERS]] = generator.choice([-1, 1], CARRIERS)
    direction /= np.linalg.norm(direction)
    codes = (generator.random(n_rows) < share).astype(int)
    X = _random_rows(generator, n_rows) + np.outer(2.0 * codes - 1, direction)
    return Planted(X, rows_apart(LABELS[codes]), direction)


def number(n_rows: int, seed: int) -> Planted:
    """Return rows with numeric labels: the projection on a direction, plus noise of SD 1/3.

    >>> float(number(300, seed=0).data.y[0]) != float(number(300, seed=0).data.y[1])
    True
    """
    planted = class_direction(n_rows, seed)
    assert planted.direction is not None
    noise = np.random.default_rng(seed + 1).normal(size=n_rows) / 3
    y = (planted.X @ planted.direction + noise).astype(str)
    return Planted(planted.X, rows_apart(y), planted.direction)


def exclusive_or(n_rows: int, seed: int) -> Planted:
    """Return rows that are "yes" if exactly one of two features is above its mean.

    >>> planted = exclusive_or(30, seed=0)
    >>> above = planted.X[:, :2] > OFFSET
    >>> bool(np.all((above.sum(axis=1) == 1) == (planted.data.y == "yes")))
    True
    """
    generator = np.random.default_rng(seed)
    X = _random_rows(generator, n_rows)
    signs = generator.choice([-1.0, 1.0], size=(n_rows, 2))
    X[:, :2] = OFFSET + signs * generator.uniform(1, 2, size=(n_rows, 2))
    return Planted(X, rows_apart(LABELS[(signs[:, 0] != signs[:, 1]).astype(int)]))


def noise(n_rows: int, seed: int, share: float = 0.5) -> Planted:
    """Return rows whose labels are random, "yes" with probability `share`.

    >>> noise(30, seed=0).X.shape
    (30, 12)
    """
    generator = np.random.default_rng(seed)
    codes = (generator.random(n_rows) < share).astype(int)
    return Planted(_random_rows(generator, n_rows), rows_apart(LABELS[codes]))


def wide_noise(n_rows: int, width: int, seed: int) -> Planted:
    """Return rows of independent features (n_rows, width) with balanced labels in random order.

    >>> wide_noise(30, 100, seed=0).X.shape
    (30, 100)
    """
    generator = np.random.default_rng(seed)
    codes = generator.permutation(n_rows) % 2
    return Planted(generator.normal(size=(n_rows, width)), rows_apart(LABELS[codes]))


def own_outliers(n_groups: int, n_own: int, seed: int) -> Planted:
    """Return groups of `n_own` rows, each with outliers in a feature of its own.

    All features separate the classes. In the rows of group g, however, feature g is 1000 or -1000,
    independently of the label. A probe that is fitted on other groups gives this feature its normal
    weight, so that its accuracy in the group is 0.5. If the scale is estimated with the rows of the
    group, the weight of feature g is close to 0 and the accuracy close to 1, due to the last
    feature, which has no outliers. `n_own` is a multiple of 4.

    >>> planted = own_outliers(6, 4, seed=0)
    >>> planted.X.shape, planted.X[:4, 0].tolist(), planted.data.y[:4].tolist()
    ((24, 7), [1000.0, 1000.0, -1000.0, -1000.0], ['no', 'yes', 'no', 'yes'])
    """
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), n_own)
    row = np.arange(len(group))
    codes = row % 2
    spread = np.append(np.full(n_groups, 0.3), 0.7)
    X = (2.0 * codes - 1)[:, None] + spread * generator.normal(size=(len(row), n_groups + 1))
    X[row, group] = np.where(row // 2 % 2, -1000.0, 1000.0)
    return Planted(X, rows_apart(LABELS[codes], groups=group.astype(str)))


def looked_up(n_rows: int, seed: int, n_words: int = 40) -> Planted:
    """Return rows of words: each word has a random label, and the features identify the word.

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
    """Return several copies of one random row per group, with a random label per group.

    A probe that is trained on a copy of a test row can memorise its label.

    >>> copied_groups(6, copies=2, seed=0).data.groups.tolist()[:4]
    ['0', '0', '1', '1']
    """
    generator = np.random.default_rng(seed)
    group = np.repeat(np.arange(n_groups), copies)
    X = generator.normal(size=(n_groups, n_groups))[group]
    y = LABELS[generator.integers(2, size=n_groups)][group]
    return Planted(X, rows_apart(y, groups=group.astype(str)))


def texts(n_texts: int, seed: int, n_tokens: int = 6) -> Planted:
    """Return texts whose label is encoded in one token, at a random position.

    Feature 1 of this token encodes the label; feature 0 is high at this token only.

    >>> planted = texts(9, seed=0)
    >>> planted.X.shape, planted.data.examples.tolist()[:7]
    ((54, 12), [0, 0, 0, 0, 0, 0, 1])
    """
    generator = np.random.default_rng(seed)
    text = np.repeat(np.arange(n_texts), n_tokens)
    codes = generator.integers(2, size=n_texts)
    X = generator.normal(size=(len(text), WIDTH))
    marked = np.arange(n_texts) * n_tokens + generator.integers(n_tokens, size=n_texts)
    X[marked, 0] += 6
    X[marked, 1] += 6 * (2 * codes - 1)
    names = text.astype(str)
    return Planted(X, rows_apart(LABELS[codes][text], groups=names, examples=text))


def trees(n_sentences: int, seed: int, n_tokens: int = 7) -> Planted:
    """Return the tokens of sentences with random dependency trees.

    A row is the sum of one unit vector for each edge to the root, so that the squared distance of
    two tokens is the number of edges between them. Labels are the positions of the heads, from 0;
    the root has -1.

    >>> trees(4, seed=0).data.y[:7].tolist()
    ['6', '0', '-1', '4', '2', '6', '2']
    """
    generator = np.random.default_rng(seed)
    heads, X = [], []
    for _ in range(n_sentences):
        order = generator.permutation(n_tokens)
        head, rows = np.full(n_tokens, -1), np.zeros((n_tokens, WIDTH))
        edges = np.eye(WIDTH)[generator.permutation(WIDTH)]
        for added in range(1, n_tokens):
            parent = order[generator.integers(added)]
            head[order[added]] = parent
            rows[order[added]] = rows[parent] + edges[added]
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
    """Return the data with a split: rows of the first two thirds of the groups are for training.

    Without `groups` each row is a group of its own; likewise for `types`.

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


def _random_rows(generator: np.random.Generator, n_rows: int) -> Floats:
    drawn: Floats = generator.normal(size=(n_rows, WIDTH)) + OFFSET
    return drawn
