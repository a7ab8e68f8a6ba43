"""Order, titles, captions and sizes of the figures of interventions."""

import pytest

from probekit.report.causes.figure_parts import FEW_GROUPS, cause_parts
from probekit.report.figures.figure_files import CENTIMETRE, file_names, on_paper
from probekit.results.causes.tables import CauseTables
from tests.results.causes.made_causes import (
    every_table,
    make_doses,
    make_effects,
    write_causes,
)


@pytest.fixture
def parts_of(tmp_path):
    """A function that returns the figures of tables."""
    return lambda **tables: cause_parts(CauseTables.open(write_causes(tmp_path, **tables)))


@pytest.fixture(scope="module")
def all_parts(tmp_path_factory):
    """The figures of all four tables."""
    folder = write_causes(tmp_path_factory.mktemp("all"), **every_table())
    return cause_parts(CauseTables.open(folder))


def test_the_first_figure_of_each_kind_is_open(parts_of):
    parts = parts_of(**every_table(effects=make_effects(measures=("logit_difference", "kl"))))
    assert [part.title for part in parts if part.is_open] == [
        "Recovery by layer · patches at the last token",
        "Recovery by layer and token · residual stream, patches",
        "Recovery by layer and head · attn.z, patches at the last token",
        "Dose-response · probe, at the last token",
        "Accuracy after erasure · LEACE, at the last token",
    ]
    folded = [part.title for part in parts if not part.is_open]
    assert "Recovery by layer · patches at all tokens" in folded
    assert "Recovery of KL divergence by layer · patches at the last token" in folded
    assert "Change of logit difference by layer · mean ablation at the last token" in folded


def test_file_names_of_figures_are_short_and_unique(all_parts):
    titles = [part.title for part in all_parts]
    names = file_names(titles)
    assert len(set(names)) == len(titles) == 7
    assert names[0] == "recovery-by-layer-patches-at-the-last-token"


def test_captions_have_replacement_measure_size_and_controls(all_parts):
    for part in all_parts:
        assert "n = 432 texts in 30 groups" in part.caption, part.title
        assert "Control" in part.caption, part.title
        assert "eplace" in part.caption or "added along the direction" in part.caption, part.title
        unit = "share" if part.title.startswith("Accuracy") else "logits"
        assert f"({unit}" in part.caption, part.title
        assert part.description.endswith("."), part.title


def test_the_caption_of_a_curve(all_parts):
    assert all_parts[0].caption == (
        "Replacement: activations of the counterfactual text, at the last token. Recovery of the "
        "logit difference (logits; column verb against column other_verb): share of the difference "
        "between the counterfactual and the unedited text. n = 432 texts in 30 groups. Control: "
        "the unedited text; smallest p = 0.002, adjusted for 84 edits. "
        f"{FEW_GROUPS} Bands or bars: 95 % intervals over groups. Single heads of attn.z have a "
        "map of their own."
    )


@pytest.mark.parametrize(("groups", "is_caveat"), [(49, True), (50, False)])
def test_few_groups_are_a_caveat_of_the_tests_of_patches(parts_of, groups, is_caveat):
    part, *_ = parts_of(effects=make_effects(2, 2).assign(groups=groups))
    assert (" With fewer than 50 groups, skewed effects can" in part.caption) is is_caveat


def test_the_caption_of_doses_has_the_loss_on_other_texts_and_the_choice_of_sites(parts_of):
    (part,) = parts_of(doses=make_doses(12))
    assert "Change of the loss on other texts: at most 0.050 [0.030, 0.070] nats" in part.caption
    assert "95 % of 999 directions on permuted labels" in part.caption
    assert part.caption.endswith("The 9 of 12 sites with the largest effects.")
    assert "towards plural" in part.caption


def test_methods_of_directions_have_figures_of_their_own(parts_of):
    parts = parts_of(doses=make_doses(2, along=("probe", "mean_difference")))
    assert [(part.title, part.is_open) for part in parts] == [
        ("Dose-response · probe, at the last token", True),
        ("Dose-response · mean difference, at the last token", False),
    ]


def test_maps_of_many_layers_have_lower_rows(parts_of):
    small, large = parts_of(effects=make_effects(12, 12)), parts_of(effects=make_effects(48, 25))
    heads = [next(p for p in parts if "head ·" in p.title) for parts in (small, large)]
    assert heads[0].height == pytest.approx(28)
    assert heads[1].height == pytest.approx(53.2)


def test_no_figure_of_one_column_is_higher_than_6_cm(all_parts):
    for part in all_parts:
        _, size = on_paper(part, 1)
        assert size["height"] / CENTIMETRE <= 6


def test_on_paper_every_token_is_named(parts_of):
    tokens = tuple(f" token{n}" for n in range(16))
    part = parts_of(effects=make_effects(tokens=tokens))[1]
    figure, _ = on_paper(part, 1)
    assert "" not in figure.layout.xaxis.ticktext
