"""Texts of unequal lengths with their counterfactuals and answers, for a tiny network."""

import torch

from probekit.interventions.measures import AnswerMeasure
from probekit.model.passes.inputs import TokenBatch
from tests.model.reference import TINY, pad, ragged


def as_batch(texts, side="left"):
    ids, mask = pad(texts, side, filler=7)
    return TokenBatch(ids, mask, torch.zeros(*ids.shape, 2, dtype=torch.int64))


def pairs(side="left", lengths=(5, 3, 8)):
    texts = ragged(TINY, list(lengths))
    return as_batch(texts, side), as_batch([(one + 11) % TINY.vocab_size for one in texts], side)


def measure_of(name="logit_difference", n=3):
    numbers = torch.arange(n)
    return AnswerMeasure(numbers + 3, numbers + 40, name)


def differences(logits, batch, measure):
    """The logit difference after the last token of each text."""
    rows, positions = (torch.arange(n) for n in batch.mask.shape)
    logits = logits[rows, (batch.mask * positions).argmax(1)]
    return (logits[rows, measure.answer] - logits[rows, measure.wrong]).double().detach().numpy()
