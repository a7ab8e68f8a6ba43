"""Stand-in of the branch `identify` until it is merged: the nearest site by relative error."""

from dataclasses import dataclass

import numpy as np
import torch

VERIFIED = "verified as"


@dataclass(frozen=True)
class Identified:
    name: str
    site: str
    sentence: str
    label: str


def identify(arrays, tokens, model, *, positions=-1, n_rows=32, seed=0):
    sites = [s for s in model.sites if model.sites.axes_of(s)[2:] == ("d_model",)]
    rows = []
    for ids, at in zip(tokens, positions, strict=True):
        _, cache = model.run_with_cache(torch.as_tensor(np.asarray(ids))[None], sites)
        rows.append({s: cache[s][0, at].float() for s in sites})
    found = {}
    for name, given in arrays.items():
        errors = {}
        for s in sites:
            y = torch.stack([r[s] for r in rows])
            errors[s] = float((given.float() - y).norm() / y.norm())
        best = min(errors, key=errors.get)
        claim = [name] if name in sites else []
        if claim and errors[name] <= errors[best] * 1.1:
            best = name
        ok = errors[best] < 0.02 and (not claim or best == claim[0])
        sentence = f"{best}; error {errors[best]:.2g}"
        found[name] = Identified(name, best, sentence, f"{VERIFIED} {best}" if ok else "differs")
    return found
