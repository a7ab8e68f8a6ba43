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

`BasePass` keeps the pass of some texts, from which passes with edits start at the edited site. A
pass with an edit shares everything before the edit with the pass without it: earlier blocks and,
because attention is causal, the keys and values of earlier positions. It stops at the residual
stream of the measured position. A change of the tensor of a site that is a part of the residual
stream changes the stream linearly, so that the pass can start there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from probekit.errors import ConfigError, DataError
from probekit.model.generation import KeyValueCache
from probekit.model.network import Network
from probekit.model.passes.context import KeysValues, select_positions
from probekit.model.passes.inputs import TokenBatch
from probekit.model.passes.taps import Tap, part_features, remember, tap_parts
from probekit.model.proven.doors import BLIND
from probekit.model.proven.network import ProvenNetwork
from probekit.model.sites.catalogue import describe, layer_of
from probekit.model.sites.sites import SitePattern, SiteSelection

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
    return Edit(lambda _, given: given, rows.reshape(-1, rows.shape[-1]).double().mean(0), at)


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
    return np.where(sizes <= LEAST_ENTRY * sizes.max(axis=0, initial=0.0), 0.0, columns)


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


# Component -> the next residual stream that it is a part of. In parallel blocks resid_post follows
# attn_out; there is no resid_mid.
_ENTERS = {
    **dict.fromkeys(("embed", "pos_embed", "resid_pre"), "resid_pre"),
    **dict.fromkeys(("attn.z", "attn.result", "attn_out", "mixer_out", "resid_mid"), "resid_mid"),
    **dict.fromkeys(("mlp.post", "mlp_out", "resid_post"), "resid_post"),
}
_PER_HEAD_ONLY = "attn.result"  # each of its heads is as wide as the stream, which adds them
# Components that a norm, if the network has it, separates from the residual stream.
_NORMS = {"attn.z": "ln1_post", "attn.result": "ln1_post", "mlp.post": "ln2_post"}


@dataclass(frozen=True, eq=False)
class StreamEntry:
    """Where a tensor enters the residual stream.

    Attributes:
        layer: number of the block that reads the changed stream first; the number of blocks is the
            output of the last block.
        after_attention: whether only the MLP of that block reads the change.
        matrix: output matrix [d_model n_features] from the tensor to the stream; None is identity.
    """

    layer: int
    after_attention: bool
    matrix: Tensor | None = None

    def in_stream(self, change: Tensor) -> Tensor:
        """Return the change of the residual stream [... d_model] of a change [... n_features]."""
        return change if self.matrix is None else change @ self.matrix.to(change).T


def stream_entry(model: Network, selection: SiteSelection) -> StreamEntry | None:
    """Return where a site, head or neuron enters the residual stream.

    None if it does not enter linearly, and for all heads of attn.result, which have no one matrix.

    >>> from probekit import GPT2
    >>> entry = stream_entry(
    ...     GPT2.from_pretrained("mini"), SiteSelection("blocks.2.attn.hook_z", head=1)
    ... )
    >>> entry.layer, entry.after_attention, entry.matrix.shape
    (2, True, torch.Size([256, 64]))
    """
    component = describe(selection.site).component
    stream = _stream_after(model, selection.site)
    if stream is None or (component == _PER_HEAD_ONLY and selection.head is None):
        return None
    layer = layer_of(selection.site) or 0  # embeddings enter block 0
    matrix: Tensor | None = None
    if component == "mlp.post":
        matrix, neuron = model.mlp_output(layer), selection.neuron
        matrix = matrix if neuron is None else matrix[:, neuron : neuron + 1]
    elif component == "attn.z":
        (matrix, _), head = model.head_output(layer), selection.head  # without the bias
        size = model.axis_sizes["d_head"]
        matrix = matrix if head is None else matrix[:, head * size : (head + 1) * size]
    reader = layer + 1 if stream == "resid_post" else layer
    return StreamEntry(reader, after_attention=stream == "resid_mid", matrix=matrix)


def linear_entry(model: Network, selection: SiteSelection) -> StreamEntry:
    """Return where a site enters the residual stream.

    Raises:
        ConfigError: its tensor is not a part of the residual stream.
    """
    entry = stream_entry(model, selection)
    if entry is None:
        of_layer = {site.name: site.name.format(l=0) for site in model.sites.rows}
        allowed = [name for name, site in of_layer.items() if _stream_after(model, site)]
        raise ConfigError(
            f"{selection.text} is not a part of the residual stream. Allowed: "
            f"{', '.join(allowed)}; of hook_result a single head."
        )
    return entry


