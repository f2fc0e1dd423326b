"""Flags that the engines' own parsers know, and the cutting of a command line by them.

The lists in `flags/` were taken from the parsers themselves; the first line of each says from which version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from blockdraft.deploy.deployment import EngineName
from blockdraft.deploy.dialects.notes import Note
from blockdraft.deploy.dialects.removed import REMOVED, Removed
from blockdraft.errors import ConfigError, nearest_name

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag of an engine."""

    arity: str
    """How many values follow: "0", "1", "2", "?" for none or one, "+" and "*" for several."""
    names: tuple[str, ...]
    off_names: tuple[str, ...] = ()
    """What switches it off."""
    environment: str | None = None
    """The variable that says the same."""

    @property
    def name(self) -> str:
        """The first long name, which is the one written."""
        return next((name for name in self.names if name.startswith("--")), self.names[0])

    @property
    def key(self) -> str:
        """The long name without its dashes."""
        return self.name.removeprefix("--")


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a command line says about one flag."""

    key: str
    written: str
    """The flag as it stood there, for messages."""
    value: Any
    """True or False for a switch, text for one value, a tuple of texts for several."""
    is_known: bool = True


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """All flags of one engine, and how its parser cuts words."""

    engine: EngineName
    flags: tuple[Flag, ...]
    by_name: Mapping[str, tuple[Flag, bool]]
    """By each name: the flag, and whether the name switches it on."""
    takes_equals: bool
    """Whether `--flag=value` is understood."""

    def find(self, key: str) -> Flag | None:
        """Return the flag with a long name (given without dashes), or None."""
        found = self.by_name.get(f"--{key}")
        return found[0] if found and found[1] else None

    def cut(self, words: Sequence[str]) -> tuple[list[Given], list[str], list[Note]]:
        """Return what the words say by flag, the words that belong to none, and remarks on what is unknown.

        Raises:
            ConfigError: a flag lacks its value, or has one that it does not take.
        """
        given: list[Given] = []
        loose: list[str] = []
        notes: list[Note] = []
        position = 0
        while position < len(words):
            word = words[position]
            position += 1
            if not _is_flag(word):
                loose.append(word)
                continue
            name, equals, value = word.partition("=") if word.startswith("--") else (word, "", "")
            name = self._spelling(name)
            found = self.by_name.get(name)
            if equals and not self.takes_equals:
                raise ConfigError(f"llama-server takes the value of {name} as a word of its own, not after '='")
            rest = [value] if equals else list(_values(words, position))
            if found is None and (old := REMOVED[self.engine].get(_key(name))):
                num_values = _num_values(old.arity, rest, name, has_equals=bool(equals))
                notes.append(Note(kind="outdated", subject=name, text=old.text))
                given += _succeed(old, name, rest[:num_values])
            elif found is None:
                num_values = 1 if rest else 0
                given.append(Given(key=_key(name), written=name, value=rest[0] if rest else True, is_known=False))
            else:
                flag, is_on = found
                num_values = _num_values(flag.arity if is_on else "0", rest, name, has_equals=bool(equals))
                given.append(Given(key=flag.key, written=name, value=_value(flag, is_on, rest[:num_values])))
            position += 0 if equals else num_values
        notes += [self._unknown(one) for one in given if not one.is_known]
        return given, loose, notes

    def from_environment(self, environment: Mapping[str, str]) -> tuple[list[Given], dict[str, str]]:
        """Return what variables say by flag, and the variables that stand for none."""
        rest = dict(environment)
        given = []
        for flag in self.flags:
            if flag.environment and flag.environment.startswith("LLAMA_ARG_") and flag.environment in rest:
                text = rest.pop(flag.environment)
                value: Any = text if flag.arity != "0" else text.lower() not in ("0", "off", "false", "disabled")
                given.append(Given(key=flag.key, written=flag.environment, value=value))
        return given, rest

    def write(self, key: str, value: Any) -> list[str]:
        """Return the words that say a setting.

        Raises:
            ConfigError: it is off and the flag cannot be switched off.
        """
        flag = self.find(key)
        name = flag.name if flag else (key if key.startswith("-") else f"--{key}")
        if value is True:
            return [name]
        if value is False:
            off = [f"--no-{key}", *(flag.off_names if flag else ())]
            chosen = next((one for one in off if flag and one in flag.off_names and one.startswith("--")), None)
            if flag is not None and chosen is None:
                raise ConfigError(f"{name} of {self.engine} cannot be switched off; leave it away")
            return [chosen or off[0]]
        if isinstance(value, tuple | list):
            texts = [str(one) for one in value]
            if flag and flag.arity in ("+", "*", "2"):
                return [name, *texts]
            return [word for text in texts for word in (name, text)]
        return [name, str(value)]

    def _spelling(self, name: str) -> str:
        return "--" + name[2:].replace("_", "-") if name.startswith("--") else name

    def _unknown(self, given: Given) -> Note:
        known = [name for name in self.by_name if name.startswith("--")]
        near = nearest_name(given.written, known)
        return Note(
            kind="unknown", subject=given.written, text=f"{self.engine} has no such flag{near}; kept as it is written"
        )


def plain(value: Any) -> Any:
    """Return a text as a number where that reads back as the same text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number: int | float = float(value) if any(mark in value for mark in ".eE") else int(value)
        return number if str(number) == value else value
    return tuple(plain(one) for one in value) if isinstance(value, tuple) else value


@cache
def flag_table(engine: EngineName) -> FlagTable:
    """Return the flags of an engine."""
    text = (resources.files(__package__) / "flags" / f"{engine}.txt").read_text(encoding="utf-8")
    flags = tuple(_parse(line) for line in text.splitlines() if not line.startswith("#"))
    by_name = {name: (flag, False) for flag in flags for name in flag.off_names}
    by_name |= {name: (flag, True) for flag in flags for name in flag.names}
    return FlagTable(engine=engine, flags=flags, by_name=by_name, takes_equals=engine != "llamacpp")


def _parse(line: str) -> Flag:
    arity, *words = line.split()
    environment = words.pop().removeprefix("env=") if words[-1].startswith("env=") else None
    end = words.index("!") if "!" in words else len(words)
    return Flag(arity=arity, names=tuple(words[:end]), off_names=tuple(words[end + 1 :]), environment=environment)


def _is_flag(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word)


def _key(name: str) -> str:
    return name.removeprefix("--") if name.startswith("--") else name


def _values(words: Sequence[str], start: int) -> Iterator[str]:
    """Yield the words from `start` on that are no flags."""
    for word in words[start:]:
        if _is_flag(word):
            return
        yield word


def _num_values(arity: str, rest: list[str], name: str, *, has_equals: bool) -> int:
    if arity == "0":
        if has_equals:
            raise ConfigError(f"{name} takes no value, but is given {rest[0]!r}")
        return 0
    if arity in ("+", "*"):
        wanted = len(rest) if rest or arity == "*" else 1
    else:
        wanted = min(len(rest), 1) if arity == "?" else int(arity)
    if len(rest) < wanted:
        raise ConfigError(f"{name} lacks its value")
    return wanted


def _succeed(old: Removed, written: str, values: list[str]) -> list[Given]:
    """Return what a removed flag says in today's words."""
    if old.successor is None:
        return []
    key, _, fixed = old.successor.partition("=")
    value: Any = fixed or (tuple(values) if old.arity == "+" else values[0])
    return [Given(key=key, written=written, value=value)]


def _value(flag: Flag, is_on: bool, values: list[str]) -> Any:
    if not values:
        return is_on
    return tuple(values) if flag.arity in ("+", "*", "2") else values[0]
