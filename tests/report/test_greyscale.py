"""Every figure is readable without colours: by lightness, dash or marker."""

import re
from pathlib import Path

import numpy as np
import plotly.colors
import pytest

import probekit
from probekit.report.attention.page import attention_colours
from probekit.report.elements.style import MAGNITUDES
from probekit.report.figures.maps import luminance

PACKAGE = Path(probekit.__file__).parent
SCALES = {
    "of maps": [plotly.colors.unlabel_rgb(c) for c in MAGNITUDES],
    "of attention": attention_colours()["weights"]["light"],
    "of attention, dark": attention_colours()["weights"]["dark"],
}


def light(colours):
    return luminance(np.array(colours) / 255)


@pytest.mark.parametrize("name", SCALES)
def test_a_scale_grows_or_falls_in_lightness_all_along(name):
    steps = np.diff(light(SCALES[name]))
    assert (steps > 0).all() or (steps < 0).all()


@pytest.mark.parametrize("page", ["light", "dark"])
def test_the_middle_of_the_difference_scale_is_its_lightest_or_darkest_colour(page):
    lightness = light(attention_colours()["differences"][page])
    middle = len(lightness) // 2
    outward = [np.diff(lightness[middle:]), np.diff(lightness[middle::-1])]
    assert all((side < 0).all() for side in outward) or all((side > 0).all() for side in outward)


@pytest.mark.parametrize("other", [r"[Vv]iridis|RdBu", r":[.,\d]+%[}\"']|\d%[ ,.)]", "fold choice"])
def test_colours_and_formats_of_numbers_have_one_place(other):
    files = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".js", ".html"}]
    assert [path.name for path in files if re.search(other, path.read_text("utf-8"))] == []
