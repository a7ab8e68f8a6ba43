"""An experiment with a few shards, for tests with several workers."""

import random

from probekit.experiment.loader import load_experiment
from tests.pipeline.texts import text_of

_TEXT = "the a old new house river garden door keys letter was were never found lost in on"

EXPERIMENT = text_of("scale.yaml")
N_SHARDS = 4


def write_experiment(folder, n_texts=1000):
    """Write an experiment of four shards and its data; return its path."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(_TEXT.split(), k=draw.randint(3, 20))) for _ in range(n_texts)]
    lines = ["text,label", *(f"{text},{draw.choice('ab')}" for text in texts)]
    (folder / "scale.csv").write_text("\n".join(lines) + "\n")
    (folder / "scale.yaml").write_text(EXPERIMENT)
    return folder / "scale.yaml"


def load(folder):
    """Return the loaded experiment."""
    return load_experiment(write_experiment(folder))


class Heard:
    """A watcher that records messages and progress, and calls a function at each report."""

    def __init__(self, on_progress=lambda done: None):
        self.steps, self.messages, self.on_progress = [], [], on_progress

    @property
    def done(self):
        return [done for _, done, _ in self.steps]

    def progress(self, step, done, total):
        self.steps.append((step, done, total))
        self.on_progress(done)

    def tell(self, message):
        self.messages.append(message)
