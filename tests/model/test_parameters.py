"""Counting parameters: the published figures, and the formula against a model that is built."""

from dataclasses import replace
from itertools import product

import pytest

from probekit.model.config import count_components, count_parameters, count_sums
from probekit.model.families.gpt2 import COMPONENTS, GPT2, PUBLISHED
from tests.model.reference import TINY

PUBLISHED_COUNTS = {  # with all biases, tied; without qkv bias: untied, tied, MB of the untied
    "gpt2": (124_439_808, 163_009_536, 124_412_160, 621.83),
    "gpt2-medium": (354_823_168, 406_212_608, 354_749_440, 1549.58),
    "gpt2-large": (774_030_080, 838_220_800, 773_891_840, 3197.56),
    "gpt2-xl": (1_557_611_200, 1_637_792_000, 1_557_380_800, 6247.68),
}
SWITCHES = [
    {"tie_word_embeddings": tied, "bias": bias, "qkv_bias": qkv}
    for tied, bias, qkv in product((True, False), (True, False), (None, True, False))
]


@pytest.mark.parametrize(("name", "known"), PUBLISHED_COUNTS.items())
def test_counts_equal_the_published_ones(name, known):
    tied, untied_without, tied_without, megabytes = known
    config = PUBLISHED[name]
    without = replace(config, qkv_bias=False)
    untied = replace(without, tie_word_embeddings=False)
    assert count_parameters(config) == tied
    assert count_parameters(untied) == untied_without
    assert count_parameters(without) == tied_without
    *_, total = count_sums(untied)
    assert round(total.megabytes(4), 2) == megabytes


@pytest.mark.parametrize("switches", SWITCHES, ids=str)
def test_components_equal_those_of_a_built_model_under_every_switch(switches):
    config = replace(TINY, **switches)
    built = {name: p.numel() for name, p in GPT2(config, seed=None).named_parameters()}
    for component, count in zip(COMPONENTS, count_components(config), strict=True):
        layers = range(config.n_layer) if component.in_block else [0]
        for layer in layers:
            module = component.module.format(l=layer)
            parts = [built.pop(f"{module}.{part}", 0) for part in ("weight", "bias")]
            assert sum(parts) == count.number, component
    assert not built, "parameters that no component counts"
