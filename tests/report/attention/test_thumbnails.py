import base64

import numpy as np
import pytest

from probekit.report.attention.packing import (
    attention_colours,
    still_picture,
    thumbnails,
    with_summaries,
    without_first,
)


@pytest.mark.parametrize("n", [3, 48, 49, 100, 131])
def test_a_pixel_is_the_largest_weight_of_its_patch(make_patterns, n):
    patterns = make_patterns(n)[0]
    small = thumbnails(patterns)
    side = min(n, 48)
    assert small.shape == (3, side, side)
    edges = [i * n // side for i in range(side)] + [n]
    for row, column in ((0, 0), (side - 1, 0), (side - 1, side - 1), (side // 2, side // 3)):
        patch = patterns[:, edges[row] : edges[row + 1], edges[column] : edges[column + 1]]
        assert (small[:, row, column] == patch.max((1, 2))).all()


def test_the_mean_and_maximum_follow_the_heads(make_patterns):
    heads = make_patterns(6)[1]
    both = with_summaries(heads)
    assert (both[:3] == heads).all()
    np.testing.assert_allclose(both[3], (heads[0] + heads[1] + heads[2]) / 3, rtol=1e-6)
    assert (both[4] == np.maximum(np.maximum(heads[0], heads[1]), heads[2])).all()
    assert with_summaries(heads[:1]) is not None
    assert len(with_summaries(heads[:1])) == 1


def test_without_the_first_token_rows_sum_to_1_or_are_empty(make_patterns):
    heads = make_patterns(6)[1]
    heads[0, 3] = [1, 0, 0, 0, 0, 0]
    rest = without_first(heads)
    assert (rest[..., 0] == 0).all()
    sums = rest.sum(-1)
    assert (sums[:, 0] == 0).all()
    assert sums[0, 3] == 0
    np.testing.assert_allclose(sums[1:, 1:], 1, rtol=1e-6)
    ratio = rest[1, 5, 2] / rest[1, 5, 4]
    assert ratio == pytest.approx(heads[1, 5, 2] / heads[1, 5, 4], rel=1e-5)


def test_the_static_image_is_a_grid_of_layers_and_heads(browser, tmp_path):
    layers = np.zeros((2, 3, 2, 2), np.float32)
    layers[1, 2, 1, 0] = 1
    page = tmp_path / "still.html"
    page.write_text(f'<img src="data:image/png;base64,{still_picture(layers)}">')
    browser.open(page)
    pixels = browser.evaluate(
        "(() => { const image = document.images[0], canvas = document.createElement('canvas');"
        "Object.assign(canvas, { width: image.width, height: image.height });"
        "const context = canvas.getContext('2d'); context.drawImage(image, 0, 0);"
        "return { width: image.width, height: image.height, "
        "data: [...context.getImageData(0, 0, image.width, image.height).data] }; })()"
    )
    assert (pixels["width"], pixels["height"]) == (9, 6)  # tiles of 2 and a gap of 1
    image = np.array(pixels["data"]).reshape(6, 9, 4)[..., :3]
    stops = attention_colours()["weights"]["light"]
    assert image[3 + 1, 6].tolist() == stops[-1]  # layer 1, head 2, destination 1, source 0
    assert image[1, 0].tolist() == stops[0]
    assert image[0, 1].tolist() == [217, 221, 226]  # masked
    assert image[2, 2].tolist() == [255, 255, 255]
    assert (image == stops[-1]).all(-1).sum() == 1


def test_the_static_image_is_deterministic(make_patterns):
    small = make_patterns(12)
    assert still_picture(small) == still_picture(small.copy())
    assert base64.b64decode(still_picture(small)).startswith(b"\x89PNG")
