"""The answer of a run in one sentence, and how it was measured, in paragraphs."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from probekit.amounts import (
    LEVEL,
    counted,
    fixed,
    format_difference,
    format_number,
    format_p,
    joined_names,
    percent,
)
from probekit.data.checks import FEW_GROUPS
from probekit.probes.kinds.registry import kind_of
from probekit.probes.score.metric_table import METRICS
from probekit.probes.targets import BASELINES, TARGETS
from probekit.report.elements.style import LEVELS
from probekit.report.figures.line_labels import chance_name
from probekit.report.figures.views import position_words
from probekit.results.record import RunRecord
from probekit.results.table import metric_name
from probekit.results.verdict import NOT_BETTER, SIGNIFICANTLY_WORSE, Choice, HeadlineScore, Verdict

# Case of the verdict -> beginning of the answer.
OPENINGS = {
    "yes": "Yes",
    "not better": "Decodable",
    "no evidence": "No evidence",
    "too few groups": "Too few groups to tell",
    "worse": "Worse than {level}",
    "untested": "Not tested against chance",
}
NOT_BETTER_THAN = "not significantly better than"
# Baselines that predict from the text, without activations.
OF_TEXTS = tuple(name for name in BASELINES if name != "majority")
# These metrics are 1, up to rounding, only if each label is predicted.
OF_LABELS, EXACT = ("accuracy", "balanced_accuracy"), 1 - 1e-12
MOST_RIVALS = 2  # named in the sentence
MOST_TIED = 2  # sites named in the sentence
MOST_SITES = 4  # named with the number of folds that chose them
MOST_IN_ANSWER = 3  # of these, in the answer
MOST_PLACES = 6
ENOUGH_GROUPS = 100  # from which an absent sort of group is rarer than 3 %
NESTED_LINE = (
    "Chosen: each outer fold predicts its test rows at the site{kind} that it chose by "
    "the validation scores of its own training rows. It is not the score of one site; to pick the "
    "highest point of the curve would be a selection on test rows."
)

# The label can be decoded: only such questions are answered with "Yes".
_DECODED = (
    "decoded decodable read readable recovered recoverable predicted predictable detected "
    "detectable encoded represented separable classified identified identifiable"
)
_ENCODE = "encode represent know contain carry track distinguish recognise recognize detect"
DECODES = re.compile(
    rf"(?:^|, )(?:(?:can|could) .+? be (?:\w+ly )?(?:{'|'.join(_DECODED.split())})\b"
    rf"|(?:is|are) .+? (?:\w+ly )?(?:{'|'.join(_DECODED.split())})\b"
    rf"|(?:do|does) .+? (?:\w+ly )?(?:{'|'.join(_ENCODE.split())})\b)",
    re.IGNORECASE,
)
# A question with one of these is about more than that, or about the opposite: "Is number decodable
# from the embedding?", "Do all layers encode number?".
_DOUBT = re.compile(
    r"\b(?:not?|never|neither|nor|none|nothing|without|only|than|earlier|later|sooner|more|less|fewer|"
    r"better|worse|best|worst|most|least|all|each|every|any|both|same|absent|independent|block|layer|"
    r"head|neuron|site|embedding|mlp|fail|ignore|avoid|hardly|rarely|barely|\w*correctly)s?\b|n['’]t\b",
    re.IGNORECASE,
)
_WH_WORD = re.compile(r"\b(?:which|where|what|when|why|how|who|whom|whose)\b", re.IGNORECASE)


def answer(v: Verdict, question: str | None = None) -> str:
    """Return the answer of a run as one sentence.

    The sentence begins with "Yes" only if the question allows no other reading; see `is_yes_no`.
    """
    if not v.is_chosen:
        return _ranges(v)
    if v.score is None:
        assert v.best is not None
        return f"No test score: {_in_words(v.best, v)} was chosen, but it has no test row."
    metric = METRICS[v.score.metric]
    if math.isnan(v.score.value):
        return f"No answer: the {metric.title} is undefined on the test rows."
    # The level of the opening "Worse than {level}".
    is_chance = v.is_below_chance and not metric.beats_the_mean
    level = "chance" if is_chance else rival_name("majority", metric.name)
    case, opening = v.case, OPENINGS[v.case].format(level=level)
    but = _but(v) if case == "not better" else ""
    score, chance = score_words(v.score)
    facts = [chance, _p_in_words(v), _other_words(v)]
    if case in ("yes", "not better") and not is_yes_no(question):
        if place := _best_place(v):
            best = "selected" if metric.needs == "alarms" else "best"  # next to that of a monitor
            best = f"All rows pooled, {best}" if v.sources else best.capitalize()
            return f"{best} at {place}{but}: {_listed([score, *facts])}."
        # "Yes" could be misread as the answer to such a question.
        opening = OPENINGS["not better"]
    if v.is_nested:
        return f"{opening}{but}: {_listed([score, *facts])}; {chosen_in_folds(_places(v))}."
    score += f" at {_in_words(v.choices[0], v)}"
    facts.append(_of_candidates(v, "best of {} in cross-validation"))
    return f"{opening}{but}: {_listed([score, *facts])}."


def _listed(facts: Sequence[str]) -> str:
    """Return the facts that are not empty, separated by commas."""
    return ", ".join(filter(None, facts))


def _p_in_words(v: Verdict) -> str:
    """Return the p-value of the reported score; "" if it is unknown.

    The test is named if it is not that of association; otherwise, a p next to a score below chance
    is called one-sided.
    """
    assert v.score is not None
    if v.p is None or math.isnan(v.p):
        return ""
    if v.score.p is None:
        majority = rival_name("majority", v.rivals["majority"].metric)
        return f"{p_words(v.p)} for the difference from {majority}"
    # Next to a score below chance, a large p would be misread.
    if v.is_below_chance:
        return f"one-sided {p_words(v.p)}"
    # Next to a score that is not better, a small p would be misread.
    return p_words(v.p) + (" for an association" if _is_only_associated(v) else "")


def _is_only_associated(v: Verdict) -> bool:
    """Whether p is significant, and the the difference from a constant guess may be 0."""
    return "majority" in v.doubts and v.doubts["majority"].verdict == NOT_BETTER


def rival_name(target: str, metric: str) -> str:
    """Return the name of a rival in sentences.

    >>> rival_name("majority", "accuracy"), rival_name("majority", "r2")
    ('the majority class', 'the mean label')
    """
    if target == "majority" and METRICS[metric].beats_the_mean:
        return "the mean label"
    return TARGETS[target].phrase if target in TARGETS else f"the {target}"


def _but(v: Verdict) -> str:
    """Return the rivals that the selected probe is not better than, after a comma.

    The majority class is the first, because a probe that is not better has learnt nothing that its
    score shows. The others follow, best first. If some predict the labels exactly, or if some are
    better than the probe, only those and random weights are named. Of more than `MOST_RIVALS`
    names in a row, those after the first are counted. Few test groups are named where predictions
    and labels are associated.
    """
    assert v.score is not None
    metric, doubts = METRICS[v.score.metric], v.doubts
    of_texts = [name for name in OF_TEXTS if name in doubts and metric.name in OF_LABELS]
    exact = [name for name in of_texts if doubts[name].value > EXACT]
    # The rivals that are better than the probe; their verdicts are on the probe.
    better = [n for n, r in doubts.items() if r.is_named and r.verdict == SIGNIFICANTLY_WORSE]
    named, relation = better or [*doubts], "worse than" if better else NOT_BETTER_THAN
    if exact:
        named, relation = exact, "every held-out label is predicted exactly by"
    # Without a lead over these, the score shows nothing that the probe, or the network, has learnt.
    ties = doubts.keys() - named
    worst = [rival_name(n, metric.name) for n in ("majority", "random_weights") if n in ties]
    parts = [f"{NOT_BETTER_THAN} {joined_names(worst)}"] if worst else []
    # Ascending, with the majority class last; reversed, it comes first, and then the best ones.
    best_first = sorted(named, key=lambda n: (n == "majority", metric.sign * doubts[n].value))[::-1]
    names = [rival_name(name, metric.name) for name in best_first]
    first = doubts[best_first[0]]
    if len(names) == 1 and first.is_named and not exact and not math.isnan(first.adjusted_low):
        numbers = (first.difference, first.adjusted_low, first.adjusted_high)
        # The table of comparisons has the interval of this difference alone.
        adjusted = ", adjusted" * (numbers[1:] != (first.ci_low, first.ci_high))
        names = [f"{names[0]} ({format_difference(*numbers)}{adjusted})"]
    if len(names) > MOST_RIVALS:
        names = [names[0], f"{len(names) - 1} others"]
    parts.append(f"{relation} {joined_names(names)}")
    is_few = _is_only_associated(v) and v.score.n_groups < FEW_GROUPS
    few = f", with only {v.score.n_groups} test groups" if is_few else ""
    return f", but {', and '.join(parts)}{few}"


def _other_words(v: Verdict) -> str:
    """Return another score that a reader must know, with what has it; "" if there is none.

    Without evidence, it is the best one of `OF_TEXTS` that is better than that of the probe.
    Otherwise it is that of random weights, if they have more than 80 % of its lead over chance.
    """
    assert v.score is not None
    metric, least, names = METRICS[v.score.metric], v.score.value, OF_TEXTS
    if v.case != "no evidence":
        lead = least - v.score.chance
        least, names = v.score.chance + 0.8 * lead, ("random_weights",) * (metric.sign * lead > 0)
    better = {
        name: v.rivals[name].value
        for name in names
        if name in v.rivals and metric.sign * (v.rivals[name].value - least) > 0
    }
    if not better:
        return ""
    best = max(better, key=lambda name: metric.sign * better[name])
    score = percent(better[best]) if metric.in_percent else fixed(better[best], 2)
    return f"{score} with {rival_name(best, metric.name)}"


def _in_words(choice: Choice, v: Verdict, *notes: str) -> str:
    """Return a chosen site in words, with its position if positions differ, and notes."""
    position = position_words(choice.position) if "position" in v.several else ""
    details = _listed([position, *notes])
    return f"{choice.place} ({details})" if details else choice.place


def _places(v: Verdict) -> Counter[str]:
    """Return the number of outer folds that chose each site, in words."""
    return Counter(_in_words(choice, v) for choice in v.choices)


def _best_place(v: Verdict) -> str:
    """Return the chosen site among its candidates, or the site that most outer folds chose.

    The result is "" if no site was chosen in more than half of the folds.
    """
    if not v.is_nested:
        return _in_words(v.choices[0], v, _of_candidates(v, "of {}"))
    places = _places(v)
    (place, n), *_ = places.most_common()
    of_folds = "all" if n == places.total() else f"{n} of"
    return f"{place} in {of_folds} {places.total()} folds" if 2 * n > places.total() else ""


def _of_candidates(v: Verdict, template: str) -> str:
    """Return the template with the number of compared sites, and ties; "" for a single site."""
    if v.n_candidates < 2:
        return ""
    unit = f"combinations of {joined_names(['site', *v.varied])}" if v.varied else "sites"
    # The first one of `close` is the best site.
    written = [(format_number(score), place) for score, place in v.close]
    ties = [place for text, place in written[1:] if text == written[0][0]]
    if len(ties) > MOST_TIED:
        ties = [f"{len(ties)} others"]
    tied = f", tied with {joined_names(ties)}" if ties else ""
    return template.format(f"{v.n_candidates:,} {unit}") + tied


def chosen_in_folds(counts: Counter[str]) -> str:
    """Return a clause with the sites that the outer folds chose and the number of folds of each.

    >>> chosen_in_folds(Counter(["block 2", "block 2"]))
    'block 2 chosen in both folds'
    >>> chosen_in_folds(Counter(["block 2", "block 1", "block 2"]))
    'the folds chose different sites (block 2 in 2 folds and block 1 in 1 fold)'
    >>> chosen_in_folds(Counter(["block 2", "block 1"]))
    'the folds chose different sites (block 2 and block 1)'
    >>> chosen_in_folds(Counter(["block 3", "block 1", "block 3", "block 0", "block 2"]))
    'the folds chose 4 different sites, most often block 3 (2 of 5 folds)'
    >>> chosen_in_folds(Counter(["block 3", "block 2", "block 1", "block 0"]))
    'the folds chose 4 different sites'
    """
    if len(counts) == 1:
        folds = "both" if counts.total() == 2 else f"all {counts.total()}"
        return f"{next(iter(counts))} chosen in {folds} folds"
    if len(counts) > MOST_IN_ANSWER:
        (site, n), (_, next_most), *_ = counts.most_common()
        often = f", most often {site} ({n} of {counts.total()} folds)" if n > next_most else ""
        return f"the folds chose {len(counts)} different sites{often}"
    return f"the folds chose different sites ({folds_of(counts)})"


def folds_of(counts: Counter[str]) -> str:
    """Return sites with their number of folds; numbers are omitted if no site was chosen twice.

    Sites after the first `MOST_SITES` are counted together.
    """
    ordered = counts.most_common()
    is_one_each = len(counts) == counts.total()
    named = [site if is_one_each else f"{site} in {counted(n, 'fold')}" for site, n in ordered]
    others = sum(n for _, n in ordered[MOST_SITES:])
    sites = "another site" if len(named) == MOST_SITES + 1 else "other sites"
    more = [f"{sites} in {counted(others, 'fold')}"] if others else []
    return joined_names(named[:MOST_SITES] + more)


def _ranges(v: Verdict) -> str:
    """Return the range of the test scores over all sites, for runs that chose no site."""
    if not v.unselected:
        return "No answer: no site has a test score."
    is_better = any(scores.n_better for scores in v.unselected)
    opening = "" if is_better else "No evidence beyond random weights: "
    if not any(scores.n_compared for scores in v.unselected):
        opening = "No site was chosen: "
    parts = []
    for scores in v.unselected:
        metric, numbers = METRICS[scores.metric], (scores.low, scores.high, scores.chance)
        (low, high, level), unit = score_texts(numbers, metric.in_percent)
        ends = f"{low}{unit}" if low == high else f"{low}{unit} to {high}{unit}"
        over = f"{metric.title} {ends} over {counted(scores.n_sites, 'site')}"
        name = LEVELS[chance_name([scores.metric], [scores.probe])].label
        chance = "" if math.isnan(scores.chance) else f"{name} {level}{unit}"
        better = f"significantly better than random weights at {scores.n_better}"
        parts.append(_listed([over, chance, better if is_better and scores.n_compared else ""]))
    text = f"{opening}{'; '.join(parts)}."
    return text[0].upper() + text[1:]


def score_words(score: HeadlineScore) -> tuple[str, str]:
    """Return a score with its interval, and its chance level, as parts of a sentence.

    An unknown chance level gives "".

    >>> facts = {"site": "", "p": None, "n": 9, "n_groups": 9, "sites": {}, "position": "last"}
    >>> facts |= {"metric": "accuracy", "probe": "logistic", "view": "raw", "chance": 0.5}
    >>> score_words(HeadlineScore(**facts, value=0.9352, ci_low=0.9, ci_high=0.966))
    ('94 % [90, 97] of held-out rows classified correctly', 'chance 50 %')
    """
    metric = METRICS[score.metric]
    numbers = (score.value, score.ci_low, score.ci_high, score.chance)
    (value, low, high, level), unit = score_texts(numbers, metric.in_percent)
    interval = "" if math.isnan(score.ci_low) else f" [{low}, {high}]"
    direction = " (lower is better)" if metric.lower_is_better else ""
    template = metric.sentence or f"{metric.title} {{score}} on held-out {{unit}}"
    measured = f"{value}{unit}{interval}"
    words = template.format(score=measured, unit=unit_of([score.probe])) + direction
    name = f"{metric.title} of the mean label"
    if not metric.beats_the_mean:
        name = LEVELS[chance_name([score.metric], [score.probe])].label
    # A share of the rows that is not 1 / k, for k labels.
    is_share = metric.is_hits and score.chance > 0 and abs(1 / score.chance % 1 - 0.5) < 0.495
    why = " (the commonest training label)" if is_share and name == "chance" else ""
    return words, "" if math.isnan(score.chance) else f"{name} {level}{unit}{why}"


def unit_of(probes: Iterable[str]) -> str:
    """Return the plural of what scores of probes are averaged over: rows, texts or sentences.

    >>> unit_of(["structural_depth:64"])
    'sentences'
    """
    # In alphabetical order, "classification" and "regression", whose unit is the row, come first.
    tasks = {kind.task for kind in map(kind_of, probes) if kind is not None}
    return {"tree": "sentences", "text": "texts"}.get(min(tasks, default=""), "rows")


def p_words(p: float) -> str:
    """Return a p-value with its name.

    >>> p_words(0.0002), p_words(0.0419)
    ('p < 0.001', 'p = 0.042')
    """
    text = format_p(p)
    return f"p {text.replace('<', '< ')}" if text.startswith("<") else f"p = {text}"


def score_texts(shares: Sequence[float], in_percent: bool) -> tuple[list[str], str]:
    """Return numbers with the same number of decimals, the fewest with which none is misread.

    The second result is their unit, " %" or "".

    The first number is a score, the last is the chance level. A number is misread if it is written
    like the chance level without being equal to it; a score also if it is written like 0, 1 or
    100 % without being equal to that. There are at least 2 decimals, or 0 in percent, and at most
    `MOST_PLACES`, even if a number is still misread with these. NaN is ignored.
    """
    scale, unit, places = (100, " %", 0) if in_percent else (1, "", 2)
    numbers = [scale * share for share in shares]
    while True:
        texts = [fixed(number, places) for number in numbers]
        # Two numbers and their texts, which must differ unless the numbers are equal.
        rounded = zip(numbers, texts, strict=True)
        pairs = [(number, text, numbers[-1], texts[-1]) for number, text in rounded]
        # As `str(end)` is written, such as 1.0 for 1.00.
        score = str(float(texts[0].replace("−", "-")))
        pairs += [(numbers[0], score, end, str(end)) for end in (0.0, 1.0, 100.0)]
        is_ambiguous = any(
            text == written and not math.isclose(number, end, abs_tol=1e-9)
            for number, text, end, written in pairs
            if not math.isnan(number)
        )
        if places >= MOST_PLACES or not is_ambiguous:
            return texts, unit
        places += 1


def is_yes_no(question: str | None, forms: re.Pattern[str] = DECODES) -> bool:
    """Return whether "Yes" can only mean one of the forms, by default that the label is decodable.

    In doubt the answer is False: answers to such questions begin with the result itself.

    >>> is_yes_no("Does the network encode whether the subject is singular or plural?")
    True
    >>> is_yes_no("From which layer on is number decodable?"), is_yes_no("Subject number")
    (False, False)
    >>> is_yes_no("Is it at the noun or the verb?"), is_yes_no("Is layer 3 better than layer 5?")
    (False, False)
    >>> is_yes_no("Is number erased?"), is_yes_no("Do all layers encode number?")
    (False, False)
    """
    text = " ".join((question or "").split())
    opening = forms.search(text)
    if opening is None or not text.endswith("?") or _DOUBT.search(text):
        return False
    words = set(re.findall(r"\w+", text.lower()))
    is_choice = "or" in words and words.isdisjoint({"whether", "if"})
    return not is_choice and not _WH_WORD.search(text[: opening.start()])


def size_words(v: Verdict) -> str:
    """Return the number of test rows and groups of the reported score; "" without a test row.

    For runs that chose no site, these are the largest numbers of rows and groups of a site.
    """
    # A site that was chosen without a test row has no score, and then no size either.
    measured = v.unselected if v.score is None else (v.score,)
    if not measured or (v.is_chosen and v.score is None):
        return ""
    n_rows, n_groups = max(one.n for one in measured), max(one.n_groups for one in measured)
    return f"n = {n_rows:,} test {unit_of(one.probe for one in measured)} in {n_groups:,} groups"


def identity_sentence(record: RunRecord) -> str:
    """Return whether given activations are the tensors of their names."""
    source = record.model.source
    if any(one.sentence for one in record.identities.values()):
        return (
            f"Some rows of {source} were computed again and compared with every tensor: "
            f"{record.identity}."
        )
    return (
        f"The activations of {source} are unverified: no row was computed again. "
        "`activations.verify` names the model that does it."
    )


def method(v: Verdict) -> list[str]:
    """Return the paragraphs on choice, intervals and tests, for the end of the page."""
    n = v.score.n_groups if v.score else ENOUGH_GROUPS
    # The share that is absent from n groups in 5 % of samples, and what it can take from a score.
    ratio = LEVEL ** (1 / n)
    vanishing = (
        " If a probe failed there entirely, a lead of less than "
        f"{100 * (1 / ratio - 1):.0f} % of a rival's score could vanish."
    )
    of_majority = (
        " The p-value of the majority class is that of association; whether the probe is better is "
        "decided by the interval of the difference, and whether worse than chance by its own."
    )
    # Each paragraph, and whether it holds.
    paragraphs = {
        _choice(v): True,
        "Scores are those on held-out rows. Intervals are 95 % intervals over groups: they apply "
        "to these fitted probes on new groups of rows, not to retraining.": True,
        f"A sort of group whose share is below {100 * (1 - ratio):.0f} % is absent from {n} groups "
        "in at least 5 % of samples, which no interval or test can show."
        f"{vanishing if METRICS[v.metric].is_hits and ratio > 0.5 else ''}": n < ENOUGH_GROUPS,
        "Each source was tested by probes of the others. Score, interval and p-value are for new "
        "groups of these sources, not for a new source.": v.sources is not None,
        "The p-value of a probe is that of a one-sided test of association between predictions "
        f"and labels, by a t statistic over groups{f' ({v.null})' if v.null else ''}. The p-values "
        "of single sites are adjusted for the maximum over all sites and kinds of probe; that of "
        "a nested choice is not, because it did not use the test rows.": v.has_p,
        "Differences are paired. Their two-sided p-values come from exchanging the signs of whole "
        "groups or, for a metric that depends on a label of few groups, from Welch's t by class. "
        "An interval excludes 0 exactly if p < 0.05 before it is adjusted for the comparisons of "
        f"the first table, fixed in advance.{of_majority if v.has_p else ''} The difference from "
        "the control task is the selectivity.": bool(v.named),
        "Compression is the length of a code of the label frequencies divided by the description "
        "length of the training labels given the activations.": v.has_compression,
        "A probe shows what can be decoded at a site, not that the model uses it; to test that, "
        "erase, ablate or steer there and measure the effect on the model.": True,
    }
    return [text for text, holds in paragraphs.items() if holds]


def _choice(v: Verdict) -> str:
    """Return how the site and the penalty were selected, as sentences."""
    if v.best is None:
        return "No site was chosen: the results contain no cross-validated scores of the task."
    name = grid_name(v.best.probe)
    if v.is_nested:
        line = NESTED_LINE.format(kind="")  # the sentence before names what else was chosen
        return (
            f"{nested_sentence(v)} {line} {name} was selected in each outer fold by "
            "cross-validation on its own training rows. To pick the highest row of the table of "
            "sites would be a selection on test rows."
        )
    selected = f"{name} and the site were" if v.n_candidates > 1 else f"{name} was"
    return (
        f"{selected} selected by cross-validation on training rows. {v.best.name} has the best "
        f"cross-validated {metric_name(v.metric)}, {format_number(v.best.score)}."
    )


def grid_name(probe: str) -> str:
    """Return the name of a probe's penalty parameter; "C" if it has none or is unknown.

    >>> grid_name("mlp:64"), grid_name("logistic")
    ('alpha', 'C')
    """
    kind = kind_of(probe)
    return "C" if kind is None or kind.grid is None else kind.grid[0]


def nested_sentence(v: Verdict) -> str:
    """Return the first sentence of the summary of a nested run: the choices of its folds."""
    what = joined_names(["site", *v.several])
    sites = folds_of(Counter(choice.name for choice in v.choices))
    return (
        f"Chosen sites: each of {len(v.choices)} outer folds chose its own {what} by "
        f"cross-validated {metric_name(v.metric)} on its own training rows ({sites})."
    )


def nested_line(v: Verdict) -> str:
    """Return the explanation of the horizontal line of the nested choice; "" if it is not drawn."""
    line = NESTED_LINE.format(kind="".join(f", {name}" for name in v.several))
    return line if v.is_nested and v.score is not None else ""
