"""Generation under steering: text with multiples of a probe's direction added at its site.

    x + k s u

u is the unit direction of the probe on raw activations, s the standard deviation of u'x over the
rows that the probe was fitted on, and k the dose. The prompt and each generated token are steered.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from probekit.errors import ConfigError, UnknownNameError, nearest
from probekit.interventions import edits
from probekit.interventions.edits import compose
from probekit.model.generation import Continuation, Decoding, continue_texts
from probekit.pipeline.look.apply import ProbedModel
from probekit.probes.saved_probe import SavedProbe
from probekit.probes.solve.design import Floats


def steering_vector(probe: SavedProbe, towards: str | None = None) -> Floats:
    """Return one standard deviation of the projection along a direction of a probe, (n_features,).

    Args:
        probe: a linear probe of a single site.
        towards: label that the vector points to; None means the second of two labels, or higher
            numbers.

    Raises:
        ConfigError: the probe has no direction on the raw activations of one site, no standard
            deviation, or more than two labels and `towards` is None.
        UnknownNameError: the probe has no such label.
    """
    facts, unit = probe.facts, probe.unit_directions
    if len(facts.sites) != 1 or facts.view != "raw":
        raise ConfigError(
            f"Steering requires a probe of a single site in the raw view, but this probe reads "
            f"{facts.site} in the {facts.view} view."
        )
    if len(facts.projection_sd) != len(unit):
        raise ConfigError(
            "This probe was saved without the standard deviation of its projection, which is the "
            "unit of the dose. Run its experiment again; cached activations are used again."
        )
    row, sign = _row(probe, towards)
    vector: Floats = sign * facts.projection_sd[row] * unit[row]
    return vector


def _row(probe: SavedProbe, towards: str | None) -> tuple[int, int]:
    """Return the number of the direction towards a label, and its sign."""
    classes = probe.classes
    if towards is None:
        if len(classes) > 2:
            raise ConfigError(
                f"This probe has a direction for each of {len(classes)} labels. Choose one with "
                f"--towards: {', '.join(classes)}."
            )
        return 0, 1
    if not classes:
        raise ConfigError(
            "This probe predicts numbers and has no labels. Leave out --towards; a negative dose "
            "points to lower numbers."
        )
    if towards not in classes:
        raise UnknownNameError(f"This probe has no label {towards!r}. {nearest(towards, classes)}")
    if len(classes) == 2:
        return 0, 1 if towards == classes[1] else -1
    return classes.index(towards), 1


def steered_texts(
    network: ProbedModel,
    prompts: Sequence[str],
    decoding: Decoding,
    vector: Floats,
    by: float,
    *,
    bos: bool,
    stop: Sequence[str] = (),
    site: str | None = None,
) -> list[list[Continuation]]:
    """Return continuations of prompts with `by` times a vector added at every token.

    Args:
        network: the model of the probe; see `load_network`.
        prompts: texts to continue.
        decoding: decoding parameters.
        vector: result of `steering_vector`.
        by: dose, in standard deviations of the projection; 0 gives the texts without steering.
        bos: whether to put the beginning-of-text token before each prompt.
        stop: strings that end a continuation, in addition to the tokenizer's ends of text.
        site: name of the steered site; None means that of the probe.

    Raises:
        UnknownNameError: there is no such site.
        DataError: the site has another width than the vector.
    """
    model, tokenizer = network.model, network.tokenizer
    stop = (*stop, *tokenizer.ends_of_text)
    tap = compose(
        model, [(site or network.selections[0], edits.add(torch.from_numpy(by * vector)))]
    )
    if not by:
        return continue_texts(model, tokenizer, prompts, decoding, bos=bos, stop=stop)
    return continue_texts(
        model, tokenizer, prompts, decoding, bos=bos, stop=stop, tap=tap, sites=tap.sites
    )
