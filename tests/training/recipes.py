"""A corpus of a few repeated sentences, and a recipe that runs in a second."""

import bz2
import gzip
import lzma
import random

from probekit.training.recipe import Recipe

_TEXT = "the key to old cabinets was lost near a dark river and nobody found it again"
WORDS = _TEXT.split()
COMPRESS = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}


def sentences(seed, count):
    draw = random.Random(seed)
    return " ".join(
        " ".join(draw.choices(WORDS, k=draw.randint(4, 9))).capitalize() + "." for _ in range(count)
    )


def write_corpus(folder):
    """Write two texts into a new folder and return it."""
    folder.mkdir()
    for name, seed in (("b.txt", 1), ("a.txt", 2)):
        (folder / name).write_text(sentences(seed, 400))
    return folder


def tiny_recipe(corpus, **changes):
    """Return the recipe of a tiny run, with values changed by `section__key` or `section`."""
    values = {
        "name": "tiny",
        "corpus": {"source": str(corpus), "held_out": 0.1},
        "vocabulary": {"size": 300},
        "model": {"n_layer": 2, "n_head": 2, "n_embd": 16, "n_positions": 32},
        "training": {"steps": 12, "batch": 4, "learning_rate": 3e-3, "dtype": "float32"},
        "repeats": {"share": [0.5, 0.2], "period": [2, 16], "grow_steps": 6},
        "validation": {"every": 5, "rows": 8},
        "checkpoints": {"at": [0], "every": 6, "resume_every": 4},
    }
    for dotted, value in changes.items():
        section, _, key = dotted.partition("__")
        values[section] = {**values[section], key: value} if key else value
    return Recipe.model_validate(values)
