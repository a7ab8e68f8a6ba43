"""Edits: plain functions that return taps which change activations, and passes with them.

    zero         replace by zero
    mean         replace by the mean of given activations
    replace      replace by given activations, as in activation patching
    add          add a vector, as in steering
    project_out  remove the component along directions, or replace it by that of a mean
    swap         replace the component along directions by that of other activations

Every edit takes `at`, the positions that it changes; other positions keep their values. The edits
work at any site. `compose` turns several of them, each at a site such as
`blocks.5.attn.hook_z[head=2]`, into one tap; `run_edited` runs a model with them. A tap is an
argument of the forward pass, so nothing stays in the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.network import Network
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import Tap, tap_parts
from probekit.model.sites.catalogue import describe
from probekit.model.sites.sites import SitePattern

# Relative to the largest singular value: smaller ones are float32 rounding errors.
LEAST_SIZE = 1e-5
LEAST_ENTRY = 1e-12  # relative to the largest entry of a direction

# Features of a site and given activations, shape [batch pos n_features] each, to new features.
Change = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Edit:
    """A tap that changes the features of a site at some positions.

    Heads and their features count as the features of a position. For attention scores and patterns
    the positions are those of the queries.

    Attributes:
        change: function of the features and the given activations [batch pos n_features].
        given: activations that the change uses, of the shape of the site, [batch 1 n_features] for
            the same at all positions of a row, [pos n_features] for the same in all rows, or
            [n_features]; None if it uses none.
        at: positions that are changed: a mask [batch pos], or indices [batch] or [batch n_at]; None
            means all.
    """

    change: Change
    given: Tensor | None = None
    at: Tensor | None = None

    def __call__(self, site: str, value: Tensor) -> Tensor:
        """Return the changed value of a site.

        Raises:
            DataError: positions or given activations do not fit the value of the site.
        """
        by_query = value.ndim == 4 and "key_pos" in describe(site).axes
        rows = value.transpose(1, 2) if by_query else value  # [batch pos ...]
        flat = rows.reshape(*rows.shape[:2], -1)  # a neuron is one feature
        given = self.given
        if given is not None and given.ndim == value.ndim:
            given = given.transpose(1, 2) if by_query else given
            given = given.reshape(*given.shape[:2], -1)
        try:
            # A change that uses no given activations ignores them.
            given = flat if given is None else given.to(flat)
            flat_given = given.flatten(2) if given.ndim > 2 else given
            # Axes are compared from the last one on, as in broadcasting.
            sizes = zip(flat_given.shape[::-1], flat.shape[::-1], strict=False)
            can_expand = all(size in (needed, 1) for size, needed in sizes)
            # Another number of texts, such as 1, or one feature would expand, but is a mistake.
            is_other_batch = flat_given.ndim == flat.ndim and len(flat_given) != len(flat)
            if is_other_batch or not can_expand or flat_given.shape[-1] != flat.shape[-1]:
                raise DataError(
                    f"the given activations have shape {tuple(given.shape)}, but the site has "
                    f"{tuple(flat.shape)} (rows, positions, features). Give that shape, or a "
                    f"vector of {flat.shape[-1]} features."
                )
            changed = self.change(flat, flat_given.expand_as(flat)).to(flat.dtype)
        except DataError as error:
            raise DataError(f"{site}: {error}") from error
        if self.at is not None:
            changed = torch.where(position_mask(self.at, flat)[..., None], changed, flat)
        changed = changed.reshape(rows.shape)
        return changed.transpose(1, 2) if by_query else changed


def position_mask(at: Tensor, value: Tensor) -> Tensor:
    """Return the positions as a mask [batch pos] for a value [batch pos ...].

    >>> position_mask(torch.tensor([2, 0]), torch.zeros(2, 3, 5)).int().tolist()
    [[0, 0, 1], [1, 0, 0]]

    Raises:
        DataError: the positions have another shape than the value, or are out of range.
    """
    shape = value.shape[:2]
    at = _numbers(at, "the positions `at`").to(value.device)
    if at.dtype == torch.bool:
        if at.shape != shape:
            raise DataError(
                f"The mask of positions has shape {tuple(at.shape)}, but the activations have "
                f"{shape[0]} rows of {shape[1]} positions. Give a mask of that shape."
            )
        return at
    if at.is_floating_point() or at.ndim not in (1, 2) or len(at) != shape[0]:
        raise DataError(
            f"The positions have shape {tuple(at.shape)} and dtype {at.dtype}. Give integers of "
            f"shape [{shape[0]}] or [{shape[0]} n_at], or a mask of shape {tuple(shape)}."
        )
    at = at.reshape(len(at), -1)
    outside = (at < 0) | (at >= shape[1])
    if bool(outside.any()):
        row = int(outside.any(1).int().argmax())
        raise DataError(
            f"Position {int(at[row][outside[row]][0])} of row {row} is outside its {shape[1]} "
            f"positions. Allowed: 0 to {shape[1] - 1}."
        )
    return torch.zeros(shape, dtype=torch.bool, device=value.device).scatter_(1, at, True)


def zero(at: Tensor | None = None) -> Edit:
    """Return a tap that replaces activations by zero.

    Zero is far from most activations; `mean` is the more neutral replacement.

    >>> zero(torch.tensor([1]))("hook_embed", torch.ones(1, 2, 3)).tolist()
    [[[1.0, 1.0, 1.0], [0.0, 0.0, 0.0]]]
    """
    return Edit(lambda x, _: torch.zeros_like(x), at=at)


def mean(of: Tensor, at: Tensor | None = None) -> Edit:
    """Return a tap that replaces activations by the mean of the rows `of` [... n_features].

    >>> mean(torch.tensor([[1.0], [3.0]]))("hook_embed", torch.zeros(1, 1, 1)).tolist()
    [[[2.0]]]
    """
    rows = _numbers(of, "the rows of `mean`")
    average = rows.reshape(-1, rows.shape[-1]).double().mean(0)
    return Edit(lambda _, given: given, average, at)


def replace(values: Tensor, at: Tensor | None = None) -> Edit:
    """Return a tap that replaces activations by other values.

    Args:
        values: values of the shape of the site, for example those of another pass, or a vector
            [n_features].
        at: positions that are changed.

    >>> other = torch.tensor([[[5.0], [6.0]]])
    >>> replace(other, torch.tensor([1]))("hook_embed", torch.zeros(1, 2, 1)).tolist()
    [[[0.0], [6.0]]]
    """
    return Edit(lambda _, given: given, _numbers(values, "the values of `replace`"), at)


def add(vector: Tensor, at: Tensor | None = None) -> Edit:
    """Return a tap that adds a vector [n_features], or one for each row [batch n_features].

    >>> add(torch.tensor([1.0, 2.0]))("hook_embed", torch.ones(1, 1, 2)).tolist()
    [[[2.0, 3.0]]]
    """
    given = _numbers(vector, "the vector of `add`")
    given = given[:, None] if given.ndim == 2 else given  # the same at all positions of a row
    return Edit(lambda x, added: x + added, given, at)


def orthonormal_basis(directions: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return an orthonormal basis (n_features, rank) of the span of directions (n, n_features).

    The directions may be linearly dependent, like those of several classes.

    Raises:
        DataError: all directions are zero, or they are not a matrix of finite numbers.

    >>> orthonormal_basis(np.array([[2.0, 0.0], [-4.0, 0.0]])).round(6).tolist()
    [[1.0], [0.0]]
    """
    matrix = np.asarray(directions, np.float64)
    if matrix.ndim != 2 or not np.isfinite(matrix).all():
        raise DataError(
            f"directions have shape {matrix.shape}. Give finite numbers of shape (n, n_features)."
        )
    _, sizes, rows = np.linalg.svd(matrix, full_matrices=False)
    is_direction = sizes > LEAST_SIZE * sizes.max(initial=0.0)
    if not is_direction.any():
        raise DataError("All directions are zero, so they span nothing. Give other directions.")
    basis: NDArray[np.float64] = rows[is_direction].T
    # A basis vector and its negative span the same; one of them makes results reproducible.
    largest = np.abs(basis).argmax(axis=0)
    return without_rounding(basis * np.sign(basis[largest, np.arange(basis.shape[1])]))


