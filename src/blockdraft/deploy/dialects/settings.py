"""Rows that say which flag of an engine means which field, in which unit; and how they are read and written."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from blockdraft.deploy.dialects.flags import FlagTable, Given, plain
from blockdraft.errors import ConfigError

Type = Literal["text", "integer", "number", "switch", "list"]

_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT]?)")
_THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One flag and the field that it fills."""

    key: str
    """The flag's long name without dashes."""
    fills: str
    """Of `Deployment`, of `Draft`, or (for a key that is no field of `Draft`) of its options."""
    type: Type = "text"
    words: Mapping[str, str] = field(default_factory=dict)
    """The engine's words by those used here; a word that is not named stays as it is."""
    also: Mapping[str, str] = field(default_factory=dict)
    """More words of the engine, which are read and not written, with what they mean here."""
    unset: tuple[str, ...] = ()
    """Values that are none of the field; they stay among the settings that only the engine has."""
    added: int = 0
    """What the engine's count has more than the one kept here."""

    def read(self, text: Any, written: str) -> Any:
        """Return the value of the field.

        Raises:
            ConfigError: the text is no value of this type.
        """
        if self.type == "switch":
            return bool(text)
        if self.type == "list":
            return ",".join(str(one) for one in text) if isinstance(text, tuple | list) else str(text)
        if isinstance(text, tuple | bool):
            raise ConfigError(f"{written} takes one value, not {text!r}")
        if self.type == "integer":
            return read_count(str(text), written) - self.added
        if self.type == "number":
            try:
                return float(text)
            except ValueError:
                raise ConfigError(f"{written} takes a number, not {text!r}") from None
        meanings = {theirs: here for here, theirs in self.words.items()} | dict(self.also)
        return meanings.get(str(text).lower(), str(text))

    def write(self, value: Any) -> Any:
        """Return the engine's value for one of the field."""
        if self.type == "integer":
            return value + self.added
        if self.type == "number":
            return f"{value:g}"
        if self.type == "list":
            return tuple(str(value).split(","))
        return self.words.get(value, value) if self.type == "text" else value


def read_count(text: str, written: str) -> int:
    """Return an integer; `8k` is 8000 and `8K` 8192, as vLLM reads them.

    Raises:
        ConfigError: the text is no integer of that kind.
    """
    match = _COUNT.fullmatch(text.strip())
    if match is None or ("." in match[1] and match[2] not in "kmgt") or ("." in match[1] and not match[2]):
        raise ConfigError(f"{written} takes a whole number, not {text!r}")
    return round(float(match[1]) * _THOUSANDS[match[2]]) if match[2] else int(match[1])


def read_settings(given: Sequence[Given], settings: Sequence[Setting]) -> tuple[dict[str, Any], list[Given]]:
    """Return the fields that the flags fill, and the flags that fill none. The last of a repeated flag counts."""
    by_key = {setting.key: setting for setting in reversed(settings)}
    fields: dict[str, Any] = {}
    rest = []
    for one in given:
        setting = by_key.get(one.key)
        if setting is None or str(one.value) in setting.unset:
            rest.append(one)
        else:
            fields[setting.fills] = setting.read(one.value, one.written)
    return fields, rest


def write_settings(values: Mapping[str, Any], settings: Sequence[Setting], flags: FlagTable) -> list[str]:
    """Return the words that say the values; None and False are not said."""
    words: list[str] = []
    said: set[str] = set()
    for setting in settings:
        value = values.get(setting.fills)
        if setting.fills not in said and value is not None and value is not False:
            said.add(setting.fills)
            words += flags.write(setting.key, setting.write(value))
    return words


def fill_own(given: Sequence[Given]) -> dict[str, Any]:
    """Return settings that have no field, by flag; what is repeated becomes a tuple."""
    own: dict[str, Any] = {}
    for one in given:
        value = plain(one.value)
        if one.key in own and not isinstance(value, bool):
            before = own[one.key]
            more = value if isinstance(value, tuple) else (value,)
            own[one.key] = (*(before if isinstance(before, tuple) else (before,)), *more)
        else:
            own[one.key] = value
    return own
