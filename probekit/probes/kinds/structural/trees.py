"""Dependency trees from the heads of their words: ancestors, depths, distances, edges."""

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
    """One sentence: the rows of its tokens in order, and for each the place of its head.

    Attributes:
        sentence: Its name.
        rows: Row numbers (n_tokens,).
        heads: Place of each token's head in the sentence (n_tokens,), from 0; -1 for the root.
        depths: Edges from each token to the root (n_tokens,).
        distances: Edges between each two tokens (n_tokens, n_tokens).
    """

    sentence: Any
    rows: Codes
    heads: Codes
    depths: Codes
    distances: Codes

    @property
    def edges(self) -> NDArray[np.bool_]:
        """Which two tokens are joined (n_tokens, n_tokens), in either direction."""
        joined: NDArray[np.bool_] = self.distances == 1
        return joined


def read_trees(heads: ArrayLike, groups: NDArray[np.generic]) -> list[Tree]:
    """Return the tree of each sentence, in sorted order of the groups (n_tokens,).

    The rows of a sentence stand in the order of its words, but need not stand together.

    Raises:
        DataError: The heads (n_tokens,) of a sentence are no tree.

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
            "the label of a structural probe is the place of a token's head, a number, but one is "
            f"{str(wrong)!r}. Label the rows by `HEAD`."
        ) from error
    if np.any(numbers != np.round(numbers)):
        wrong = numbers[numbers != np.round(numbers)][0]
        raise DataError(f"the place of a head is a whole number, but y holds {wrong}.")
    return numbers.astype(np.int64)


def _is_number(label: Any) -> bool:
    try:
        float(label)
    except ValueError:
        return False
    return True


def _tree(name: Any, rows: Codes, heads: Codes) -> Tree:
    wrong = _what_is_wrong(heads)
    if wrong:
        raise DataError(
            f"the heads of sentence {str(name)!r} are no tree: {wrong}. Give for each of its "
            f"{len(heads)} tokens the place of its head, from 0 to {len(heads) - 1}, and -1 for "
            "one root; a sentence that lost some of its tokens must be left out whole."
        )
    ancestors = _ancestors(heads)
    sizes = ancestors.sum(axis=1)
    # Two tokens share the ancestors of the token where their ways to the root meet.
    distances = sizes[:, None] + sizes - 2 * (ancestors @ ancestors.T)
    return Tree(name, rows, heads, sizes - 1, distances)


def _what_is_wrong(heads: Codes) -> str:
    n_roots, outside = int(np.sum(heads == -1)), heads[(heads < -1) | (heads >= len(heads))]
    if len(outside):
        return f"the place {outside[0]} is outside the sentence"
    if n_roots != 1:
        return f"it has {n_roots} roots"
    if len(heads) > 1 and np.any(_walk(heads, len(heads)) >= 0):
        return "some of them go in a circle"
    return ""


def _walk(heads: Codes, steps: int) -> Codes:
    """Return where each token stands after so many steps to its head; -1 beyond the root."""
    above = np.append(heads, -1)  # place -1 leads to itself
    places = np.arange(len(heads))
    for _ in range(steps):
        places = above[places]
    return places


def _ancestors(heads: Codes) -> Codes:
    """Return 1 where the second token is the first or above it, (n_tokens, n_tokens)."""
    above = np.append(heads, -1)
    marks = np.zeros((len(heads), len(heads) + 1), dtype=np.int64)
    places = np.arange(len(heads))
    while np.any(places >= 0):
        marks[np.arange(len(heads)), places] = 1
        places = above[places]
    return marks[:, :-1]  # the last column took what is beyond the root


def spanning_edges(distances: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which tokens the minimum spanning tree joins (n_tokens, n_tokens), symmetric.

    >>> line = np.array([0.0, 1.0, 3.0])
    >>> spanning_edges(np.abs(line[:, None] - line)).astype(int).tolist()
    [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    """
    # SciPy takes a distance of 0 for no edge. Adding one number to all leaves the tree as it is.
    weights = distances / max(float(distances.max()), np.finfo(np.float64).tiny) + 1.0
    tree = minimum_spanning_tree(np.triu(weights, k=1)).toarray() > 0
    joined: NDArray[np.bool_] = tree | tree.T
    return joined