def _stream_after(model: Network, site: str) -> str | None:
    """Return the next residual stream that a site is a part of.

    None if it is not a part of the stream, or if a norm separates it from the stream.
    """
    component = describe(site).component
    stream = _ENTERS.get(component)
    if isinstance(model, ProvenNetwork):
        return model.stream_after(site) if stream else None
    if component in _NORMS and f"blocks.0.{_NORMS[component]}.hook_scale" in model.sites:
        return None
    if stream == "resid_mid" and "blocks.0.hook_resid_mid" not in model.sites:
        return "resid_post"
    return stream


BATCH_BYTES = 256 << 20  # working memory of one batch of edited passes
STREAM_TENSORS = 16  # number of tensors as wide as d_model that a pass needs for each position
# Streams, and the keys and values that attention reads; not all networks have all of them. Of the
# two sites of keys, the first one that a network has is read.
_STREAMS = ("hook_resid_pre", "hook_resid_mid")
_KEYS, _VALUES = ("attn.hook_rot_k", "attn.hook_k"), "attn.hook_v"


@dataclass(frozen=True, eq=False)
class BasePass:
    """The pass of some texts without edits, and passes that differ from it by an edit.

    Attributes:
        model: the network.
        batch: the texts.
        measured: position of each text whose logits are measured, shape [batch].
        values: activations of the kept sites.
        final: residual stream after the last block at the measured positions, [batch d_model].

    >>> from probekit import GPT2, Tokenizer
    >>> model, tokenizer = GPT2.from_pretrained("mini"), Tokenizer.from_pretrained("mini")
    >>> batch = tokenizer.batch(["The keys", "The old keys"], bos=False, side="right")
    >>> kept, site = BasePass.keep(model, batch), SiteSelection("blocks.3.hook_resid_post")
    >>> entry, change = stream_entry(model, site), torch.zeros(2, 256)
    >>> final = kept.shifted(entry, lambda passes: change[passes], torch.arange(2), kept.measured)
    >>> torch.allclose(final, kept.final, atol=1e-4)
    True
    """

    model: Network
    batch: TokenBatch
    measured: Tensor
    values: dict[str, Tensor]
    final: Tensor
    # Caches of some texts up to a position, of a network that transformers computes.
    _prefixes: dict[tuple[int, ...], KeyValueCache | None] = field(default_factory=dict)

    @classmethod
    def keep(
        cls,
        model: Network,
        batch: TokenBatch,
        measured: Tensor | None = None,
        sites: Sequence[str] = (),
    ) -> BasePass:
        """Return the pass of a batch.

        Args:
            model: the network.
            batch: the texts.
            measured: position of each text whose logits are measured, shape [batch]; None means the
                last token.
            sites: names of further sites whose activations are kept.

        Raises:
            ConfigError: the network is spread over several devices.
        """
        model.check_one_device()
        batch = batch.to(model.device)
        n_layers = model.axis_sizes["n_layers"]
        last = f"blocks.{n_layers - 1}.hook_resid_post"
        names = list(_STREAMS)
        if not isinstance(model, ProvenNetwork):  # whose passes start at the tokens
            names += [_key_site(model), _VALUES]
        of_blocks = [f"blocks.{layer}.{name}" for layer in range(n_layers) for name in names]
        of_blocks = [site for site in of_blocks if site in model.sites]
        with torch.no_grad():
            _, cache = model.run_with_cache(batch, [*of_blocks, last, *sites], logits=False)
        values = dict(cache)
        columns = torch.arange(batch.mask.shape[1], device=model.device)
        if measured is None:
            measured = (batch.mask * columns).argmax(1)
        measured = measured.to(model.device)
        final = values[last][torch.arange(len(batch), device=model.device), measured]
        return cls(model, batch, measured, values, final)

    @staticmethod
    def bytes_kept(
        sizes: Mapping[str, int], n_texts: int, n_positions: int, n_sites: int = 0
    ) -> int:
        """Return the memory of a kept pass, with `n_sites` further sites as wide as d_model.

        `sizes` are those of the axes of the network.
        """
        # Streams, keys and values of each block, the output of the last block, and the activations
        # at its measured positions, all in float32.
        tensors = (len(_STREAMS) + 2) * sizes["n_layers"] + 2 + n_sites
        return tensors * n_texts * n_positions * sizes["d_model"] * 4

    def value(self, selection: SiteSelection) -> Tensor:
        """Return the kept value of a site, head or neuron, shape [batch pos n_features]."""
        return part_features(self.model.sites, self.values[selection.site], selection)

    def stream(self, entry: StreamEntry) -> Tensor:
        """Return the residual stream [batch pos d_model] that an entry would change."""
        n_layers = self.model.axis_sizes["n_layers"]
        if entry.layer == n_layers:
            return self.values[f"blocks.{n_layers - 1}.hook_resid_post"]
        name = "hook_resid_mid" if entry.after_attention else "hook_resid_pre"
        return self.values[f"blocks.{entry.layer}.{name}"]

    def shifted(
        self,
        entry: StreamEntry,
        change: Callable[[Tensor], Tensor],
        rows: Tensor,
        columns: Tensor | None = None,
    ) -> Tensor:
        """Return the final residual stream [n d_model] after changes.

        Args:
            entry: where the residual stream changes.
            change: function of the ascending numbers of some passes that returns their changes,
                shape [n_passes pos d_model], or [n_passes d_model] with `columns`.
            rows: text of each pass, shape [n].
            columns: position of each change, shape [n]; None changes all positions.
        """
        first = torch.zeros_like(rows) if columns is None else columns
        width, d_model = self.batch.ids.shape[1], self.model.axis_sizes["d_model"]
        size = max(1, BATCH_BYTES // (4 * STREAM_TENSORS * width * d_model))
        # The passes of a batch change and measure the same positions, so that none computes more
        # than these, and none is padded at its end.
        extents = first.to(rows.device) * width + self.measured[rows]
        final = self.final[rows]
        for extent in torch.unique(extents).tolist():
            changed, measured = divmod(extent, width)
            start, end = min(changed, measured), measured + 1
            for passes in torch.split((extents == extent).nonzero()[:, 0], size):
                stream = self.stream(entry)[rows[passes], start:end].clone()
                added = change(passes).to(stream)
                if columns is None:
                    stream += added[:, :end]
                elif changed < end:  # later positions do not affect the measured one
                    stream[:, changed - start] += added
                final[passes] = self._resumed(entry, stream, rows[passes], start, end)
        return final

    def tapped(self, selection: SiteSelection, tap: Tap) -> Tensor:
        """Return the final residual stream [batch d_model] of all texts with a tap at a site.

        Raises:
            ConfigError: the site is not in a block.
        """
        layer = layer_of(selection.site)
        if layer is None:
            raise ConfigError(
                f"{selection.text} is outside the blocks. Use `run_edited` for this site, or edit "
                "a site of a block."
            )
        if isinstance(self.model, ProvenNetwork):
            return self._rerun([(selection, tap)], slice(None), self.batch.ids.shape[1])
        composed = compose(self.model, [(selection, tap)])
        stream = self.values[f"blocks.{layer}.hook_resid_pre"]
        # `at` restricts the last block to these positions, but an edit in it needs all of them.
        is_last = layer == self.model.axis_sizes["n_layers"] - 1
        at = None if is_last else self.measured[:, None]
        with torch.no_grad():
            final: Tensor = self.model.resume(
                stream, layer, mask=self._mask(slice(None), stream.shape[1]),
                at=at, tap=composed, sites=composed.sites,
            )  # fmt: skip
        rows = torch.arange(len(final), device=final.device)
        return final[rows, self.measured] if is_last else final[:, 0]

    def _resumed(
        self, entry: StreamEntry, stream: Tensor, rows: Tensor, start: int, end: int
    ) -> Tensor:
        """Return the final stream of passes that start with `stream` at positions start to end."""
        if isinstance(self.model, ProvenNetwork):
            if entry.layer == self.model.config.n_layers:
                return select_positions(stream, (self.measured[rows] - start)[:, None])[:, 0]

            def write(_: str, value: Tensor) -> Tensor:
                value[:, start - end :] = stream  # all of a pass over the last token
                return value

            name = "hook_resid_mid" if entry.after_attention else "hook_resid_pre"
            changes = [(f"blocks.{entry.layer}.{name}", write)]
            found = self._after_prefix(changes, rows, start) if end == start + 1 else None
            return self._rerun(changes, rows, end) if found is None else found
        before: list[KeysValues | None] | None = None
        if start:  # later blocks read the keys and values of earlier positions
            key_site, n_layers = _key_site(self.model), self.model.axis_sizes["n_layers"]
            before = [None] * entry.layer
            for layer in range(entry.layer, n_layers):
                keys = self.values[f"blocks.{layer}.{key_site}"][:, :start]
                values = self.values[f"blocks.{layer}.{_VALUES}"][:, :start]
                before.append((keys[rows], values[rows]))
        with torch.no_grad():
            final: Tensor = self.model.resume(
                stream, entry.layer, after_attention=entry.after_attention,
                mask=self._mask(rows, end), before=before,
                at=(self.measured[rows] - start)[:, None],
            )  # fmt: skip
        return final[:, 0]

    def _after_prefix(self, changes: Sequence[EditAt], rows: Tensor, start: int) -> Tensor | None:
        """Return the final stream of passes over one token, with edits, after the tokens before it.

        None if caches of the network cannot be copied, or steps with them are not proven.
        """
        model, texts = self.model, torch.unique(rows)
        key = start, *texts.tolist()
        if key not in self._prefixes:
            begun = KeyValueCache()
            every = torch.arange(len(texts), device=rows.device)
            ids, mask = self.batch.ids[texts, :start], self._mask(texts, start)
            is_padded = mask is not None
            is_possible = bool(start) and model.continues(KeyValueCache, is_padded=is_padded)
            with torch.no_grad():
                if is_possible:
                    model(ids, mask, past=begun)
                    copied = model.forked(begun, every)
                    is_possible = copied is not None and self._agrees(copied, texts, start)
            self._prefixes.clear()  # saves memory; passes of one start follow each other
            self._prefixes[key] = begun if is_possible else None
        past = self._prefixes[key]
        copied = None if past is None else model.forked(past, torch.searchsorted(texts, rows))
        return None if copied is None else self._last_token(changes, copied, rows, start)

    def _agrees(self, past: KeyValueCache, texts: Tensor, start: int) -> bool:
        """Return whether a pass over one token gives the stream of the pass without edits."""
        model, last = self.model, self._last_site
        expected = self.values[last][texts, start]
        gap = (self._last_token([], past, texts, start) - expected).norm(dim=-1)
        limit = min(model.passes.limits[last], BLIND)
        return bool((gap <= limit * expected.norm(dim=-1)).all())

    def _last_token(
        self, changes: Sequence[EditAt], past: KeyValueCache, rows: Tensor, start: int
    ) -> Tensor:
        """Return the final stream of passes over one token, with edits, after those in a cache."""
        values: dict[str, Tensor] = {}
        tap = compose(self.model, [*changes, (self._last_site, remember(values))])
        with torch.no_grad():
            self.model(self.batch.ids[rows, start, None], None, tap, tap.sites, past=past)
        return values[self._last_site][:, 0]

    @property
    def _last_site(self) -> str:
        return f"blocks.{self.model.axis_sizes['n_layers'] - 1}.hook_resid_post"

    def _rerun(self, changes: Sequence[EditAt], rows: Tensor | slice, end: int) -> Tensor:
        """Return the final stream of passes over whole texts, up to a position, with edits."""
        values: dict[str, Tensor] = {}
        tap = compose(self.model, [*changes, (self._last_site, remember(values))])
        mask = self._mask(rows, end)
        with torch.no_grad():
            self.model(self.batch.ids[rows, :end], mask, tap, tap.sites, logits=False)
        return select_positions(values[self._last_site], self.measured[rows][:, None])[:, 0]

    def _mask(self, rows: Tensor | slice, end: int) -> Tensor | None:
        """Return the mask of texts up to a position; None if it has no padding."""
        mask = self.batch.mask[rows, :end]
        return None if bool(mask.all()) else mask


def _key_site(model: Network) -> str:
    """Return the name, within a block, of the keys that attention reads."""
    return next(name for name in _KEYS if f"blocks.0.{name}" in model.sites)
