"""Moved to `probekit.pipeline.look.lenses`; this path works for one more release."""

from probekit.moved import moved

__getattr__ = moved(__name__, "probekit.pipeline.look.lenses", {"Network": "ModelAndTokenizer"})
