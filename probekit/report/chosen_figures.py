"""Moved to `probekit.report.figures.chosen_figures`; this path works for one more release."""

from probekit.moved import moved

__getattr__ = moved(__name__, "probekit.report.figures.chosen_figures")
