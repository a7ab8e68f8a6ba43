"""Learning-rate schedule and checkpoint steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from probekit.training.recipe import CheckpointsSection, TrainingSection

# Remaining fraction between the peak and the final learning rate, by fraction of decay done.
_DECAY: dict[str, Callable[[float], float]] = {
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
    "linear": lambda done: 1 - done,
}


def learning_rate(step: int, training: TrainingSection) -> float:
    """Return the learning rate of a step, counted from 0.

    It rises linearly during the warm-up, then is constant, and decays over the last steps.

    >>> training = TrainingSection(
    ...     steps=100, batch=1, learning_rate=1.0, warm_up=10, decay_steps=50
    ... )
    >>> [round(learning_rate(step, training), 3) for step in (0, 9, 49, 75, 99)]
    [0.1, 1.0, 1.0, 0.55, 0.101]
    """
    rise = min(1.0, (step + 1) / max(1, training.warm_up))
    length = training.steps - training.warm_up
    length = length if training.decay_steps is None else training.decay_steps
    done = max(0.0, step - (training.steps - length)) / max(1, length)
    final = training.final_learning_rate
    return training.learning_rate * rise * (final + (1 - final) * _DECAY[training.decay](done))


def checkpoint_steps(checkpoints: CheckpointsSection, steps: int) -> tuple[int, ...]:
    """Return the sorted steps after which a checkpoint is saved, including the last step.

    >>> checkpoint_steps(CheckpointsSection(at=(0,), log_spaced=4), 1000)
    (0, 1, 10, 100, 1000)
    >>> checkpoint_steps(CheckpointsSection(every=400), 1000)
    (400, 800, 1000)
    """
    count = checkpoints.log_spaced
    spaced = (round(steps ** (number / max(1, count - 1))) for number in range(count))
    each = range(checkpoints.every or steps, steps, checkpoints.every or steps)
    return tuple(sorted({*checkpoints.at, *spaced, *each, steps}))
