"""Settings of the documentation; `make docs` builds it into build/docs/html."""

import os
import shutil
import sys
from pathlib import Path
from zlib import crc32

import plotly

DOCS = Path(__file__).parent
ROOT = DOCS.parent
BUILD = ROOT / "build" / "docs"
sys.path[:0] = [str(ROOT), str(DOCS / "_ext")]

from probekit import __version__  # noqa: E402
from probekit.provenance import digest_sources  # noqa: E402

project = "probekit"
author = "the probekit authors"
release = __version__
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "live_pages",
    "mathml",
    "reference_tables",
]
exclude_patterns = ["_ext"]
nitpicky = False
smartquotes = False  # they turn the -- of an option into a dash

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Docstrings mark code with single backticks.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_default_options = {"members": True}
toc_object_entries = False  # the headings of the page name the same objects
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = "probekit"
html_static_path = ["_static", str(BUILD / "static")]
html_css_files = ["probekit.css"]
html_js_files = ["figures.js"]
html_copy_source = False
html_show_sourcelink = False
html_math_renderer = "mathml"
html_sidebars: dict[str, list[str]] = {"gallery": [], "index": []}
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
copyright = "the probekit authors, MIT licence"
copybutton_prompt_text = r">>> |\.\.\. "
copybutton_prompt_is_regexp = True

_START = (DOCS / "_ext" / "kernel_start.py").read_bytes()
# A notebook is executed again if its code, the code of the package or that of the kernel changes.
nb_execution_mode = "cache"
nb_execution_cache_path = str(BUILD / "notebooks" / f"{digest_sources()[:12]}-{crc32(_START):08x}")
nb_execution_raise_on_error = True
nb_execution_timeout = 600
nb_merge_streams = True
nb_output_stderr = "remove"  # progress


def _prepare_notebooks() -> None:
    """Create the folder in which notebooks run, and the settings of their kernel."""
    work, startup = BUILD / "work", BUILD / "ipython" / "profile_default" / "startup"
    for folder in (BUILD / "static", startup):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("data", "experiments"):
        shutil.copytree(ROOT / name, work / name, dirs_exist_ok=True)
    shutil.copy(DOCS / "_ext" / "kernel_start.py", startup)
    # Without it, each kernel logs a remark about its connection.
    (startup.parent / "ipython_kernel_config.py").write_text('c.Application.log_level = "ERROR"\n')
    script = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    shutil.copy(script, BUILD / "static")
    os.environ["IPYTHONDIR"] = str(BUILD / "ipython")
    os.environ["PROBEKIT_DOCS_WORK"] = str(work)
    os.environ["PROBEKIT_CACHE"] = str(work / "cache")
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    )


_prepare_notebooks()
