"""Rules that look at a pair on paper: each is a short function that yields findings, or none.

What a rule needs and the files do not say, it leaves alone. `blockdraft.bench.pair.measure` finds what no file tells.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from blockdraft.bench.findings import Finding, by_severity
from blockdraft.bench.pair.facts import DrafterFacts, TargetFacts
from blockdraft.drafters.block_config import spread_layers

KNOWN_MASKS = {151936: 151669, 248320: 248070, 202048: 201818}
"""Mask tokens of published drafters, by the vocabulary of their targets (Qwen3; Qwen3.5 to 3.8; Muse)."""
_COARSE = ("Q2", "Q3", "Q4", "Q5", "IQ", "I8", "U8", "F8")
"""How types begin that are coarse for a head or for what all layers read."""
_SENSITIVE = re.compile(r"^output\.weight$|lm_head|fc\.weight|markov|confidence|conf_proj|selector")
_MAX_PADDING = 1024
"""A vocabulary that is larger than another by no more than this may differ by padding alone."""

Rule = Callable[[TargetFacts, DrafterFacts, int | None], Iterator[Finding]]


def examine(target: TargetFacts, drafter: DrafterFacts, num_draft_tokens: int | None = None) -> list[Finding]:
    """Return what is wrong with a pair, the worst first; `num_draft_tokens` is what a server is told to draft."""
    return by_severity(finding for rule in RULES for finding in rule(target, drafter, num_draft_tokens))


def _sizes(target: TargetFacts, drafter: DrafterFacts, _: int | None) -> Iterator[Finding]:
    for name, what, ours, theirs in (
        ("hidden-size", "hidden size", drafter.hidden_size, target.hidden_size),
        ("target-depth", "number of target layers", drafter.num_target_layers, target.num_layers),
    ):
        if ours is not None and theirs is not None and ours != theirs:
            yield Finding(
                severity="error",
                name=name,
                what=f"{what}: the drafter was made for {ours}, {target.name} has {theirs}",
                reason="it reads another model's features: engines refuse it, or accept almost nothing",
                fix="take the drafter of this very target, or the target of this drafter",
                source=f"{drafter.source} and the target's",
            )


def _vocabulary(target: TargetFacts, drafter: DrafterFacts, _: int | None) -> Iterator[Finding]:
    ours, theirs = drafter.vocab_size, target.vocab_size
    if ours and theirs and ours != theirs:
        is_padding = abs(ours - theirs) <= _MAX_PADDING
        yield Finding(
            severity="warning" if is_padding else "error",
            name="vocabulary",
            what=f"the drafter was made for {ours} tokens, {target.name} has {theirs}",
            reason="padding alone is harmless; another tokenizer makes every draft wrong"
            if is_padding
            else "another tokenizer: a draft token is another word for the target",
            fix="compare the two tokenizers; take the drafter of this target",
            source=f"vocab_size of {drafter.source} and of the target",
        )
    if drafter.tokenizer and target.tokenizer and (other := target.tokenizer.same_vocabulary(drafter.tokenizer)):
        yield Finding(
            severity="error",
            name="tokenizer",
            what=other,
            reason="a draft token is another word for the target",
            fix="take the drafter of this target",
            source="tokenizer files of both",
        )
    reduced = drafter.draft_vocab_size
    if reduced and reduced != ours and drafter.shapes:
        missing = [key for key in ("d2t", "lm_head.weight") if key not in drafter.shapes]
        if drafter.borrows_head:
            missing = [key for key in missing if key != "lm_head.weight"]
        if missing:
            yield Finding(
                severity="error",
                name="reduced-vocabulary",
                what=f"it drafts {reduced} of {ours} tokens and lacks {' and '.join(missing)}",
                reason="without its own head and map, drafts mean other tokens: 25 % accepted become 2 % "
                "(vllm-ascend#11374)",
                fix="use the complete checkpoint",
                source="names of its tensors",
            )


def _layer_ids(target: TargetFacts, drafter: DrafterFacts, _: int | None) -> Iterator[Finding]:
    ids, depth = drafter.target_layer_ids, target.num_layers
    if not ids or not depth:
        return
    where = f"layer ids of {drafter.source}"
    if outside := [one for one in ids if not 0 <= one < depth]:
        yield Finding(
            severity="error",
            name="layer-ids",
            what=f"it reads target layers {outside}, {target.name} has 0 to {depth - 1}",
            reason="ids of another target, or counted from the embedding where they should not be",
            fix="write the ids the drafter was trained with",
            source=where,
        )
    if list(ids) != sorted(set(ids)):
        yield Finding(
            severity="warning",
            name="layer-ids-order",
            what=f"the layer ids {list(ids)} do not rise",
            reason="features are put together in this order; the weights expect the order of training",
            fix="compare with the original checkpoint",
            source=where,
        )
    width = (drafter.shapes.get("fc.weight") or (0, 0))[-1]
    if width and drafter.hidden_size and width != len(ids) * drafter.hidden_size:
        yield Finding(
            severity="error",
            name="fc-width",
            what=f"fc.weight takes {width} features, {len(ids)} layers of {drafter.hidden_size} give "
            f"{len(ids) * drafter.hidden_size}",
            reason="the list of layers is not the one that the weights were trained for",
            fix="write the layer ids of the original checkpoint",
            source=f"shape of fc.weight and {where}",
        )
    for shift in (1, -1):
        published = [one + shift for one in spread_layers(depth, len(ids))]
        if len(ids) > 1 and list(ids) == published:
            right = [one - shift for one in ids]
            yield Finding(
                severity="warning",
                name="layer-ids-shifted",
                what=f"the layer ids {list(ids)} are the published ones, {right}, shifted by {shift:+d}",
                reason="files count the outputs of layers, vLLM, speculators and GGUF the inputs, which is one more; "
                "a shift costs about a sixth of what is accepted (atlas PR 394: 6.61 to 5.56)",
                fix=f"measure both (blockdraft doctor TARGET DRAFTER --measure) and write {right} if more is accepted",
                source=where,
            )


def _mask(target: TargetFacts, drafter: DrafterFacts, _: int | None) -> Iterator[Finding]:
    mask, size = drafter.mask_token_id, target.vocab_size
    if mask is None:
        yield Finding(
            severity="error",
            name="mask-token",
            what="the drafter names no mask token",
            reason="the open places of a block are filled with it: engines refuse, or fill in something else",
            fix="add `mask_token_id` from the original checkpoint",
            source=drafter.source,
        )
        return
    if size and mask >= size:
        yield Finding(
            severity="error",
            name="mask-token",
            what=f"the mask token {mask} is outside the target's vocabulary of {size}",
            reason="its embedding does not exist",
            fix="correct `mask_token_id`, or take the drafter of this target",
            source=f"mask_token_id of {drafter.source}",
        )
        return
    known = KNOWN_MASKS.get(size or 0)
    is_odd = known is not None and mask != known
    tokenizer = target.tokenizer
    is_word = tokenizer is not None and mask < tokenizer.vocab_size and mask not in tokenizer.special_ids
    if is_word and tokenizer is not None and not tokenizer.token_text(mask).strip("<|>[]").lower().startswith("mask"):
        is_odd = is_odd or known is None
    if is_odd:
        reads = f", which reads {tokenizer.token_text(mask)!r}" if tokenizer and mask < tokenizer.vocab_size else ""
        usual = f"published drafters for this vocabulary use {known}" if known else "a mask is rarely a word of a text"
        yield Finding(
            severity="warning",
            name="mask-token-odd",
            what=f"the mask token is {mask}{reads}; {usual}",
            reason="with another mask than in training, all places of a block but the anchor's start wrong",
            fix="compare with the original checkpoint; measure: blockdraft doctor TARGET DRAFTER --measure",
            source=f"mask_token_id of {drafter.source}",
        )
    if drafter.has_mask_embedding:
        yield Finding(
            severity="note",
            name="mask-embedding",
            what="the mask has an embedding of its own, in mask_embedding.pt",
            reason="an engine that does not load it accepts 1.42 instead of 6.30 tokens (sglang#27924)",
            fix="take an engine that does",
            source="files beside the weights",
        )


def _windows(_: TargetFacts, drafter: DrafterFacts, __: int | None) -> Iterator[Finding]:
    slides = "sliding_attention" in drafter.layer_types
    if slides and not drafter.sliding_window:
        yield Finding(
            severity="error",
            name="sliding-window",
            what="it has sliding layers and names no window",
            reason="engines refuse it or attend to everything, which it was not trained for",
            fix="add `sliding_window`",
            source=f"layer_types of {drafter.source}",
        )
    elif not slides and drafter.sliding_window and drafter.says_sliding:
        yield Finding(
            severity="warning",
            name="sliding-run-as-full",
            what=f"it names a window of {drafter.sliding_window} and `use_sliding_window`, and no layer slides",
            reason="run as full attention it drafts well up to the window and collapses behind it",
            fix="restore `layer_types` from the original checkpoint",
            source=f"layer_types and sliding_window of {drafter.source}",
        )
    elif slides:
        yield Finding(
            severity="note",
            name="slides",
            what=f"{drafter.layer_types.count('sliding_attention')} of its {len(drafter.layer_types)} layers slide, "
            f"with a window of {drafter.sliding_window}",
            reason="an engine that ignores the windows collapses behind them (vllm#40898 added them)",
            fix="probe a running server behind the window: blockdraft doctor --url URL --depths ...",
            source=f"layer_types of {drafter.source}",
        )


def _rope(target: TargetFacts, drafter: DrafterFacts, _: int | None) -> Iterator[Finding]:
    ours, theirs = drafter.rope_theta, target.rope_theta
    if ours and theirs and ours != theirs:
        yield Finding(
            severity="warning",
            name="rope",
            what=f"the drafter's rope base is {ours:g}, the target's {theirs:g}",
            reason="published drafters take their target's; another one blurs far positions",
            fix="compare with the original checkpoint",
            source=f"rope of {drafter.source} and of the target",
        )
    if drafter.is_interleaved:
        yield Finding(
            severity="warning",
            name="rope-interleaved",
            what="the drafter rotates interleaved pairs",
            reason="engines that rotate halves accept almost nothing and say nothing",
            fix="take an engine that reads is_neox_style",
            source=drafter.source,
        )
    if drafter.context_length and target.context_length and drafter.context_length < target.context_length:
        yield Finding(
            severity="warning",
            name="context",
            what=f"the drafter's context holds {drafter.context_length} tokens, the target's {target.context_length}",
            reason="behind it drafts get worse, stop, or crash the engine (vllm#57941)",
            fix=f"serve no more than {drafter.context_length}, or probe: blockdraft doctor --url URL --depths ...",
            source=f"max_position_embeddings of {drafter.source}",
        )


def _types(_: TargetFacts, drafter: DrafterFacts, __: int | None) -> Iterator[Finding]:
    coarse = sorted(
        f"{name} in {kind}"
        for name, kind in drafter.stored_as.items()
        if _SENSITIVE.search(name) and kind.upper().startswith(_COARSE)
    )
    if coarse:
        yield Finding(
            severity="warning",
            name="head-type",
            what=f"parts that decide are stored coarsely: {', '.join(coarse[:4])}",
            reason="a quantised head can go from 80 % accepted to none (club-3090#662)",
            fix="take a file with these tensors in 8 or 16 bits",
            source="types of its tensors",
        )


def _lengths(_: TargetFacts, drafter: DrafterFacts, num_draft_tokens: int | None) -> Iterator[Finding]:
    most = drafter.max_draft_tokens or (drafter.block_size and drafter.block_size - 1)
    if num_draft_tokens is None or not most:
        return
    if num_draft_tokens > most:
        yield Finding(
            severity="error",
            name="draft-length",
            what=f"{num_draft_tokens} tokens are to be drafted, the trained block holds {most}",
            reason="places behind the block were never trained: 4 % accepted instead of 35 % (vllm#41834)",
            fix=f"draft {most} tokens (vLLM, llama.cpp {most}; SGLang counts the anchor: {most + 1})",
            source=f"block_size of {drafter.source}",
        )
    elif num_draft_tokens < most and drafter.kind == "draft-dspark":
        yield Finding(
            severity="note",
            name="draft-length",
            what=f"{num_draft_tokens} of the {most} tokens that the block holds are to be drafted",
            reason="vLLM 0.26 and 0.27 refuse that for DSpark",
            fix=f"begin with {most} and measure",
            source=f"block_size of {drafter.source}",
        )


def _thinking(target: TargetFacts, drafter: DrafterFacts, _: int | None) -> Iterator[Finding]:
    card = drafter.card.lower()
    told = "non-thinking" in card or "enable_thinking=false" in card or "thinking off" in card
    if not target.can_think or (card and not told and "thinking" in card):
        return
    yield Finding(
        severity="warning" if told else "note",
        name="thinking-mode",
        what="the drafter's card says that it was trained without thinking, the target can think"
        if told
        else "the target can think; the drafter does not say in which mode it was trained",
        reason="in the other mode half or less is accepted (z-lab/dflash#133: 25 % against 60 %)",
        fix="serve in the drafter's mode, for example with enable_thinking false, or measure both",
        source="the drafter's README and the target's chat template",
    )


def _anchor(_: TargetFacts, drafter: DrafterFacts, __: int | None) -> Iterator[Finding]:
    if drafter.anchor:
        yield Finding(
            severity="note",
            name="anchor",
            what=drafter.anchor,
            reason="an engine of the other convention accepts about half, or under 1 % (vllm#49614)",
            fix="compare what an engine accepts with: blockdraft doctor TARGET DRAFTER --measure",
            source=drafter.source,
        )
    if drafter.problem:
        yield Finding(
            severity="warning",
            name="not-run-here",
            what=drafter.problem,
            reason="our own engine cannot run it; others may",
            fix="see what the message asks for, or measure on the engine that runs it: blockdraft doctor --url URL",
            source=drafter.source,
        )


RULES: tuple[Rule, ...] = (
    _sizes,
    _vocabulary,
    _layer_ids,
    _mask,
    _anchor,
    _windows,
    _rope,
    _types,
    _lengths,
    _thinking,
)