def without_rounding(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return columns whose rounding errors next to large entries are exactly 0.

    Otherwise an edit writes tiny copies of what it removes into features that are constant, and a
    probe on standardised features reads them.

    >>> without_rounding(np.array([[1.0], [1e-18]])).tolist()
    [[1.0], [0.0]]
    """
    sizes = np.abs(columns)
    small = sizes <= LEAST_ENTRY * sizes.max(axis=0, initial=0.0)
    return np.where(small, 0.0, columns)


def project_out(
    directions: NDArray[np.floating], at: Tensor | None = None, *, mean: Tensor | None = None
) -> Edit:
    """Return a tap that removes the component of activations along directions.

    Args:
        directions: shape (n, n_features); they may be linearly dependent.
        at: positions that are changed.
        mean: activations [n_features] whose component replaces the removed one; None means zero.

    Raises:
        DataError: all directions are zero, or they are not a matrix of finite numbers. The tap
            raises it for a site with another number of features.

    >>> tap = project_out(np.array([[2.0, 0.0]]), mean=torch.tensor([1.0, 1.0]))
    >>> tap("hook_embed", torch.tensor([[[3.0, 4.0]]])).tolist()
    [[[1.0, 4.0]]]
    """
    basis = torch.from_numpy(orthonormal_basis(directions))

    if mean is None:
        return Edit(lambda x, _: x - _along(basis, x), at=at)
    return Edit(lambda x, given: x - _along(basis, x - given), mean, at)


def swap(directions: NDArray[np.floating], values: Tensor, at: Tensor | None = None) -> Edit:
    """Return a tap that replaces the component along directions by that of other activations.

    Args:
        directions: shape (n, n_features); they may be linearly dependent.
        values: activations of the shape of the site, or a vector [n_features].
        at: positions that are changed.

    Raises:
        DataError: all directions are zero, or they are not a matrix of finite numbers. The tap
            raises it for a site with another number of features.

    >>> tap = swap(np.array([[1.0, 0.0]]), torch.tensor([[[7.0, 8.0]]]))
    >>> tap("hook_embed", torch.tensor([[[3.0, 4.0]]])).tolist()
    [[[7.0, 4.0]]]

    Source: Geiger et al. (2024), Finding alignments between interpretable causal variables and
    distributed neural representations (interchange interventions in a subspace).
    """
    basis = torch.from_numpy(orthonormal_basis(directions))
    given = _numbers(values, "the values of `swap`")
    return Edit(lambda x, given: x + _along(basis, given - x), given, at)


def _numbers(values: object, name: str) -> Tensor:
    """Return numbers as a tensor.

    Raises:
        DataError: they are no numbers, none at all, not finite, or a single number without axes.
    """
    try:
        found = values if isinstance(values, Tensor) else torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name} must be a tensor of numbers, not {values!r:.60}.") from error
    if not found.numel() or not found.ndim or not bool(found.isfinite().all()):
        raise DataError(
            f"{name} must be finite numbers with an axis of features; given: shape "
            f"{tuple(found.shape)}, {int((~found.isfinite()).sum())} not finite."
        )
    return found


def _along(basis: Tensor, x: Tensor) -> Tensor:
    """Return the component of x [... n_features] in the span of a basis (n_features, rank)."""
    if len(basis) != x.shape[-1]:
        raise DataError(
            f"the site has {x.shape[-1]} features, but the directions have {len(basis)}. Give "
            f"directions of shape (n, {x.shape[-1]}), or edit the site of the probe."
        )
    span = basis.to(x)
    return x @ span @ span.T


# A site and the tap that edits it, such as `("blocks.5.attn.hook_z[head=2]", zero())`.
EditAt = tuple[SitePattern, Tap]


@dataclass(frozen=True, eq=False)
class ComposedTap:
    """A tap that applies several taps in the order in which they were given.

    Attributes:
        steps: taps at whole sites, each with the names of its sites.
        reached: sites that a pass has called this tap for.
    """

    steps: tuple[tuple[frozenset[str], Tap], ...]
    reached: set[str] = field(default_factory=set)

    @property
    def sites(self) -> list[str]:
        """Names of all sites of the taps."""
        return sorted(frozenset().union(*(sites for sites, _ in self.steps)))

    def __call__(self, site: str, value: Tensor) -> Tensor:
        """Return the value of a site after all of its taps."""
        self.reached.add(site)
        for sites, tap in self.steps:
            if site in sites:
                value = tap(site, value)
        return value

    def check_reached(self) -> None:
        """Validate that a pass has reached every site.

        Raises:
            ConfigError: a site was not reached, so its edits had no effect.
        """
        missed = [site for site in self.sites if site not in self.reached]
        if missed:
            raise ConfigError(
                f"The forward pass did not reach {missed[0]}, so its edit had no effect. Edit a "
                "site that this pass computes."
            )


def compose(model: Network, edits: Sequence[EditAt]) -> ComposedTap:
    """Return one tap that applies edits in the given order.

    Args:
        model: the network.
        edits: pairs of a site and a tap. The site is a name, glob or shorthand, or a head or neuron
            such as `blocks.*.attn.hook_z[head=2]`, whose tap receives [batch pos d_head].

    Raises:
        UnknownNameError: a pattern matches no site.
        ConfigError: there are no edits, one is not a pair of a site and a tap, or the site has no
            such head or neuron.

    >>> from probekit import GPT2
    >>> model = GPT2.from_pretrained("mini")
    >>> compose(model, [("blocks.*.attn.hook_z[head=2]", zero())]).sites[:2]
    ['blocks.0.attn.hook_z', 'blocks.1.attn.hook_z']
    """
    if not edits:
        raise ConfigError("There are no edits. Give at least one pair of a site and a tap.")
    steps = []
    for edit in edits:
        if not isinstance(edit, tuple | list) or len(edit) != 2 or not callable(edit[1]):
            raise ConfigError(
                f"An edit is {edit!r:.60}. Give pairs of a site and a tap, such as "
                '("blocks.2.hook_mlp_out", zero()).'
            )
        where, tap = edit
        parts = model.sites.select([where])
        steps.append((frozenset(part.site for part in parts), tap_parts(model.sites, tap, parts)))
    return ComposedTap(tuple(steps))


def run_edited(
    model: Network,
    tokens: Tensor | TokenBatch,
    edits: Sequence[EditAt],
    *,
    mask: Tensor | None = None,
    at: Tensor | None = None,
) -> Tensor:
    """Return the logits, shape [batch pos d_vocab], of a pass with edits.

    Args:
        model: the network.
        tokens: token ids, shape [batch pos], or a `TokenBatch`.
        edits: pairs of a site and a tap; see `compose`.
        mask: True at tokens, False at padding, shape [batch pos].
        at: positions of the logits, shape [batch n_at]; see `Network.forward`.

    >>> import torch
    >>> from probekit import GPT2
    >>> model, tokens = GPT2.from_pretrained("mini"), torch.tensor([[5, 6, 7]])
    >>> edited = run_edited(model, tokens, [("blocks.2.hook_mlp_out", zero())])
    >>> torch.equal(edited, model(tokens))
    False

    Raises:
        ConfigError: a site was not reached; see also `compose`.
    """
    tap = compose(model, edits)
    logits: Tensor = model(tokens, mask, tap, tap.sites, at=at)
    tap.check_reached()
    return logits
