"""Rules about draft lengths, block sizes, layers, vocabularies and positions."""

from __future__ import annotations

from blockdraft.deploy.rules.edits import change, num_drafts
from blockdraft.deploy.rules.rule import Rule, llamacpp, sglang, vllm
from blockdraft.deploy.rules.situation import NotKnownError, Situation

_K = "speculative-config.num_speculative_tokens"
_TOPIC = "block size and shapes"
_RESIZED_ROPES = (None, "default", "linear", "llama3", "ntk", "proportional")


def _block_of(situation: Situation) -> int:
    return int(situation.about_draft("block_size"))


def _longer_than_the_block(situation: Situation) -> str | None:
    draft = situation.uses("dflash")
    if draft is None or draft.num_draft_tokens is None:
        return None
    most = int(situation.about_draft("max_draft_tokens"))
    asked = draft.num_draft_tokens
    return f"{asked} drafts of a block of {_block_of(situation)}" if asked > most + 1 else None


def _off_by_the_anchor(situation: Situation) -> str | None:
    draft = situation.uses("dflash")
    if draft is None or draft.num_draft_tokens is None or situation.about_draft("drafts_from_anchor"):
        return None
    block, asked = _block_of(situation), draft.num_draft_tokens
    if situation.deployment.engine == "sglang" and asked == block - 2:
        return f"{asked + 1} with the anchor counted, and the block holds {block}"
    return f"{asked} drafts, and the block holds {block} with the anchor" if asked == block and (
        situation.deployment.engine == "vllm"
    ) else None  # fmt: skip


def _not_the_dspark_block(situation: Situation) -> str | None:
    draft = situation.uses("dspark")
    if draft is None or draft.num_draft_tokens is None:
        return None
    most = int(situation.about_draft("max_draft_tokens"))
    return f"{draft.num_draft_tokens} drafts of a block of {most}" if draft.num_draft_tokens != most else None


def _shorter_than_the_dspark_block(situation: Situation) -> str | None:
    draft = situation.uses("dspark")
    if draft is None or draft.num_draft_tokens is None:
        return None
    block = _block_of(situation)
    return f"{draft.num_draft_tokens} drafts of a block of {block}" if draft.num_draft_tokens < block else None


def _not_gamma_and_one(situation: Situation) -> str | None:
    draft = situation.uses("dspark")
    if draft is None or draft.num_draft_tokens is None:
        return None
    said = situation.flag("speculative-dspark-block-size")
    gamma = int(said) if said is not None else _block_of(situation)
    asked = draft.num_draft_tokens + 1
    return f"it is {asked} and the block holds {gamma}" if asked != gamma + 1 else None


def _other_target(situation: Situation) -> str | None:
    """Compare what is known of layers and widths; not known only if nothing could be compared."""
    if situation.block is None:
        return None
    target, draft = situation.target, situation.draft
    problems, compared = [], 0
    if target.num_layers and draft.target_layer_ids:
        compared += 1
        if max(draft.target_layer_ids) >= target.num_layers:
            problems.append(f"reads layer {max(draft.target_layer_ids)} of a target with {target.num_layers}")
    if target.num_layers and draft.num_target_layers:
        compared += 1
        if draft.num_target_layers != target.num_layers:
            problems.append(f"was made for {draft.num_target_layers} layers, and the target has {target.num_layers}")
    if target.hidden_size and draft.fc_width and draft.target_layer_ids:
        compared += 1
        width = target.hidden_size * len(draft.target_layer_ids)
        if draft.fc_width != width:
            problems.append(f"has {draft.fc_width} inputs where the target gives {width}")
    elif target.hidden_size and draft.target_hidden_size:
        compared += 1
        if draft.target_hidden_size != target.hidden_size:
            problems.append(f"was made for width {draft.target_hidden_size}, and the target's is {target.hidden_size}")
    if not compared:
        raise NotKnownError("the layers and widths of target and drafter")
    return f"{draft.name} {'; '.join(problems)}" if problems else None


def _indivisible(situation: Situation) -> str | None:
    draft = situation.uses("mtp")
    if draft is None or draft.num_draft_tokens is None:
        return None
    layers = int(situation.about_target("num_mtp_layers"))
    asked = draft.num_draft_tokens
    return f"{asked} drafts from {layers} layers" if layers and asked > layers and asked % layers else None


def _repeats_one_head(situation: Situation) -> str | None:
    draft = situation.uses("mtp")
    if draft is None or (draft.num_draft_tokens or 1) <= 1 or situation.about_target("num_mtp_layers") != 1:
        return None
    return f"{draft.num_draft_tokens} drafts from one layer"


def _served_length(situation: Situation) -> int:
    return int(situation.deployment.context_length or situation.about_target("context_length"))


