"""Files next to a vocabulary: each key that can change the ids of a text is read, or refused."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from probekit.errors import CheckpointError
from probekit.model.weights.files import json_object

SETTINGS, NAMED, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"

# Keys that are read: here, or by the tokenizers; then those of names, lengths, padding, decoding
# and loading, which do not change the ids of a text.
_KEYS = (
    "add_bos_token add_eos_token add_prefix_space added_tokens_decoder additional_special_tokens "
    "chat_template extra_special_tokens model_specific_special_tokens split_special_tokens "
    "auto_map backend clean_up_tokenization_spaces device_map errors from_slow init_inputs "
    "is_local legacy local_files_only max_length model_input_names model_max_length name_or_path "
    "pad_to_multiple_of padding padding_side processor_class response_schema "
    "return_token_type_ids sp_model_kwargs spaces_between_special_tokens special_tokens_map_file "
    "stride tokenizer_class tokenizer_file tokenizer_type transformers_version trust_remote_code "
    "truncation truncation_side truncation_strategy use_default_system_prompt use_fast verbose "
    "vocab_size"
)
_KNOWN = frozenset(_KEYS.split())


@dataclass(frozen=True)
class TokenizerSettings:
    """Entries of tokenizer_config.json and special_tokens_map.json, and of added_tokens.json.

    Attributes:
        entries: the entries of the first two.
        added: id of each added token, as a text or a number.
        described: entry of each token in `added_tokens_decoder`.
        folder: the folder, for messages.
    """

    entries: Mapping[str, Any]
    added: Mapping[str, Any]
    described: Mapping[str, Mapping[str, Any]]
    folder: Path

    @classmethod
    def read(cls, files: Mapping[str, bytes], folder: Path, refused: str = "") -> TokenizerSettings:
        """Return the settings in files, given by name; those that are absent have no entries.

        Raises:
            CheckpointError: a file is damaged, two of them disagree, or a key is unknown or is the
                one that the tokenizer does not support, `refused`.
        """
        entries, named, added = (
            json_object(folder / name, files.get(name, b"{}")) for name in (SETTINGS, NAMED, ADDED)
        )
        for key, value in named.items():
            if _texts(entries.setdefault(key, value)) != _texts(value):
                raise CheckpointError(
                    f"{folder / NAMED}: {key} is {value!r}, but {entries[key]!r} in {SETTINGS}. "
                    "Correct one of them."
                )
        unknown = [
            key
            for key, value in entries.items()
            if value
            and (key == refused or (key not in _KNOWN and not re.search("^_|_token$|_id$", key)))
        ]
        if unknown:
            raise CheckpointError(
                f"{folder / SETTINGS}: keys that are not supported, and may change the tokens of a "
                f"text: {', '.join(unknown)}. If they do not, remove them in a copy of the folder."
            )
        decoder, described = entries.get("added_tokens_decoder"), {}
        if isinstance(decoder, dict):
            added |= {text: number for number in decoder for text in _texts(decoder[number])}
            described = _tokens(list(decoder.values()))
        return cls(entries, added, described, folder)

    def text(self, key: str, default: str | None = None) -> str | None:
        """Return a text, such as that of `bos_token`, which may be an object with `content`.

        Raises:
            CheckpointError: it is something else.
        """
        value = self.entries.get(key, default)
        is_list = isinstance(value, list) and all(isinstance(entry, dict) for entry in value)
        if is_list and key == "chat_template":  # several by name; without a default there is none
            defaults = [entry for entry in value if entry.get("name") == "default"]
            value = defaults[0].get("template") if defaults else None
        text = value.get("content", value) if isinstance(value, dict) else value
        if text is not None and not isinstance(text, str):
            raise CheckpointError(
                f"{self.folder / SETTINGS}: {key} is {value!r}. Allowed: null, a text, or an "
                "object with a text as its `content`."
            )
        return text

    @property
    def tokens(self) -> dict[str, str]:
        """The text of each token that has a key of its own, such as `bos_token`."""
        texts = {key: _texts(self.entries[key]) for key in self.entries if key.endswith("_token")}
        return {key: of_key[0] for key, of_key in texts.items() if of_key}

    def named(self, ids: Mapping[str, int]) -> list[str]:
        """Return the special tokens that are named, given the id of each token of the vocabulary.

        Raises:
            CheckpointError: the vocabulary lacks one of them, or numbers an added token otherwise.
        """
        for text, number in {**dict.fromkeys(self._named), **self.added}.items():
            if text not in ids or (number is not None and str(ids[text]) != str(number)):
                of_id = "" if number is None else f" of id {number}"
                raise CheckpointError(
                    f"{self.folder}: the vocabulary has no token {text!r}{of_id}, which the files "
                    "next to it name. Save the tokenizer again by its method `save_pretrained`."
                )
        return [*self._named]

    @cached_property
    def _named(self) -> dict[str, Mapping[str, Any]]:
        """Entry of each special token that is named; {} for one that is a text."""
        keys = [key for key in self.entries if key.endswith(("_token", "special_tokens"))]
        return _tokens([self.entries[key] for key in keys])

    def flags(self, text: str, stored: Mapping[str, Any] | None = None) -> dict[str, bool]:
        """Return how transformers finds an added token in a text, given its entry in the file.

        `added_tokens_decoder` precedes the entry in tokenizer.json, `stored`, and that precedes
        keys such as `bos_token`.

        Raises:
            CheckpointError: only added_tokens.json adds the token, which does not describe it.
        """
        named = self._named
        if stored is None and text not in self.described and text in self.added:
            raise CheckpointError(
                f"{self.folder / ADDED} adds {text!r}, but no other file describes that token. "
                "Save the tokenizer again by its method `save_pretrained`."
            )
        first = named.get(text, {}) if stored is None else stored
        entry = {**first, **self.described.get(text, {})}
        special = text in named or entry.get("special") or first.get("special")
        return {**{key: bool(entry.get(key)) for key in _FLAGS}, "special": bool(special)}


_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


def _texts(value: Any) -> list[str]:
    """Return the texts of a token, or of a list or dict of tokens; none for null."""
    return [*_tokens(value)]


def _tokens(value: Any) -> dict[str, Mapping[str, Any]]:
    """Return the entry of each token in `value` by its text; {} for one that is a text."""
    if isinstance(value, dict):
        if isinstance(text := value.get("content"), str):
            return {text: value}
        value = list(value.values())
    if isinstance(value, list):
        return {text: entry for one in value for text, entry in _tokens(one).items()}
    return {value: {}} if isinstance(value, str) else {}
