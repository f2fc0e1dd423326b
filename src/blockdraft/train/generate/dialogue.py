"""One conversation in the making: what to ask next, and what came of it.

Whoever generates the tokens (`own`, `endpoint`) takes the next task of a dialogue, answers it, and hands the
answer back, until the dialogue is finished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

from blockdraft.core.sampling import SamplingParams
from blockdraft.errors import ConfigError
from blockdraft.models.tokenizer import Tokenizer
from blockdraft.train.conversations import Conversation
from blockdraft.train.generate.prompts import Prompt

Finish = Literal["stop", "length"]


@dataclass(frozen=True, kw_only=True)
class GenerationSettings:
    """Everything that has a say in the answers.

    Raises:
        ConfigError: a value is out of its range.
    """

    max_tokens: int = 512
    """Of one answer."""
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.75), (0.7, 0.25))
    """Temperatures and the shares of the conversations that get them."""
    top_p: float = 0.95
    top_k: int = 50
    seed: int = 0
    thinking: bool | None = None
    system: str | None = None
    """For prompts that bring no system message of their own."""
    question_temperature: float = 1.0
    """Of the user messages that the target writes itself."""
    question_max_tokens: int = 256

    def __post_init__(self) -> None:
        if self.max_tokens < 1 or self.question_max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, not {min(self.max_tokens, self.question_max_tokens)}")
        if not self.temperatures or any(share <= 0 for _, share in self.temperatures):
            raise ConfigError("temperatures need a share above 0 each, like 0:0.75,0.7:0.25")
        for temperature in (*(temperature for temperature, _ in self.temperatures), self.question_temperature):
            self.sampling(temperature)

    def sampling(self, temperature: float) -> SamplingParams:
        """Return how tokens are chosen at a temperature."""
        return SamplingParams(temperature=temperature, top_p=self.top_p, top_k=self.top_k, seed=self.seed)

    def temperature_of(self, dialogue_id: str) -> float:
        """Return the temperature of a conversation, which depends on its id and the seed only."""
        point = draw_index(f"temperature {self.seed} {dialogue_id}") / 2**63
        total = sum(share for _, share in self.temperatures)
        for temperature, share in self.temperatures:
            if point < share / total:
                return temperature
            point -= share / total
        return self.temperatures[-1][0]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain data."""
        return asdict(self) | {"temperatures": [list(pair) for pair in self.temperatures]}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A text to be continued by the target: the answer to messages, or a user message of its own."""

    messages: tuple[Mapping[str, str], ...]
    """Without a user message at the end, one is to be written."""
    sampling: SamplingParams
    sample_index: int
    max_tokens: int

    @property
    def is_question(self) -> bool:
        """True if the user's message is wanted, not the answer."""
        return not self.messages or self.messages[-1]["role"] != "user"


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What the target wrote."""

    text: str
    finish: Finish
    num_tokens: int
    """With the token that ended it."""
    token_ids: tuple[int, ...] | None = None
    """Without the token that ended it; None if only the text is known."""


class Dialogue:
    """The state of one conversation."""

    def __init__(self, prompt: Prompt, settings: GenerationSettings) -> None:
        self.prompt = prompt
        self.settings = settings
        self.temperature = settings.temperature_of(prompt.id)
        self.discarded: str | None = None
        """Why nothing can come of it."""
        system = settings.system if prompt.system is None else prompt.system
        self._messages = [] if system is None else [{"role": "system", "content": system}]
        self._left = list(prompt.turns)
        self._answers: list[Answer] = []
        if self._left:
            self._ask(self._left.pop(0))

    @property
    def is_finished(self) -> bool:
        """True if there is nothing left to ask."""
        return self.discarded is not None or (bool(self._messages) and self._messages[-1]["role"] == "assistant")

    @property
    def num_tokens(self) -> int:
        """Over all answers."""
        return sum(answer.num_tokens for answer in self._answers)

    def task(self) -> Task:
        """Return what the target is to write next."""
        is_question = not self._messages or self._messages[-1]["role"] == "system"
        settings = self.settings
        return Task(
            messages=tuple(self._messages),
            sampling=settings.sampling(settings.question_temperature if is_question else self.temperature),
            sample_index=draw_index(f"{self.prompt.id} {len(self._messages)}"),
            max_tokens=settings.question_max_tokens if is_question else settings.max_tokens,
        )

    def take(self, answer: Answer) -> None:
        """Accept what the target wrote."""
        if self.task().is_question:
            question = answer.text.strip()
            if answer.finish == "stop" and question:
                self._ask(question)
            else:
                self.discarded = "the user message that the target wrote is empty or has no end"
            return
        self._answers.append(answer)
        self._messages.append({"role": "assistant", "content": answer.text})
        if not answer.text:
            self.discarded = "an answer is empty"
        elif self._left and answer.finish == "stop":
            self._ask(self._left.pop(0))

    def conversation(self, tokenizer: Tokenizer) -> Conversation | None:
        """Return the finished conversation; None if it was discarded."""
        if self.discarded is not None:
            return None
        return Conversation(
            id=self.prompt.id,
            messages=tuple(self._messages),
            temperature=self.temperature,
            finish=self._answers[-1].finish,
            num_completion_tokens=self.num_tokens,
            thinking=self.settings.thinking,
            source=self.prompt.source,
            category=self.prompt.category,
            answer_ids=_unlike_text(self._answers, tokenizer),
        )

    def questions(self) -> tuple[str, ...]:
        """Return the user messages so far."""
        return tuple(message["content"] for message in self._messages if message["role"] == "user")

    def _ask(self, question: str) -> None:
        self._messages.append({"role": "user", "content": question})


class Runtime(Protocol):
    """Somebody who answers."""

    def run(self, dialogues: Iterable[Dialogue]) -> Iterable[Dialogue]:
        """Yield the dialogues as they are finished, in any order; take no more at once than can be worked on."""
        ...


def draw_index(text: str) -> int:
    """Return 63 bits that depend on a text only, the same on every machine."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def _unlike_text(answers: Sequence[Answer], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...] | None:
    """Return the tokens of all answers if those of any differ from what its text encodes to."""
    ids = tuple(answer.token_ids for answer in answers if answer.token_ids is not None)
    if len(ids) < len(answers):
        return None
    encoded = tuple(tuple(tokenizer.encode(answer.text, add_special_tokens=False)) for answer in answers)
    return None if encoded == ids else ids
