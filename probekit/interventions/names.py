"""Names of measures, methods and questions, for experiment files and tables; imports no torch."""

from typing import Literal, get_args

MeasureName = Literal["logit_difference", "accuracy", "probability", "loss", "kl"]
MEASURES: tuple[MeasureName, ...] = get_args(MeasureName)
UNITS: dict[MeasureName, str] = {
    "logit_difference": "logits",
    "accuracy": "share",
    "probability": "probability",
    "loss": "nats",
    "kl": "nats",
}


def measure_title(measure: str) -> str:
    """Return the name of a measure in words.

    >>> measure_title("kl"), measure_title("accuracy")
    ('KL divergence', 'accuracy')
    """
    return "KL divergence" if measure == "kl" else measure.replace("_", " ")


Along = Literal["probe", "mean_difference", "leace"]
METHODS: tuple[Along, ...] = get_args(Along)

Question = Literal["detects", "steers", "silences"]

Replacement = Literal["mean", "zero", "resample"]  # what ablations replace activations by
# What replaces activations: the name of the edit, and the replacement in words.
REPLACEMENTS = {
    "counterfactual": ("patches", "activations of the counterfactual text"),
    "mean": ("mean ablation", "mean activations"),
    "zero": ("zero ablation", "zero"),
    "resample": ("resampling ablation", "activations of a random other text"),
}
