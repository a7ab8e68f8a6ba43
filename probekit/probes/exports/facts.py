"""What travels with an exported probe: where it reads, its threshold, and what is not tested."""

from __future__ import annotations

from collections.abc import Iterator

from probekit.probes.exports.vector import SteeringVector, layer_read
from probekit.probes.saved_probe import SavedProbe


def readme(written: SavedProbe | SteeringVector, what: str, code: str) -> str:
    """Return the description of an exported file in Markdown, with code that uses it.

    Args:
        written: what the file holds.
        what: the name of the format in words.
        code: Python code.
    """
    lines = list(of_vector(written) if isinstance(written, SteeringVector) else of_probe(written))
    return "\n".join(
        [f"# {what[:1].upper()}{what[1:]}", *lines, "```python", code.strip(), "```", ""]
    )


def of_vector(vector: SteeringVector) -> Iterator[str]:
    """Yield lines on a steering vector."""
    yield (
        f"- Added to the output of block {vector.layer} of {vector.model} at every token. Blocks "
        f"are counted from 0, and this is the input of block {vector.layer + 1}."
    )
    yield (
        f"- Points to {vector.towards}; its length is {vector.by:g} standard deviations of the "
        "projection of the rows that the probe was fitted on."
    )
    yield "- Its effect is not tested. Measure it before you rely on it: `probekit intervene`."


def of_probe(probe: SavedProbe) -> Iterator[str]:
    """Yield lines on a probe."""
    facts = probe.facts
    place = "the probed site"
    if len(facts.sites) == 1 and "hook_resid_" in facts.site and "mid" not in facts.site:
        layer = layer_read(facts.site)
        place = f"the output of block {layer}, counted from 0" if layer >= 0 else "the embedding"
    norm = {True: "layer norm", False: "RMS norm", None: "norm"}[facts.norm_is_centred]
    yield (
        f"- Reads {facts.site} of {facts.model} ({place}): raw activations of "
        f"{probe.n_features} features, computed in {facts.compute}."
        if facts.view == "raw"
        else f"- Reads {facts.site} of {facts.model} ({place}), normalized over the "
        f"{probe.n_features} features as by its {norm} without the affine part "
        f"(epsilon {facts.layer_norm_epsilon})."
    )
    keys = ", ".join(f"{k}: {v}" for k, v in facts.position.items() if v is not None)
    written = "the chat template of the model" if facts.chat else "plain text"
    yield f"- Position `{{{keys}}}`; texts are {written}; beginning-of-text: {facts.bos}."
    if facts.position.get("balance"):
        is_odd = "the first byte of the BLAKE3 digest of the text (UTF-8) is odd"
        yield f"- {{a}} and {{b}} of `ask` are answer_a and answer_b, or reversed if {is_odd}."
    yield (
        f"- Digests: weights `{facts.weights or 'unknown'}`, vocabulary "
        f"`{facts.tokenizer or 'unknown'}`. Another network or template is not tested."
    )
    if len(probe.classes) == 2:
        yield f"- One score: above 0 is {probe.classes[1]!r}, else {probe.classes[0]!r}."
    elif probe.classes:
        yield f"- A score for each of {list(probe.classes)}; the largest one is the prediction."
    else:
        yield "- The score is the predicted number."
    for one in facts.thresholds:
        score = "score" if facts.positive == probe.classes[-1] else "-score"
        if len(probe.classes) > 2:
            score = "log probability" if facts.scores_are_logits else "score"
        yield (
            f"- Alarm for {facts.positive!r} if its {score} > {one.threshold!r}: requested false "
            f"positive rate {one.fpr:g}, at most {one.fpr_bound:.3g} on new negatives (95 % bound; "
            f"{one.false_positives} of {one.n_negatives} negatives)."
        )
    if facts.untested:
        yield f"- {facts.untested}"
