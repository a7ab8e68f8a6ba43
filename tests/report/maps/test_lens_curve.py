"""The curve of a lens: shares by layer, and labels that can be read."""

import pandas as pd
import pytest

from probekit.report.maps.lens_curve import lens_curve


def summary(right=1, n_next=4):
    return pd.DataFrame(
        {"layer": ["embed", "0"], "as_output": [1, 5], "n": 5, "right": [0, right],
         "n_next": n_next}
    )  # fmt: skip


def test_the_lines_are_shares_of_their_positions():
    agreement, correct = lens_curve(summary()).data
    assert list(agreement.y) == [0.2, 1.0]
    assert list(correct.y) == [0.0, 0.25]
    assert "at 1 of 4 positions" in correct.hovertext[1]


@pytest.mark.parametrize(("right", "height"), [(1, 0.25), (4, 0.84)])
def test_labels_are_at_the_ends_and_apart(right, height):
    top, second = lens_curve(summary(right)).layout.annotations
    assert (top.y, second.y) == (1.0, pytest.approx(height))


def test_a_line_without_positions_has_no_label():
    (only,) = lens_curve(summary(0, 0)).layout.annotations
    assert only.text.startswith("equals the final")
