"""Random labels of the control task, and the majority and word identity baselines."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from probekit.probes.solve.design import Floats
from probekit.probes.solve.solver import Codes

HASH_BYTES = 8


def control_labels(
    types: NDArray[np.str_], train_labels: NDArray[np.str_], seed: int, draw: int
) -> NDArray[np.str_]:
    """Return control labels (n_samples,): one random label per word type.

    Labels are drawn with the frequencies of `train_labels`, from a hash of (seed, draw, type), so
    that they do not depend on the order of the rows or on the other types.

    >>> words = np.array(["bank", "river", "bank"])
    >>> labels = control_labels(words, np.array(["noun", "verb"]), seed=0, draw=0)
    >>> bool(labels[0] == labels[2])
    True

    Source: Hewitt and Liang (2019), Designing and interpreting probes with control tasks.
    """
    labels, counts = np.unique(train_labels, return_counts=True)
    edges = np.cumsum(counts) / counts.sum()
    names, type_of_row = np.unique(types, return_inverse=True)
    uniform = np.array([_uniform(seed, draw, str(name)) for name in names])
    drawn: NDArray[np.str_] = labels[np.searchsorted(edges, uniform, side="right")][type_of_row]
    return drawn


def _uniform(seed: int, draw: int, name: str) -> float:
    """Return a pseudo-random number in [0, 1) that is a function of the arguments."""
    digest = hashlib.blake2b(f"{seed}\0{draw}\0{name}".encode(), digest_size=HASH_BYTES).digest()
    # A float64 holds 53 bits exactly; all 64 could round up to 1.
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def majority_guess(train_codes: Codes, n_rows: int) -> Codes:
    """Return the most frequent training label, repeated `n_rows` times; ties go to the first.

    >>> majority_guess(np.array([2, 1, 1]), n_rows=2).tolist()
    [1, 1]
    """
    return np.full(n_rows, np.bincount(train_codes).argmax())


def word_identity_log_frequencies(
    train_types: NDArray[np.str_], train_codes: Codes, types: NDArray[np.str_], n_classes: int
) -> Floats:
    """Return log frequencies (n_samples, n_classes) of the training labels of each row's word type.

    Frequencies are smoothed: the label frequencies of all training rows are added to the counts of
    each type, with the weight of one row. A type that was seen once therefore does not get a
    frequency of 1, and unseen types get the frequencies of all training rows.

    >>> words, codes = np.array(["run", "run", "cat", "dog"]), np.array([1, 1, 0, 0])
    >>> np.exp(word_identity_log_frequencies(words, codes, np.array(["run", "bird"]), 2)).round(2)
    array([[0.17, 0.83],
           [0.5 , 0.5 ]])
    """
    names, type_of_row = np.unique(train_types, return_inverse=True)
    overall = np.bincount(train_codes, minlength=n_classes) / len(train_codes)
    counts = np.tile(overall, (len(names) + 1, 1))  # the last row is for unseen types
    np.add.at(counts, (type_of_row, train_codes), 1)
    place = np.searchsorted(names, types).clip(max=len(names) - 1)
    own = counts[np.where(names[place] == types, place, len(names))]
    with np.errstate(divide="ignore"):
        logs: Floats = np.log(own / own.sum(axis=1, keepdims=True))
    return logs


def word_identity_guess(
    train_types: NDArray[np.str_], train_codes: Codes, types: NDArray[np.str_]
) -> Codes:
    """Return the most frequent training label of each word type; unseen types get the majority.

    Ties go to the label that is more frequent over all training rows.

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
