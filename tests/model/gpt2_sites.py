"""The sites of GPT-2 by the number of layers alone."""

from probekit.model.families.gpt2 import SITES, GPT2Config
from probekit.model.sites.catalogue import layer_of
from probekit.model.sites.sites import Sites

__all__ = ["SITES", "describe", "expand", "layer_of", "select", "site_names", "sites_of"]


def sites_of(n_layers, axis_sizes=None):
    return Sites(SITES, GPT2Config().axis_sizes | (axis_sizes or {}) | {"n_layers": n_layers})


def site_names(n_layers, on_request=False):
    sites = sites_of(n_layers)
    return sites.names if on_request else sites.without_request


def describe(name):
    return sites_of(1).describe(name)


def expand(patterns, n_layers):
    return sites_of(n_layers).expand(patterns)


def select(patterns, n_layers, axis_sizes):
    return sites_of(n_layers, axis_sizes).select(patterns)
