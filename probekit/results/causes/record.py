"""Facts about the interventions of a run that its pages show: causes.json."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from probekit.results.record import STARTED


def has_causes_alone(folder: Path) -> bool:
    """Return whether a folder is that of finished interventions without probes."""
    is_run = any((folder / name).exists() for name in (STARTED, "run.json"))
    return not is_run and (folder / "causes/causes.json").exists()


class LeftOut(BaseModel):
    """Texts that the interventions leave out.

    Attributes:
        n: number of texts.
        reason: why, with the first rows and the remedy.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    n: int
    reason: str


class CausesRecord(BaseModel):
    """Facts about the interventions of a run.

    Attributes:
        name: name of the experiment.
        question: research question; None without one.
        model: model as given in the experiment.
        dataset: name of the data set.
        classes: the two labels, the one that directions point away from first; empty if no step
            uses directions.
        position: probed token, such as `last`.
        measures: names of the measures, the first one for verdicts.
        answers: the answers in words, such as `column verb` or `" is"`, by `answer` and `wrong`.
        tokens: tokens of the first text, for the axis of positions; empty if the texts differ in
            their numbers of tokens or no step edits each position.
        same_tokens: for each position, whether all texts have the token of the first text.
        n: number of texts that are tested.
        groups: number of their groups.
        folds: number of folds.
        draws: number of permutations of the labels.
        seed: random seed.
        left_out: texts that were left out, by reason.
        sites: the sites of verdicts in the order of the forward pass.
        preferred: share of the test texts in which the unedited network prefers the right answer
            over the wrong one; None without texts in pairs or without a wrong answer.
        warnings: sentences on doubts about the results, such as doses that were left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    question: str | None
    model: str
    dataset: str
    classes: tuple[str, ...]
    position: str
    measures: tuple[str, ...]
    answers: dict[str, str]
    tokens: tuple[str, ...]
    same_tokens: tuple[bool, ...]
    n: int
    groups: int
    folds: int
    draws: int
    seed: int
    left_out: tuple[LeftOut, ...]
    sites: tuple[str, ...]
    preferred: float | None = None
    warnings: tuple[str, ...] = ()
