"""Where the memory goes: weights, keys and values, recurrent state, buffers of drafting; what context remains.

Every line says how it was computed. Lines that no formula of ours can know (graphs, activations) are marked as
estimates, and so are weights whose files are not here. What is not known is left out and named.

Ref: vLLM keeps 1 + K states of linear attention for a sequence and a [sequences, K, vocabulary] tensor for
probabilistic drafts (read in 0.33.0); llama.cpp keeps 1 + n-max states, and output rows for
min(batch, slots * (1 + longest draft)) positions (read in October 2026).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from blockdraft.deploy.bits import kv_bits
from blockdraft.deploy.deployment import Deployment, Draft, EngineName
from blockdraft.deploy.hardware import GIB, Hardware
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts

DEFAULT_SEQUENCES: dict[EngineName, int] = {"vllm": 256, "sglang": 48, "llamacpp": 4}
"""What an engine takes without a word: max-num-seqs, SGLang's running requests with drafts, llama.cpp's slots."""

DEFAULT_FRACTION: dict[EngineName, float] = {"vllm": 0.9, "sglang": 0.95, "llamacpp": 0.95}
"""Share of a device that all of it together may take; SGLang's own share is that of weights and cache alone."""
DEFAULT_BATCHED: dict[EngineName, int] = {"vllm": 8192, "sglang": 8192, "llamacpp": 2048}
MODEL_METHODS = frozenset({"dflash", "dspark", "mtp", "eagle", "eagle3", "draft-model"})
BLOCK_METHODS = frozenset({"dflash", "dspark"})
_LLAMA_DRAFTS = {"ngram-mod": 64, "ngram": 48, **dict.fromkeys(MODEL_METHODS, 3)}
_GRAPHS_BYTES: dict[EngineName, int] = {"vllm": 3 * GIB // 4, "sglang": GIB, "llamacpp": 0}


@dataclass(frozen=True, kw_only=True)
class MemoryItem:
    """One line of the account, in bytes of one device."""

    name: str
    num_bytes: int
    how: str
    is_estimate: bool = False
    is_for_drafts: bool = False
    """True if it is there only because of the drafter."""
    grows_with_context: bool = False


@dataclass(frozen=True, kw_only=True)
class MemoryAccount:
    """What one device holds at the planned context, and how much context fits."""

    items: tuple[MemoryItem, ...]
    budget_bytes: int
    """What the engine may use of one device."""
    num_sequences: int
    context_length: int
    """The planned tokens of one sequence."""
    bytes_per_token: int
    """Keys and values of one token, target and drafter, on one device."""
    context_with_drafts: int | None
    """Tokens that fit for each of the sequences at once; None if something needed is unknown."""
    context_without_drafts: int | None
    unknown: tuple[str, ...] = ()

    @property
    def total_bytes(self) -> int:
        return sum(item.num_bytes for item in self.items)

    @property
    def fits(self) -> bool | None:
        """True if everything known fits; None if it does and something is unknown."""
        if self.total_bytes > self.budget_bytes:
            return False
        return None if self.unknown else True


def kv_bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, key_dtype: str | None = None, value_dtype: str | None = None
) -> float:
    """Return what keys and values of one token take in `num_layers` layers; None for a dtype is 16 bits."""
    bits = kv_bits(key_dtype) + kv_bits(value_dtype or key_dtype)
    return num_layers * num_kv_heads * head_dim * bits / 8


def draft_length(deployment: Deployment, draft: Draft | None = None) -> int:
    """Return the most tokens that a round drafts, the engine's default where nothing is said."""
    unsaid = _LLAMA_DRAFTS if _is_llama(deployment) else {}
    drafts = (draft,) if draft else deployment.drafts
    return max((each.num_draft_tokens or unsaid.get(each.method, 0) for each in drafts), default=0)


def _is_llama(deployment: Deployment) -> bool:
    return deployment.engine == "llamacpp"


def model_draft(deployment: Deployment) -> Draft | None:
    """Return the draft that has a network, if there is one."""
    return next((draft for draft in deployment.drafts if draft.method in MODEL_METHODS), None)


def num_sequences(deployment: Deployment) -> int:
    """Return how many sequences run at once, the engine's default where nothing is said."""
    return deployment.num_sequences or DEFAULT_SEQUENCES[deployment.engine]


