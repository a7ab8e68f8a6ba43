"""Dependency trees built from word heads: ancestors, depths, distances and edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse.csgraph import minimum_spanning_tree

from probekit.errors import DataError
from probekit.probes.solve.solver import Codes


@dataclass(frozen=True, eq=False)
class Tree:
    """The dependency tree of one sentence.

    Attributes:
        sentence: Name of the sentence.
        rows: Row numbers (n_tokens,) of its tokens, in word order.
        heads: Index (n_tokens,) of each token's head within the sentence, from 0; -1 for the root.
        depths: Number of edges (n_tokens,) from each token to the root.
        distances: Number of edges (n_tokens, n_tokens) between each pair of tokens.
    """

    sentence: Any
    rows: Codes
    heads: Codes
    depths: Codes
    distances: Codes

    @property
    def edges(self) -> NDArray[np.bool_]:
        """Symmetric adjacency matrix (n_tokens, n_tokens)."""
        joined: NDArray[np.bool_] = self.distances == 1
        return joined


def read_trees(heads: ArrayLike, groups: NDArray[np.generic]) -> list[Tree]:
    """Return the tree of each sentence, in sorted order of the groups (n_tokens,).

    The rows of a sentence must be in word order, but need not be contiguous.

    Raises:
        DataError: The heads (n_tokens,) of a sentence do not form a tree.

    >>> (tree,) = read_trees([1, -1, 1], np.array(["s1", "s1", "s1"]))
    >>> tree.depths.tolist(), tree.distances.tolist()
    ([1, 0, 1], [[0, 1, 2], [1, 0, 1], [2, 1, 0]])
    """
    whole = _whole_numbers(heads)
    names, sentence_of_row = np.unique(groups, return_inverse=True)
    order = np.argsort(sentence_of_row, kind="stable")
    ends = np.cumsum(np.bincount(sentence_of_row))[:-1]
    parts = np.split(order, ends)
    return [_tree(name, rows, whole[rows]) for name, rows in zip(names, parts, strict=True)]


def _whole_numbers(heads: ArrayLike) -> Codes:
    try:
        numbers = np.asarray(heads).astype(np.float64)
    except ValueError as error:
        wrong = next(label for label in np.asarray(heads).ravel() if not _is_number(label))
        raise DataError(
            "Structural probes need the position of each token's head as the label, a number, but "
            f"one label is {str(wrong)!r}. Label the rows by `HEAD`."
        ) from error
    if np.any(numbers != np.round(numbers)):
        wrong = numbers[numbers != np.round(numbers)][0]
        raise DataError(f"The position of a head must be an integer, but y contains {wrong}.")
    return numbers.astype(np.int64)


def _is_number(label: Any) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _tree(name: Any, rows: Codes, heads: Codes) -> Tree:
    problem = _problem(heads)
    if problem:
        raise DataError(
            f"The heads of sentence {str(name)!r} do not form a tree: {problem}. Give each of its "
            f"{len(heads)} tokens the position of its head, from 0 to {len(heads) - 1}, and the "
            "root -1. Remove sentences that lack some of their tokens entirely."
        )
    ancestors = _ancestors(heads)
    sizes = ancestors.sum(axis=1)
    # The shared ancestors of two tokens are those of their lowest common ancestor.
    distances = sizes[:, None] + sizes - 2 * (ancestors @ ancestors.T)
    return Tree(name, rows, heads, sizes - 1, distances)


def _problem(heads: Codes) -> str:
    """Return why the heads do not form a tree; "" if they do."""
    n_roots, outside = int(np.sum(heads == -1)), heads[(heads < -1) | (heads >= len(heads))]
    if len(outside):
        return f"the position {outside[0]} is outside the sentence"
    if n_roots != 1:
        return f"it has {n_roots} roots"
    if len(heads) > 1 and np.any(_ascend(heads, len(heads)) >= 0):
        return "they contain a cycle"
    return ""


def _ascend(heads: Codes, steps: int) -> Codes:
    """Return the ancestor (n_tokens,) of each token that many steps up; -1 above the root."""
    parents = np.append(heads, -1)  # index -1 maps to itself
    positions = np.arange(len(heads))
    for _ in range(steps):
        positions = parents[positions]
    return positions


def _ancestors(heads: Codes) -> Codes:
    """Return a matrix (n_tokens, n_tokens) with 1 where column j is token i or its ancestor."""
    parents = np.append(heads, -1)
    ancestors = np.zeros((len(heads), len(heads) + 1), dtype=np.int64)
    positions = np.arange(len(heads))
    while np.any(positions >= 0):
        ancestors[np.arange(len(heads)), positions] = 1
        positions = parents[positions]
    return ancestors[:, :-1]  # the last column collects writes to index -1


def spanning_edges(distances: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return the symmetric adjacency matrix (n_tokens, n_tokens) of the minimum spanning tree.

    >>> line = np.array([0.0, 1.0, 3.0])
    >>> spanning_edges(np.abs(line[:, None] - line)).astype(int).tolist()
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    """
    # SciPy treats a distance of 0 as no edge; adding a constant does not change the tree.
    weights = distances / max(float(distances.max()), np.finfo(np.float64).tiny) + 1.0
    tree = minimum_spanning_tree(np.triu(weights, k=1)).toarray() > 0
    joined: NDArray[np.bool_] = tree | tree.T
    return joined