def _past_the_drafter(situation: Situation) -> str | None:
    if situation.network is None or situation.uses("mtp"):
        return None
    most, served = int(situation.about_draft("context_length")), _served_length(situation)
    return f"the drafter ends at {most} and {served} are served" if most < served else None


def _rope_is_not_resized(situation: Situation) -> str | None:
    seen = _past_the_drafter(situation)
    return (
        f"{seen}, rope {situation.draft.rope_type}"
        if seen and situation.draft.rope_type not in _RESIZED_ROPES
        else None
    )


def _maps_no_vocabulary(situation: Situation) -> str | None:
    if situation.block is None or (size := situation.draft.draft_vocab_size) is None:
        return None
    vocab = situation.about_target("vocab_size")
    if size == vocab or "d2t" in situation.about_draft("tensor_names"):
        return None
    return f"{size} of {vocab} tokens and no d2t"


def _no_mask(situation: Situation) -> bool:
    if situation.block is None or situation.draft.mask_token_id is not None:
        return False
    if situation.draft.origin == "registry":
        raise NotKnownError("the mask token of the drafter")
    return True


def _mask_outside(situation: Situation) -> str | None:
    if situation.block is None:
        return None
    mask, vocab = situation.about_draft("mask_token_id"), situation.about_target("vocab_size")
    return f"mask token {mask}, vocabulary {vocab}" if mask >= vocab else None


def _anchor_convention(situation: Situation) -> bool:
    return (
        situation.uses("dflash") is not None
        and situation.draft.declared_sample_from_anchor is None
        and situation.draft.drafts_from_anchor is True
    )


def _other_vocabulary(situation: Situation) -> str | None:
    if not situation.uses("draft-model") or situation.speculative("use_heterogeneous_vocab"):
        return None
    mine, theirs = situation.about_draft("vocab_size"), situation.about_target("vocab_size")
    return f"{mine} and {theirs} tokens" if mine != theirs else None


def _whole_block(situation: Situation) -> int:
    return int(situation.about_draft("max_draft_tokens"))


