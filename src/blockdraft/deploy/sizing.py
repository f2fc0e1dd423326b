"""How many sequences of how many tokens fit, how long a draft may be for that, and the rows of a pass."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from blockdraft.deploy.bits import normalized
from blockdraft.deploy.choosing import GGUF_FOLDER
from blockdraft.deploy.deployment import Deployment
from blockdraft.deploy.hardware import GIB, Hardware
from blockdraft.deploy.memory import MemoryAccount, account, draft_length, model_draft
from blockdraft.deploy.model_facts import DraftFacts, TargetFacts
from blockdraft.deploy.pairs import unquantised_name
from blockdraft.deploy.versions import EngineVersion, is_before

Reason = dict[str, str]

USUAL_SEQUENCES = {"latency": 4, "throughput": 64, "context": 1}
_USUAL_CONTEXT = 32768
_LEAST_CONTEXT = 4096
_ROUND = 1024
_GOOD_BUDGET = 8192
_SHORTER = (7, 3)
_DEAR = 0.75
_WHOLE_CARD = 0.95
_MAX_STATIC = 0.85
_GGUF_SCHEMES = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "iq4_xs", "q3_k_m", "q2_k")
_USUAL_SCHEME = "q4_k_m"


def usual_sequences(deployment_engine: str, goal: str) -> int:
    """Return how many sequences a goal runs at once if nobody says; one slot for latency on llama.cpp."""
    return 1 if deployment_engine == "llamacpp" and goal == "latency" else USUAL_SEQUENCES[goal]


@dataclass(kw_only=True)
class Sizer:
    """Chooses the sizes of one deployment and keeps the reasons."""

    deployment: Deployment
    target: TargetFacts | None
    draft: DraftFacts | None
    hardware: Hardware
    version: EngineVersion
    goal: str
    is_named: bool
    """True if the drafter was asked for by name, so that it is not dropped for its cost."""
    reasons: list[Reason] = field(default_factory=list)

    def fit(self, context: int | None, sequences: int | None) -> None:
        """Set sequences, context, draft length and budget; what is given is kept."""
        longest = (self.target.context_length if self.target else None) or _USUAL_CONTEXT
        wanted = context or min(longest, _USUAL_CONTEXT)
        usual = usual_sequences(self.deployment.engine, self.goal)
        self._set(num_sequences=sequences or usual, context_length=wanted)
        self._gguf(context)
        if sequences is None:
            self._fewer_sequences(wanted)
        if self.goal == "context" and not self.is_named:
            self._drop_if_dear(longest)
        self._more_memory(wanted)
        self._shorter_drafts(context or _LEAST_CONTEXT)
        if sequences is None:
            count = self.deployment.num_sequences or 1
            less = f"{usual} are usual for {self.goal}; no more fit with their context and states"
            self._tell("sequences at once", str(count), less if count < usual else f"usual for {self.goal}")
        self._context(context, wanted)
        self._budget(is_told=True)
        self._static_share()

    def count(self) -> MemoryAccount:
        """Return the memory account as things stand."""
        return account(self.deployment, self.target, self.draft if self.deployment.drafts else None, self.hardware)

    def _set(self, **values: int) -> None:
        self.deployment = replace(self.deployment, **values)  # type: ignore[arg-type]
        self._budget(is_told=False)

    def _tell(self, setting: str, value: str, why: str, source: str = "") -> None:
        self.reasons.append({"setting": setting, "value": value, "why": why, "source": source})

    def _fewer_sequences(self, wanted: int) -> None:
        """Halve the sequences until each has the context that is wanted, or one is left."""
        while (count := self.deployment.num_sequences or 1) > 1:
            fitting = self.count().context_with_drafts
            if fitting is None or fitting >= wanted:
                return
            self._set(num_sequences=count // 2)

    def _more_memory(self, wanted: int) -> None:
        """Let vLLM have 95 % of a card of its own where 90 % are too little."""
        fitting = self.count().context_with_drafts
        is_own = self.deployment.engine == "vllm" and not self.hardware.unified_memory
        if not is_own or self.deployment.memory_fraction is not None or fitting is None or fitting >= wanted:
            return
        why = f"with 90 % only {fitting} of {wanted} tokens fit; nothing else may use the card"
        self._tell("memory", f"{_WHOLE_CARD:.0%}", why, "published configuration 5")
        self.deployment = replace(self.deployment, memory_fraction=_WHOLE_CARD)

    def _drop_if_dear(self, longest: int) -> None:
        """Decode plainly where context is the goal and a drafter would take more than a quarter of it."""
        counted = self.count()
        with_drafts, without = counted.context_with_drafts, counted.context_without_drafts
        if not self.deployment.drafts or with_drafts is None or without is None or with_drafts >= without * _DEAR:
            return
        why = f"context is the goal: {with_drafts} of {longest} tokens fit with the drafter, {without} without; name "
        source = "Anbeeld/beellama.cpp#97; noonghunna/club-3090 (262K became 131K)"
        self._tell("drafter", "none: plain decoding", why + "the drafter to have it anyway", source)
        self.deployment = replace(self.deployment, drafts=())

    def _shorter_drafts(self, wanted: int) -> None:
        """Draft less where the states of a hybrid target take the room, and not at all if even that does not help."""
        draft = model_draft(self.deployment)
        fitting = self.count().context_with_drafts
        if draft is None or fitting is None or self._room(fitting) >= wanted:
            return
        for number in (number for number in _SHORTER if number < (draft.num_draft_tokens or 0)):
            shorter = tuple(
                replace(each, num_draft_tokens=number) if each is draft else each for each in self.deployment.drafts
            )
            tried = replace(self.deployment, drafts=shorter)
            found = account(tried, self.target, self.draft, self.hardware).context_with_drafts or 0
            if found > max(fitting, _LEAST_CONTEXT):
                why = f"each sequence keeps 1 + K states: with {draft.num_draft_tokens} drafts {fitting} tokens fit, "
                self._tell("draft tokens", str(number), f"{why}with {number} {found}", "read in vLLM 0.33.0")
                self.deployment = tried
                return
        without = self.count().context_without_drafts or 0
        if without > fitting and not self.is_named:
            why = f"with the drafter {fitting} tokens fit, {without} without"
            self._tell("drafter", "none: plain decoding", why)
            self.deployment = replace(self.deployment, drafts=())

    @property
    def _is_pooled(self) -> bool:
        """True where sequences share one pool of keys and values, so that one may have most of it."""
        return self.deployment.engine != "llamacpp"

    def _room(self, fitting: int) -> int:
        """Return the tokens that one sequence may have, from what fits for each of all."""
        return fitting * (self.deployment.num_sequences or 1) if self._is_pooled else fitting

    def _static_share(self) -> None:
        """Leave room for what lies outside SGLang's static share: the drafter, rows of a pass, captured graphs."""
        if self.deployment.engine != "sglang" or not self.deployment.drafts:
            return
        inside = ("target weights", "target keys and values", "recurrent state")
        outside = sum(item.num_bytes for item in self.count().items if item.name not in inside) + GIB
        share = max(0.3, min(_MAX_STATIC, int((1 - outside / self.hardware.memory_bytes) * 100) / 100))
        why = f"{outside / GIB:.1f} GiB stay for the drafter, the rows of a pass and graphs, 1 GiB of it spare"
        self._tell("memory", f"{share:.0%} static", why, "read in SGLang 0.5.23")
        self.deployment = replace(self.deployment, memory_fraction=share)

    def _context(self, asked: int | None, wanted: int) -> None:
        counted = self.count()
        fitting = counted.context_with_drafts
        if asked is not None:
            seen = "what fits is not known" if fitting is None else f"{fitting} would fit"
            self._tell("context", str(asked), f"as asked; {seen}")
            return
        if fitting is None:
            verb = "is" if len(counted.unknown) == 1 else "are"
            self._tell("context", str(wanted), f"what fits is not known: {', '.join(counted.unknown)} {verb} unknown")
            return
        room = fitting if fitting >= _LEAST_CONTEXT else self._room(fitting)
        length = room if self.goal == "context" else min(room, wanted)
        length = max(_ROUND, length // _ROUND * _ROUND)
        why = f"{fitting} tokens fit for each of {self.deployment.num_sequences}"
        why += f", which share {room}" if room != fitting else ""
        plain = counted.context_without_drafts
        why += f", {plain} without drafts" if self.deployment.drafts and plain != fitting else ""
        self.deployment = replace(self.deployment, context_length=length)
        self._tell("context", str(length), why)

    def _budget(self, *, is_told: bool) -> None:
        """Set vLLM's rows of a pass: 8192 for prompts, and what drafts take off them in its release."""
        if self.deployment.engine != "vllm" or not self.deployment.drafts:
            return
        length, count = draft_length(self.deployment), self.deployment.num_sequences or 1
        if is_before(self.version.number, (0, 28)):
            needed = _GOOD_BUDGET + max(0, length - 1) * count
            why = f"{_GOOD_BUDGET} for prompts and ({length} - 1) x {count} slots that this release takes off"
        else:
            needed = max(_GOOD_BUDGET, count * (length + 1))
            why = f"at least {_GOOD_BUDGET} for prompts and {count} x ({length} + 1) rows of drafts"
        value = -(-needed // _ROUND) * _ROUND
        self.deployment = replace(self.deployment, max_batched_tokens=value)
        if is_told:
            self._tell("rows of a pass", str(value), why, "vllm-project/vllm#50708, #53970")

    def _gguf(self, context: int | None) -> None:
        """For llama.cpp choose a quantisation that fits, and what happens with experts if none does."""
        target = self.target
        if self.deployment.engine != "llamacpp" or target is None or target.num_parameters is None:
            return
        if not is_gguf(self.deployment.target) and target.origin != "GGUF header":
            target = self._scheme_that_fits(target)
        # Drafts of a network go away beside experts in main memory, unless the drafter was named.
        drafts = self.deployment.drafts if self.is_named else ()
        tried = replace(self.deployment, context_length=context or _LEAST_CONTEXT, drafts=drafts)
        counted = account(tried, target, self.draft, self.hardware)
        fits = counted.total_bytes <= counted.budget_bytes
        if fits or not target.num_experts or self.hardware.unified_memory or not target.num_layers:
            return
        share = (target.num_expert_parameters or 0) / (target.num_parameters or 1)
        experts = (target.weight_bytes or 0) * share
        each = experts / target.num_layers / self.hardware.num_devices
        missing = counted.total_bytes + GIB - counted.budget_bytes
        number = min(target.num_layers, max(1, int(-(-missing // max(each, 1)))))
        why = f"the device lacks {missing / GIB:.1f} GiB; the experts of {number} layers stay in main memory"
        self._tell("experts", f"n-cpu-moe {number}", why)
        self.deployment = replace(self.deployment, own={**self.deployment.own, "n-cpu-moe": number})

    def _scheme_that_fits(self, target: TargetFacts) -> TargetFacts:
        """Take the largest quantisation that fits; the file's name follows it."""
        tried = {scheme: replace(target, quantization=scheme, file_bytes=None) for scheme in _GGUF_SCHEMES}
        fitting = (
            scheme for scheme, facts in tried.items() if account(self.deployment, facts, self.draft, self.hardware).fits
        )
        chosen = next(fitting, _USUAL_SCHEME)
        name = f"{GGUF_FOLDER}/{unquantised_name(target.name)}-{chosen.upper()}.gguf"
        why = "llama.cpp reads GGUF files: the largest quantisation that fits; make it or find it, and put it there"
        self._tell("target file", name, why)
        self.deployment = replace(self.deployment, target=name)
        self.target = tried[chosen]
        return tried[chosen]


def is_gguf(name: str) -> bool:
    """True if a reference is one of GGUF files by its name: a file, a repository, or llama.cpp's REPOSITORY:QUANT."""
    return "gguf" in name.lower() or normalized(name.rpartition(":")[2]) in _GGUF_SCHEMES
