"""The engine: prompts in, answers out, with or without a drafter, and the same answers either way."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from blockdraft.core.random import PositionalRandom
from blockdraft.core.sampling import SamplingParams, TokenCounts
from blockdraft.drafters.base import Drafter, DrafterTraits
from blockdraft.drafters.config import SpecConfig
from blockdraft.engine.adaptive_policy import AdaptivePolicy
from blockdraft.engine.budget_policy import BudgetPolicy
from blockdraft.engine.pass_costs import PassCosts, measure_pass_costs
from blockdraft.engine.policy import Policy, check_confidences, check_policy, fixed_policy
from blockdraft.engine.request import Request, SequenceState
from blockdraft.engine.results import Chunk, Generation
from blockdraft.engine.round import Pipeline, prefill, run_round
from blockdraft.engine.scheduler import Scheduler
from blockdraft.engine.stopping import AnswerText
from blockdraft.errors import ConfigError, ContextLengthError, PairError, RequestError
from blockdraft.models.base import Target
from blockdraft.models.tokenizer import Tokenizer

Prompt = str | Sequence[int] | Sequence[Mapping[str, Any]]
"""A user's message, token ids, or the messages of a conversation."""

DEFAULT_MAX_TOKENS = 256
_FIRST_CAPACITY = 1024
"""A cache starts with room for at most this many answer tokens, and grows when an answer needs more."""


