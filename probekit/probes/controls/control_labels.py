"""The company of a probe: control labels without meaning, and guesses that read no activation."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from probekit.probes.solve.solver import Codes

HASH_BYTES = 8


def control_labels(
    types: NDArray[np.str_], train_labels: NDArray[np.str_], seed: int, draw: int
) -> NDArray[np.str_]:
    """Return a random label (n_samples,) per word type, the same wherever the type stands.

    Labels follow the frequencies of `train_labels`. A hash of (seed, draw, type) decides, so
    neither the order of the rows nor the other types matter.

    >>> words = np.array(["bank", "river", "bank"])
    >>> labels = control_labels(words, np.array(["noun", "verb"]), seed=0, draw=0)
    >>> bool(labels[0] == labels[2])
    True

    Source: Hewitt and Liang (2019), Designing and interpreting probes with control tasks.
    """
    labels, counts = np.unique(train_labels, return_counts=True)
    edges = np.cumsum(counts) / counts.sum()
    names, type_of_row = np.unique(types, return_inverse=True)
    places = np.array([_place(seed, draw, str(name)) for name in names])
    drawn: NDArray[np.str_] = labels[np.searchsorted(edges, places, side="right")][type_of_row]
    return drawn


def _place(seed: int, draw: int, name: str) -> float:
    """Return a number in [0, 1) that depends on nothing but the three."""
    digest = hashlib.blake2b(f"{seed}\0{draw}\0{name}".encode(), digest_size=HASH_BYTES).digest()
    # 53 bits are what a float64 holds exactly; all 64 could round up to 1.
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def majority_guess(train_codes: Codes, n_rows: int) -> Codes:
    """Return the most frequent training label (of equals the first), once for each of `n_rows`.

    >>> majority_guess(np.array([2, 1, 1]), n_rows=2).tolist()
    [1, 1]
    """
    return np.full(n_rows, np.bincount(train_codes).argmax())


def word_identity_guess(
    train_types: NDArray[np.str_], train_codes: Codes, types: NDArray[np.str_]
) -> Codes:
    """Return for each of `types` its most frequent training label, the majority for unseen ones.

    Of labels equally frequent for a type, the one more frequent over all training rows is taken.

    >>> words, codes = np.array(["run", "run", "cat", "dog"]), np.array([1, 1, 0, 0])
    >>> word_identity_guess(words, codes, np.array(["run", "bird"])).tolist()
    [1, 0]
    """
    names, type_of_row = np.unique(train_types, return_inverse=True)
    by_frequency = np.argsort(-np.bincount(train_codes), kind="stable")
    counts = np.zeros((len(names), len(by_frequency)), dtype=np.int64)
    np.add.at(counts, (type_of_row, train_codes), 1)
    favourite = by_frequency[counts[:, by_frequency].argmax(axis=1)]
    place = np.searchsorted(names, types).clip(max=len(names) - 1)
    guesses: Codes = np.where(names[place] == types, favourite[place], by_frequency[0])
    return guesses