def num_states(deployment: Deployment) -> int:
    """Return how many recurrent states a sequence keeps: 1 + K, but 1 on llama.cpp without a draft network."""
    if _is_llama(deployment):
        draft = model_draft(deployment)
        return 1 + (draft_length(deployment, draft) if draft and draft.method != "draft-model" else 0)
    return 1 + draft_length(deployment)


def probabilistic_bytes(num_seqs: int, num_draft_tokens: int, vocab_size: int) -> int:
    """Return vLLM's cache of draft distributions: one number of 16 bits for each sequence, draft and token."""
    return num_seqs * num_draft_tokens * vocab_size * 2


def account(
    deployment: Deployment, target: TargetFacts | None, draft: DraftFacts | None, hardware: Hardware
) -> MemoryAccount:
    """Return the memory account of one device."""
    length = deployment.context_length or (target.context_length if target else None) or 0
    with_drafts = _Accountant(deployment, target, draft, hardware, length)
    plain = _Accountant(replace(deployment, drafts=()), target, None, hardware, length)
    return MemoryAccount(
        items=with_drafts.items(with_drafts.num_tokens(length)),
        budget_bytes=with_drafts.budget,
        num_sequences=with_drafts.sequences,
        context_length=length,
        bytes_per_token=int(with_drafts.growth()),
        context_with_drafts=with_drafts.context_that_fits(),
        context_without_drafts=plain.context_that_fits(),
        unknown=tuple(with_drafts.unknown),
    )


