"""Labels of horizontal lines do not overlap."""

from itertools import pairwise

import pytest

from probekit.report.figures.levels import LINE_HEIGHT, label_shifts

VALUES, N_LINES, ENDS = [0.5, 0.52, 0.6, 0.93], [2, 3, 2, 2], [0.4, 1.0]


@pytest.mark.parametrize("height", [160, 270, 430], ids=["narrow", "usual", "high"])
def test_labels_do_not_overlap_at_any_plot_height(height):
    shifts = label_shifts(VALUES, N_LINES, ENDS)
    middles = [
        height * (value - ENDS[0]) / (ENDS[1] - ENDS[0]) + shift
        for value, shift in zip(VALUES, shifts, strict=True)
    ]
    halves = [lines * LINE_HEIGHT / 2 for lines in N_LINES]
    ends = [(m - half, m + half) for m, half in zip(middles, halves, strict=True)]
    assert all(below[1] <= above[0] + 0.2 for below, above in pairwise(ends))