RULES = (
    Rule(
        id="P18", topic=_TOPIC, releases=(vllm(), sglang()), severity="warning", flag=_K,
        effect="the drafter never learnt positions past its block: drafts there are noise that is verified for nothing",
        fix="the block size less one; fewer are allowed", source="qualcomm/vllm-qaic#71; Z Lab's README: 15 for b16",
        when=_longer_than_the_block, repair=num_drafts(_whole_block),
    ),
    Rule(
        id="P19", topic=_TOPIC, releases=(vllm(),), severity="warning", flag=_K,
        effect="7 drafts on a block of 5 were accepted to 4.4 %, 5 to 34.7 %",
        fix="the block size first, then measure", source="vllm-project/vllm#41834 (comment)", is_reported=True,
        when=_not_the_dspark_block, repair=num_drafts(_whole_block),
    ),
    Rule(
        id="P20", topic=_TOPIC, releases=(vllm("0.26.0", "0.28.0"),), severity="error", flag=_K,
        effect="fewer drafts than the DSpark block: ValueError", fix="0.28.0 or later, or the whole block",
        source="vllm-project/vllm#50012; dated by wheels", when=_shorter_than_the_dspark_block,
        repair=num_drafts(_whole_block),
    ),
    Rule(
        id="P21", topic=_TOPIC, releases=(vllm(), sglang()), severity="warning",
        flag=f"{_K}; speculative-num-draft-tokens",
        effect="vLLM counts drafts, SGLang counts the anchor too: a number of one engine was given to the other",
        fix="for a block of 16 write 15 in vLLM and 16 in SGLang",
        source="read in SGLang 0.5.23; NVIDIA/Model-Optimizer#2313", when=_off_by_the_anchor,
        repair=num_drafts(_whole_block),
    ),
    Rule(
        id="P22", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-num-draft-tokens",
        effect="DSPARK wants the block size and one: ValueError", fix="leave it out",
        source="read in SGLang 0.5.23", when=_not_gamma_and_one, repair=num_drafts(_whole_block),
    ),
    Rule(
        id="P23", topic=_TOPIC, releases=(vllm(), sglang(), llamacpp()), severity="error", flag="the draft model",
        effect="the drafter was made for another target: an error when it runs", fix="a drafter of this target",
        source="read in vLLM 0.33.0 and SGLang 0.5.23; charlie12345/ROCmFPX#44", when=_other_target,
    ),
    Rule(
        id="P24", topic=_TOPIC, releases=(vllm("0.20.0", "0.20.1"),), severity="warning", flag="the engine's version",
        effect="builds before #40727 read the layers one too early: 3.95 accepted instead of 4.11 to 4.16",
        fix="upgrade", source="vllm-project/vllm#40727, #42704", when=lambda s: bool(s.uses("dflash")),
    ),
    Rule(
        id="P25", topic=_TOPIC, releases=(vllm(),), severity="error", flag=_K,
        effect="more drafts than MTP layers must be a multiple of them: ValueError", fix="a multiple",
        source="read in vLLM 0.33.0", when=_indivisible,
        repair=num_drafts(lambda s: s.about_target("num_mtp_layers")),
    ),
    Rule(
        id="P25a", topic=_TOPIC, releases=(vllm(),), severity="note", flag=_K,
        effect="one MTP layer is run again on its own output: each further draft is accepted less",
        fix="2 to 3, then measure", source="read in vLLM 0.33.0", when=_repeats_one_head,
    ),
    Rule(
        id="P26", topic=_TOPIC, releases=(vllm(before="0.33.0"),), severity="error", flag="max-model-len",
        effect="the first long request reads past the drafter's rotary table: illegal memory access",
        fix="serve no more than the drafter's length, or 0.33.0",
        source="vllm-project/vllm#48894, #57941, #57964", when=_past_the_drafter,
        repair=lambda s: change(context_length=s.about_draft("context_length"))(s),
    ),
    Rule(
        id="P26a", topic=_TOPIC, releases=(vllm(since="0.33.0"),), severity="warning", flag="max-model-len",
        effect="rotary tables of this type are not resized: the served length is lowered to the drafter's",
        fix="say the length yourself, or take another drafter", source="read in vLLM 0.33.0; vllm-project/vllm#57941",
        when=_rope_is_not_resized, repair=lambda s: change(context_length=s.about_draft("context_length"))(s),
    ),
    Rule(
        id="P27", topic=_TOPIC, releases=(vllm(), sglang()), severity="error", flag="the draft model",
        effect="a drafter with a reduced vocabulary needs its map: it does not load, or nothing is accepted",
        fix="a complete checkpoint, with d2t and its own lm_head",
        source="read in vLLM 0.33.0; vllm-project/vllm-ascend#11374; local-inference-lab/vllm#54",
        when=_maps_no_vocabulary,
    ),
    Rule(
        id="P28", topic=_TOPIC, releases=(vllm(),), severity="error", flag="dflash_config.mask_token_id",
        effect="no key of the drafter's config.json names the mask token: ValueError", fix="add it to its config.json",
        source="read in vLLM 0.33.0", when=_no_mask,
    ),
    Rule(
        id="P29", topic=_TOPIC, releases=(sglang(),), severity="error", flag="speculative-draft-model-path",
        effect="the mask token lies outside the target's vocabulary: ValueError", fix="another target or drafter",
        source="read in SGLang 0.5.23", when=_mask_outside,
    ),
    Rule(
        id="P30", topic=_TOPIC, releases=(vllm(before="0.33.0"), sglang(before="0.5.23")), severity="warning",
        flag="the engine's version",
        effect="the drafter brings mask_embedding.pt; an engine that ignores it accepted 1.42 tokens instead of 6.30",
        fix="a release that loads it: vLLM 0.33.0 and SGLang 0.5.23 do", source="sgl-project/sglang#27924",
        when=lambda s: bool(s.block) and "mask_embedding.pt" in s.about_draft("file_names"), is_reported=True,
    ),
    Rule(
        id="P31", topic=_TOPIC, releases=(vllm(),), severity="error", flag="dflash_config.sample_from_anchor",
        effect="method dflash refuses drafters that predict from the anchor: ValueError",
        fix="method dspark if it is one, else a drafter that does not", source="read in vLLM 0.33.0",
        when=lambda s: bool(s.uses("dflash")) and s.draft.declared_sample_from_anchor is True,
    ),
    Rule(
        id="P31a", topic=_TOPIC, releases=(vllm(), sglang()), severity="warning", flag="the draft model",
        effect="this drafter predicts from the anchor and dflash reads the rows after it: under 1 % accepted",
        fix="its DSpark twin, or an engine that knows this layout", source="vllm-project/vllm#49614", is_reported=True,
        when=_anchor_convention,
    ),
    Rule(
        id="P32", topic=_TOPIC, releases=(vllm(),), severity="error", flag="is_neox_style",
        effect="the drafter was trained with interleaved positions, vLLM takes halves: acceptance collapses silently",
        fix='"is_neox_style": false in its config.json', source="read in vLLM 0.33.0",
        when=lambda s: bool(s.block) and s.draft.interleaved_rope is True and not s.draft.declares_rope_style,
    ),
    Rule(
        id="P33", topic=_TOPIC, releases=(vllm(),), severity="error", flag="speculative-config.model",
        effect="a small draft model must have the target's vocabulary: ValueError",
        fix="a model with the same tokenizer, or use_heterogeneous_vocab (greedy drafts on the V1 runner)",
        source="read in vLLM 0.33.0", when=_other_vocabulary,
    ),
)  # fmt: skip
