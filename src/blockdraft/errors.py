"""Every error a user can cause, as one tree.

    BlockdraftError
    ├── ConfigError             an option or combination of options that cannot be honoured
    ├── ModelReferenceError     a model reference that names nothing usable
    │   ├── ReferenceSyntaxError    it cannot be parsed
    │   ├── NotFoundError           nothing is there (or not without a network)
    │   └── DownloadError           the transfer failed or its checksum differs
    ├── ModelError              a model that was found but cannot be run
    │   ├── UnsupportedModelError   architecture, quantisation or feature we do not have
    │   └── CheckpointError         missing, surplus or misshapen tensors
    ├── PairError               a target and a drafter that do not fit
    ├── DataError               training data that is missing, damaged or made for something else
    ├── TrainingError           a training run that cannot start or go on
    ├── EndpointError           a server that cannot be reached or does not answer as its interface says
    │   └── EndpointRefusedError    it is there and will not serve this request
    └── RequestError            a request the engine cannot serve as asked
        └── ContextLengthError      prompt and answer exceed the context

Each message says what happened and what to do. `assert` is for programmers and is not in this tree.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BlockdraftError(Exception):
    """Base of all errors that a user of blockdraft can cause."""


class ConfigError(BlockdraftError):
    """An option, or a combination of options, cannot be honoured."""


class ModelReferenceError(BlockdraftError):
    """A model reference names nothing that can be used."""


class ReferenceSyntaxError(ModelReferenceError):
    """A model reference cannot be parsed."""


class NotFoundError(ModelReferenceError):
    """Nothing exists under a model reference, or it is not cached and there is no network."""


class DownloadError(ModelReferenceError):
    """A download failed or what arrived is not what was announced."""


class ModelError(BlockdraftError):
    """A model was found but cannot be run."""


class UnsupportedModelError(ModelError):
    """The architecture, the quantisation or a feature of the model is not supported."""


class CheckpointError(ModelError):
    """A checkpoint lacks tensors, has surplus ones, or their shapes are wrong."""


class PairError(BlockdraftError):
    """A target and a drafter do not fit together; the message names both sides."""


class DataError(BlockdraftError):
    """Training data is missing, damaged, or was made for another target or tokenizer."""


class TrainingError(BlockdraftError):
    """A training run cannot start or go on: no room on the disk, a loss that is not a number, no progress."""


class EndpointError(BlockdraftError):
    """A server cannot be reached, does not let us in, or does not answer as its interface says."""


class EndpointRefusedError(EndpointError):
    """A server is there and will not serve this request: a field it does not take, a route it does not have."""

    def __init__(self, message: str, status: int) -> None:
        self.status = status
        super().__init__(message)


class RequestError(BlockdraftError):
    """A request cannot be served as asked."""


class ContextLengthError(RequestError):
    """Prompt and requested answer exceed the context of the target."""

    def __init__(self, num_prompt_tokens: int, max_tokens: int, context_length: int) -> None:
        self.num_prompt_tokens = num_prompt_tokens
        self.max_tokens = max_tokens
        self.context_length = context_length
        super().__init__(
            f"the prompt has {num_prompt_tokens} tokens and {max_tokens} new ones were asked for, "
            f"but the target's context holds {context_length}; shorten the prompt or lower max_tokens"
        )


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return " (did you mean 'x'?)" for the known name nearest to `name`, or an empty string."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f" (did you mean {matches[0]!r}?)" if matches else ""
