"""Formulas as MathML, which browsers draw without a script."""

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def _mathml(formula: str, **options: bool) -> str:
    r"""Return a formula with braces of normal size; browsers stretch them by default.

    >>> "<mo>{</mo>" in _mathml(r"\{i\}")
    False
    """
    text = tex2mathml(formula, **options)
    for brace in "{}":
        text = text.replace(f"<mo>{brace}</mo>", f'<mo stretchy="false">{brace}</mo>')
    return text


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(_mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f'<div class="formula">{_mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Add the renderer `mathml`."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