class Engine:
    """Generates with one target and at most one drafter (which may be a chain). Not thread safe.

    An adaptive policy needs `costs`; they are measured, which takes a moment, if they are not given.

    Raises:
        PairError: the drafter reads layers that the target does not have, or drafts more than it can forget.
        ConfigError: the options would bend the output distribution, or a limit is below 1.
    """

    def __init__(
        self,
        target: Target,
        tokenizer: Tokenizer | None = None,
        drafter: Drafter | None = None,
        *,
        spec: SpecConfig | None = None,
        costs: PassCosts | None = None,
        max_running: int = 8,
        prefill_chunk: int = 512,
    ) -> None:
        if max_running < 1 or prefill_chunk < 1:
            raise ConfigError(f"max_running ({max_running}) and prefill_chunk ({prefill_chunk}) must be at least 1")
        self.target = target
        self.tokenizer = tokenizer
        self.drafter = drafter
        self.spec = spec or SpecConfig()
        traits = drafter.traits if drafter else None
        if traits:
            check_policy(self.spec, traits)
            _check_pair(traits, target)
        self._pipeline = Pipeline(
            target=target,
            drafter=drafter,
            policy=_make_policy(self.spec, target, drafter, costs),
            rule=self.spec.rule,
            prefill_chunk=prefill_chunk,
        )
        self._max_running = max_running
        self._scheduler = Scheduler(max_running)

    @property
    def drafter_name(self) -> str:
        """The name of the drafter or chain; empty for plain decoding."""
        return self.drafter.traits.name if self.drafter else ""

    def without_drafter(self) -> Engine:
        """Return an engine that decodes plainly with the same target, as the baseline of a comparison."""
        return Engine(
            self.target, self.tokenizer, max_running=self._max_running, prefill_chunk=self._pipeline.prefill_chunk
        )

    def encode(self, prompt: Prompt, *, system: str | None = None, raw: bool = False) -> tuple[int, ...]:
        """Return the token ids of a prompt.

        A string is a user's message and goes through the chat template, unless `raw` is set or the model has no
        template; then it is a text to continue.

        Raises:
            RequestError: there is no tokenizer, or the template refuses the messages.
        """
        if not isinstance(prompt, str) and all(isinstance(item, int) for item in prompt):
            if system is not None:
                raise RequestError("a system message cannot be added to token ids; put it into the prompt")
            return tuple(prompt)  # type: ignore[arg-type]
        if self.tokenizer is None:
            raise RequestError("this engine has no tokenizer; give the prompt as token ids")
        if isinstance(prompt, str):
            if raw or not self.tokenizer.has_chat_template:
                if system is not None:
                    raise RequestError("a system message needs a chat template; leave it out or do without raw=True")
                return tuple(self.tokenizer.encode(prompt))
            prompt = [{"role": "user", "content": prompt}]
        elif raw:
            raise RequestError("raw=True is for a text; the messages of a conversation need the chat template")
        return tuple(self.tokenizer.encode_chat(prompt, system=system))  # type: ignore[arg-type]

    def request(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = DEFAULT_MAX_TOKENS,
        sampling: SamplingParams | None = None,
        stop: Sequence[str] = (),
        stop_ids: Sequence[int] = (),
        ignore_eos: bool = False,
        logprobs: bool = False,
        sample_index: int = 0,
        system: str | None = None,
        raw: bool = False,
    ) -> Request:
        """Return the request for a prompt; the options are those of `Request`.

        Raises:
            RequestError: an option cannot be honoured.
        """
        if isinstance(stop, str):
            raise RequestError(f"stop is a list of strings; write [{stop!r}]")
        if stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer; use stop_ids")
        end_ids = self.tokenizer.eos_ids if self.tokenizer and not ignore_eos else frozenset()
        # The text of a special token is left out of answers, so as a string it would never be found.
        special_ids = {found for text in stop if (found := self._special_id(text)) is not None}
        return Request(
            prompt_ids=self.encode(prompt, system=system, raw=raw),
            max_tokens=max_tokens,
            sampling=sampling or SamplingParams(),
            stop=tuple(stop),
            stop_ids=end_ids | special_ids | frozenset(stop_ids),
            logprobs=logprobs,
            sample_index=sample_index,
        )

    def _special_id(self, text: str) -> int | None:
        assert self.tokenizer is not None
        ids = self.tokenizer.encode(text, add_special_tokens=False)
        return ids[0] if len(ids) == 1 and ids[0] in self.tokenizer.special_ids else None

    def submit(self, request: Request) -> SequenceState:
        """Queue a request; `step` advances it.

        Raises:
            ContextLengthError: prompt and answer exceed the target's context.
            RequestError: a token id is not in the vocabulary.
        """
        info = self.target.info
        num_prompt = len(request.prompt_ids)
        if num_prompt + request.max_tokens > info.context_length:
            raise ContextLengthError(num_prompt, request.max_tokens, info.context_length)
        for what, ids in (("prompt", request.prompt_ids), ("logit_bias", request.sampling.logit_bias)):
            if outside := [token_id for token_id in ids if not 0 <= token_id < info.vocab_size]:
                raise RequestError(f"{what}: token {outside[0]} is outside the vocabulary of {info.vocab_size}")
        sequence = SequenceState(
            request=request,
            token_ids=list(request.prompt_ids),
            answer=AnswerText(
                self.tokenizer.stream() if self.tokenizer else None,
                request.stop,
                request.stop_ids,
                request.max_tokens,
            ),
            random=PositionalRandom(request.sampling.seed, request.sample_index),
        )
        self._scheduler.add(sequence)
        return sequence

    def step(self) -> list[SequenceState]:
        """Prefill what was admitted, run one round for everybody else, and return what finished."""
        running = [sequence for sequence in self._scheduler.running if not sequence.is_finished]
        while (sequence := self._scheduler.admit_next()) is not None:
            self._start(sequence)
        if running:
            run_round(self._pipeline, running)
        return self._scheduler.remove_finished()

    def _start(self, sequence: SequenceState) -> None:
        request, info = sequence.request, self.target.info
        try:
            max_drafts = self.drafter.traits.max_draft_tokens if self.drafter else 0
            num_answer = min(request.max_tokens, _FIRST_CAPACITY)
            sequence.cache = self.target.new_cache(len(request.prompt_ids) + num_answer + max_drafts)
            if self.drafter:
                sequence.draft_state = self.drafter.begin(request.prompt_ids)
                sequence.policy_state = self._pipeline.policy.begin()
            if request.sampling.has_penalties:
                sequence.counts = TokenCounts(request.prompt_ids, info.vocab_size, info.device)
            prefill(self._pipeline, sequence)
        except BaseException:
            # Half a prompt in a cache would make everything after it wrong, so it must not run on.
            self.cancel(sequence)
            raise

    def cancel(self, sequence: SequenceState) -> None:
        """Drop a request that is waiting or running."""
        sequence.is_cancelled = not sequence.is_finished
        self._scheduler.cancel(sequence)

    def run(self, requests: Sequence[Request]) -> list[Generation]:
        """Serve requests together; the answers come in the order of the requests."""
        pending: dict[SequenceState, int] = {}
        answers: dict[int, Generation] = {}
        try:
            for index, request in enumerate(requests):
                pending[self.submit(request)] = index
            while pending:
                for sequence in self.step():
                    if sequence in pending:  # and forget it, with its caches
                        answers[pending.pop(sequence)] = sequence.to_generation(self.drafter_name)
        finally:
            for sequence in pending:
                self.cancel(sequence)
        return [answers[index] for index in range(len(requests))]

    def generate(self, prompt: Prompt, **options: Any) -> Generation:
        """Answer one prompt; the options are those of `request`."""
        return self.run([self.request(prompt, **options)])[0]

    def generate_batch(self, prompts: Sequence[Prompt], *, num_samples: int = 1, **options: Any) -> list[Generation]:
        """Answer several prompts together, `num_samples` times each; the samples of a prompt are neighbours.

        Raises:
            RequestError: there is one prompt instead of several, or as for `request`.
        """
        if isinstance(prompts, str) or any(isinstance(prompt, int) for prompt in prompts):
            raise RequestError("generate_batch takes a list of prompts; put the one prompt into a list")
        if num_samples < 1:
            raise RequestError(f"num_samples must be at least 1, not {num_samples}")
        requests = [
            self.request(prompt, sample_index=index, **options) for prompt in prompts for index in range(num_samples)
        ]
        return self.run(requests)

    def stream(self, prompt: Prompt, **options: Any) -> Generator[Chunk, None, Generation]:
        """Answer one prompt and yield what each round adds; the generator's return value is the `Generation`."""
        return self.stream_request(self.request(prompt, **options))

    def stream_request(self, request: Request) -> Generator[Chunk, None, Generation]:
        """Like `stream`, for a request that was made before."""
        sequence = self.submit(request)
        try:
            # Another consumer's step may have advanced this sequence too, or dropped it.
            while not sequence.is_finished or sequence.new_tokens:
                if sequence.is_cancelled:
                    raise RequestError("the request was cancelled before it was finished")
                if not sequence.new_tokens:
                    self.step()
                yield sequence.take_chunk()
        finally:
            if not sequence.is_finished:
                self.cancel(sequence)
        return sequence.to_generation(self.drafter_name)


def _make_policy(spec: SpecConfig, target: Target, drafter: Drafter | None, costs: PassCosts | None) -> Policy:
    if drafter is None or spec.policy == "fixed":
        return fixed_policy(spec, drafter)
    check_confidences(spec, drafter)
    kind = BudgetPolicy if spec.policy == "budget" else AdaptivePolicy
    return kind(traits=[part.traits for part in drafter.parts], costs=costs or measure_pass_costs(target, drafter))


def _check_pair(traits: DrafterTraits, target: Target) -> None:
    info = target.info
    if outside := [layer for layer in traits.target_layer_ids if not 0 <= layer < info.num_layers]:
        raise PairError(
            f"{traits.name} reads layer {outside[0]} of the target, but {info.family} has layers 0 to "
            f"{info.num_layers - 1}"
        )
    if info.max_rollback is not None and traits.max_draft_tokens > info.max_rollback:
        raise PairError(
            f"{traits.name} drafts up to {traits.max_draft_tokens} tokens, but {info.family} can forget only "
            f"{info.max_rollback}; wrap the drafter in a LimitedDrafter"
        )
