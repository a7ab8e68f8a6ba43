"""Synthetic data with a known structure, shared by the tests of the kinds."""

import numpy as np


def direction(n_samples=2000, n_features=20, seed=0, gap=2.0):
    """Two classes separated along one unit direction by `gap` standard deviations."""
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=n_features)
    theta /= np.linalg.norm(theta)
    y = generator.integers(2, size=n_samples)
    X = generator.normal(size=(n_samples, n_features)) + gap * np.outer(y, theta) + 3
    return X, y, theta


def three_classes(n_samples=300, n_features=6, seed=0, classes="abc"):
    """Overlapping classes of different sizes, with features on different scales."""
    generator = np.random.default_rng(seed)
    y = generator.choice(3, size=n_samples, p=[0.5, 0.3, 0.2])
    means = 1.5 * generator.normal(size=(3, n_features))
    X = generator.normal(size=(n_samples, n_features)) + means[y]
    X, y = X * np.logspace(-1, 1, n_features) + 10, np.array(["a", "b", "c"])[y]
    own = np.isin(y, list(classes))
    return X[own], y[own]


def xor(n_samples=1000, seed=0):
    """Rows whose class is whether the first two of five features differ in sign."""
    X = np.random.default_rng(seed).normal(size=(n_samples, 5))
    return X, (X[:, 0] > 0) ^ (X[:, 1] > 0)


def trees(n_sentences, n_features, rank, seed=0, noise=0.05):
    """Tokens, heads and sentences; each edge is an orthogonal step in a random subspace."""
    generator = np.random.default_rng(seed)
    basis = np.linalg.qr(generator.normal(size=(n_features, n_features)))[0][:, :rank]
    X, heads, sentences = [], [], []
    for sentence in range(n_sentences):
        length = generator.integers(5, rank)
        order, dims = generator.permutation(length), generator.permutation(rank)
        own, points = np.full(length, -1), np.zeros((length, rank))
        for step in range(1, length):
            head = order[generator.integers(max(0, step - 3), step)]
            own[order[step]] = head
            points[order[step]] = points[head]
            points[order[step], dims[step]] += 1
        X.append(points @ basis.T + noise * generator.normal(size=(length, n_features)))
        heads.append(own)
        sentences += [sentence] * length
    return np.vstack(X), np.concatenate(heads), np.array(sentences)


def marked_texts(n_texts, n_features=10, n_tokens=12, seed=0):
    """Tokens, labels and texts; one marked token per text encodes its label, the others mislead."""
    generator = np.random.default_rng(seed)
    X = generator.normal(size=(n_texts, n_tokens, n_features))
    y = generator.integers(2, size=n_texts)
    place = generator.integers(n_tokens, size=n_texts)
    X[:, :, 1] = generator.choice([-2, 2], size=(n_texts, n_tokens))
    X[np.arange(n_texts), place, 0] += 5
    X[np.arange(n_texts), place, 1] = 4 * y - 2
    texts = np.repeat(np.arange(n_texts), n_tokens)
    marks = np.arange(n_texts) * n_tokens + place
    return X.reshape(-1, n_features), np.repeat(y, n_tokens), texts, marks