class _Accountant:
    """Adds up one deployment on one device."""

    def __init__(
        self,
        deployment: Deployment,
        target: TargetFacts | None,
        draft: DraftFacts | None,
        hardware: Hardware,
        context: int,
    ) -> None:
        self.deployment, self.target, self.draft, self.hardware = deployment, target, draft, hardware
        self.tp = deployment.tensor_parallel or (hardware.num_devices if _is_llama(deployment) else 1)
        self.pp = deployment.pipeline_parallel or 1
        self.sequences = num_sequences(deployment)
        said = deployment.memory_fraction if deployment.engine != "sglang" else None
        fraction = said or DEFAULT_FRACTION[deployment.engine]
        self.budget = int(hardware.memory_bytes * fraction)
        self.unknown: list[str] = []
        if deployment.num_sequences is None and self.is_pooled:
            self.sequences = self._sequences_that_fit(context)

    @property
    def is_pooled(self) -> bool:
        """True where sequences share one pool of keys and values and are let in as it has room."""
        return not _is_llama(self.deployment)

    def _sequences_that_fit(self, context: int) -> int:
        """Return how many of the engine's usual number run at once beside one of full length."""
        usual, self.sequences = self.sequences, 1
        one = sum(item.num_bytes for item in self.items(context))
        self.sequences = 2
        each = sum(item.num_bytes for item in self.items(context)) - one
        return usual if each <= 0 else max(1, min(usual, 1 + int((self.budget - one) // each)))

    def num_tokens(self, context: int) -> int:
        """Return the tokens that all sequences hold: all of their context, or what the pool has room for."""
        tokens = self.sequences * context
        fitting = self.context_that_fits() if self.is_pooled else None
        return tokens if fitting is None else max(context, min(tokens, fitting * self.sequences))

    @property
    def shards(self) -> int:
        return self.tp * self.pp

    def items(self, tokens: int) -> tuple[MemoryItem, ...]:
        """Return the lines of the account with so many tokens in all sequences together."""
        found = [self._weights(), self._keys_and_values(tokens), self._state(), *self._drafting(tokens)]
        return tuple(item for item in (*found, *self._rest()) if item and item.num_bytes > 0)

    def _miss(self, what: str) -> None:
        if what not in self.unknown:
            self.unknown.append(what)

    def _weights(self) -> MemoryItem | None:
        if self.target is None or (total := self.target.weight_bytes) is None:
            self._miss("the size of the target's weights")
            return None
        on_cpu = self._experts_on_cpu()
        name = "target weights" + (" (experts stay in main memory)" if on_cpu else "")
        total -= on_cpu
        how = f"{total / GIB:.2f} GiB" + (f" / {self.shards} devices" if self.shards > 1 else "")
        if self.target.file_bytes is None:
            billions = (self.target.num_parameters or 0) / 1e9
            how += f": {billions:.2f} G parameters, {self.target.quantization or 'bf16'}"
        is_estimate = self.target.file_bytes is None or bool(on_cpu)
        return MemoryItem(name=name, num_bytes=total // self.shards, how=how, is_estimate=is_estimate)

    def _experts_on_cpu(self) -> int:
        """Return the bytes of experts that llama.cpp keeps in main memory."""
        own, target = self.deployment.own, self.target
        if target is None or not target.num_experts or target.num_expert_parameters is None:
            return 0
        share = experts_on_cpu(self.deployment, target)
        weight_bytes, total = target.weight_bytes, target.num_parameters
        if not own or not share or not weight_bytes or not total:
            return 0
        return int(weight_bytes * share * target.num_expert_parameters / total)

    def _target_kv(self) -> tuple[float, float] | None:
        """Return bytes for each token, and bytes for each sequence that do not grow (windows)."""
        target = self.target
        sizes = (target.num_full_layers, target.num_kv_heads, target.head_dim) if target else (None,)
        if target is None or any(size is None for size in sizes):
            self._miss("the target's layers and key-value heads")
            return None
        heads = max(1, -(-(target.num_kv_heads or 0) // self.tp))
        types = (self.deployment.kv_dtype, self.deployment.value_dtype)
        growing = kv_bytes_per_token(target.num_full_layers or 0, heads, target.head_dim or 0, *types) / self.pp
        windowed = kv_bytes_per_token(target.num_sliding_layers, heads, target.head_dim or 0, *types) / self.pp
        return growing, windowed * (target.sliding_window or 0)

    def _draft_kv(self) -> tuple[float, float]:
        draft, chosen = self.draft, model_draft(self.deployment)
        if chosen is None or chosen.method not in MODEL_METHODS - {"mtp"}:
            return 0.0, 0.0
        if draft is None or draft.num_layers is None or draft.num_kv_heads is None or draft.head_dim is None:
            self._miss("the drafter's layers and key-value heads")
            return 0.0, 0.0
        share = chosen.tensor_parallel or (1 if _is_llama(self.deployment) else self.tp)
        heads = max(1, -(-draft.num_kv_heads // share))
        # llama.cpp keeps f16 for the drafter unless told otherwise; the others inherit the target's type.
        inherited = None if _is_llama(self.deployment) else self.deployment.kv_dtype
        key, value = chosen.kv_dtype or inherited, chosen.options.get("value_dtype")
        windowed = draft.num_sliding_layers or 0
        growing = kv_bytes_per_token(draft.num_layers - windowed, heads, draft.head_dim, key, value)
        window = kv_bytes_per_token(windowed, heads, draft.head_dim, key, value) * (draft.sliding_window or 0)
        return growing, window

    def growth(self) -> float:
        """Return the bytes that one more token of one sequence takes."""
        return (self._target_kv() or (0.0, 0.0))[0] + self._draft_kv()[0]

    def _keys_and_values(self, tokens: int) -> MemoryItem | None:
        if (kv := self._target_kv()) is None or self.target is None:
            return None
        growing, fixed = kv
        dtype = self.deployment.kv_dtype or "16 bit"
        if self.deployment.value_dtype:
            dtype += f"/{self.deployment.value_dtype}"
        layers = f"{self.target.num_full_layers} full-attention layers"
        how = f"{self._spoken(tokens)} x {growing:.0f} B ({layers}, {dtype})"
        return MemoryItem(
            name="target keys and values",
            num_bytes=int(growing * tokens + self.sequences * fixed),
            how=how,
            grows_with_context=True,
        )

    def _spoken(self, tokens: int) -> str:
        each, rest = divmod(tokens, self.sequences)
        return f"{tokens} tokens of {self.sequences} sequences" if rest else f"{self.sequences} x {each} tokens"

    def _state(self) -> MemoryItem | None:
        target = self.target
        if target is None or not target.is_hybrid:
            return None
        if target.state_bytes is None:
            self._miss("the size of the recurrent state")
            return None
        states = num_states(self.deployment)
        return MemoryItem(
            name="recurrent state",
            num_bytes=self.sequences * states * target.state_bytes // self.shards,
            how=f"{self.sequences} x {states} states (1 + K) x {target.state_bytes / (1 << 20):.1f} MiB",
        )

    def _drafting(self, tokens: int) -> list[MemoryItem]:
        chosen = model_draft(self.deployment)
        items: list[MemoryItem] = []
        if chosen and chosen.method in MODEL_METHODS - {"mtp"}:
            items += self._drafter(tokens)
        length, vocab = draft_length(self.deployment), self.target.vocab_size if self.target else None
        if not length or vocab is None:
            return items
        if chosen and self.deployment.engine == "vllm" and chosen.options.get("draft_sampling") == "probabilistic":
            allowed = num_sequences(self.deployment)  # allocated for all that may run, before any does
            size = probabilistic_bytes(allowed, length, vocab)
            how = f"{allowed} sequences x {length} drafts x {vocab} tokens x 2 B"
            items.append(MemoryItem(name="draft distributions", num_bytes=size, how=how, is_for_drafts=True))
        if _is_llama(self.deployment):
            batch = self.deployment.max_batched_tokens or DEFAULT_BATCHED["llamacpp"]
            rows = min(batch, self.sequences * (1 + length))
            how = f"{rows} rows x {vocab} tokens x 4 B"
            items.append(MemoryItem(name="output rows", num_bytes=rows * vocab * 4, how=how, is_for_drafts=True))
        return items

    def _drafter(self, tokens: int) -> list[MemoryItem]:
        items = []
        weight_bytes = self.draft.weight_bytes if self.draft else None
        if weight_bytes is None or self.draft is None:
            self._miss("the size of the drafter's weights")
        else:
            scheme = self.draft.quantization or "bf16"
            how = f"{(self.draft.num_parameters or 0) / 1e9:.2f} G parameters, {scheme}; embedding and head are shared"
            is_estimate = self.draft.file_bytes is None
            chosen = model_draft(self.deployment)
            share = (chosen.tensor_parallel if chosen else None) or (1 if _is_llama(self.deployment) else self.tp)
            items.append(
                MemoryItem(
                    name="drafter weights",
                    num_bytes=weight_bytes // share,
                    how=how,
                    is_estimate=is_estimate,
                    is_for_drafts=True,
                )
            )
        growing, fixed = self._draft_kv()
        size = int(growing * tokens + self.sequences * fixed)
        how = f"{self._spoken(tokens)} x {growing:.0f} B" + (", windows apart" if fixed else "")
        items.append(
            MemoryItem(
                name="drafter keys and values", num_bytes=size, how=how, is_for_drafts=True, grows_with_context=True
            )
        )
        return items

    def _rest(self) -> list[MemoryItem]:
        """Return what is only guessed: rows of a pass in flight, captured graphs, the runtime's own memory."""
        hidden = self.target.hidden_size if self.target else None
        if hidden is None:
            return []
        rows = self.deployment.max_batched_tokens or DEFAULT_BATCHED[self.deployment.engine]
        if _is_llama(self.deployment):
            rows = int(self.deployment.own.get("ubatch-size", 512))
        activations = rows * hidden * 32
        graphs = _GRAPHS_BYTES[self.deployment.engine]
        how = f"{rows} rows x {hidden} x 32 B"
        items = [MemoryItem(name="activations", num_bytes=activations, how=how, is_estimate=True)]
        if graphs and not self.deployment.own.get("enforce-eager") and self.hardware.vendor != "cpu":
            items.append(MemoryItem(name="captured graphs", num_bytes=graphs, how="a rule of thumb", is_estimate=True))
        return items

    def context_that_fits(self) -> int | None:
        """Return how many tokens each of the sequences can hold at once."""
        fixed = sum(item.num_bytes for item in self.items(0))
        if self.unknown or (growth := self.growth()) <= 0:
            return None
        most = self.target.context_length if self.target else None
        room = max(0, int((self.budget - fixed) / (growth * self.sequences)))
        return min(room, most) if most else room


def experts_on_cpu(deployment: Deployment, target: TargetFacts | None) -> float:
    """Return which share of the experts llama.cpp keeps in main memory, as far as its flags say."""
    own = deployment.own
    if own.get("cpu-moe"):
        return 1.0
    if (number := own.get("n-cpu-moe")) is not None and target and target.num_layers:
        return min(1.0, int(number) / target.num_layers)
    override = str(own.get("override-tensor") or "")
    return 1.0 if "exps" in override and "=CPU" in override else 0.0
