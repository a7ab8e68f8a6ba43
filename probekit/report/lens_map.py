"""Moved to `probekit.report.maps.lens_map`; this path works for one more release."""

from probekit.moved import moved

__getattr__ = moved(__name__, "probekit.report.maps.lens_map")
