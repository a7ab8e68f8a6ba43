"""What the explorer shows after clicks, keys and URLs, step by step."""

import pytest

SIDE = "label:has([name=view][value=side])"
SESSIONS = {
    "heads open by click and by arrow keys": (
        "scored",
        "click(head('Layer 5, head 8'))",
        "press('ArrowDown ArrowDown ArrowLeft')",
    ),
    "pointing at a cell names it, and the future is masked": ("scored", "cell(2, 1)", "cell(1, 3)"),
    "keys move over cells and pin": (
        "scored",
        "focus('.matrix')",
        "press('ArrowDown ' * 9 + 'ArrowRight ArrowRight ArrowUp')",
        "press('Enter')",
        "hash()",
        "press('Enter', shift=True)",
    ),
    "a click pins and Escape unpins": (
        "scored",
        "click(token(3))",
        "point(token(1))",
        "point('h1')",
        "hash()",
        "press('Escape')",
        "hash()",
        "cell(4, 2, click=True, shift=True)",
    ),
    "tokens are reached by keys": (
        "scored",
        "focus('.token')",
        "press('ArrowRight ArrowRight')",
        "press('ArrowLeft End')",
    ),
    "heads are sorted and filtered by a score": (
        "scored",
        "control('score', 'induction')",
        "control('order', 'low')",
        "control('low', '0.5')",
        "focus('.grid button')",
        "press('ArrowRight')",
        "control('order', 'layer')",
    ),
    "a filter keeps the heads whose shown score passes": (
        "rounded",
        "control('score', 'induction')",
        "control('low', '0.5')",
        "control('high', '0.5')",
        "control('low', '0.51')",
        "control('high', '0.51')",
    ),
    "prompts side by side share the hovered cell": (
        "scored",
        f"click('{SIDE}')",
        "cell(4, 1, view=1)",
        "click('.pick:nth-child(2) .letter')",
        "click(head('Layer 7, head 8'))",
    ),
    "texts of different lengths have no difference and an explanation": (
        "scored",
        "go('head=0.2.0&other=2.2.0&view=difference')",
        "go('head=0.2.0&other=2.2.0&view=side')",
    ),
    "an invalid URL fragment shows the opening head": (
        "scored",
        "load('head=9.9.9')",
        "hash()",
        "load('head=0.2.9&view=x&picture=p&scale=y&zoom=z&box=4-2.0-1&score=none&pin=row.77')",
        "hash()",
        "load('head=&pin=row.-1')",
        "hash()",
        "load('%')",
    ),
    "the largest weight leaves out the first token on itself": (
        "short",
        "go('head=0.1.2')",
        "go('head=0.1.2&pin=column.0')",
        "go('head=0.1.2&pin=row.0')",
    ),
    "the reason is given for the opening head only, and the order is named": (
        "short",
        "go('head=1.0.0')",
        "go('head=0.2.1')",
        "control('score', 'beyond_average')",
        "control('order', 'low')",
        "control('order', 'layer')",
    ),
    **{
        f"the order of heads is named only where it is true: {name}": (
            name,
            "control('score', 'beyond_average')",
            "control('order', 'layer')",
        )
        for name in ("one layer", "one head", "alone")
    },
    "file names begin with the words that tell the texts apart": (
        "short",
        "go('head=0.1.mean')",
        "save('svg')",
        "go('head=1.1.2')",
        "save('svg')",
        "go('head=0.1.0&other=0.1.2&view=difference')",
        "save('svg')",
    ),
    "a page with a single head in all gives no reason and names its file by the text": (
        "alone",
        "save('svg')",
    ),
    "a page of two tokens without words gives no reason": ("two tokens", "save('svg')"),
}


@pytest.mark.parametrize("name", SESSIONS)
def test_a_reader_sees(name, show, tmp_path, snapshot):
    page, *steps = SESSIONS[name]
    explorer = show(page, "head=0.2.0" if page == "scored" else "")
    explorer.browser.download_to(tmp_path)
    text = explorer.follow(steps)
    saved = sorted(path.name for path in tmp_path.iterdir())
    assert "\n".join([text, *(f"saved: {name}" for name in saved)]) == snapshot
