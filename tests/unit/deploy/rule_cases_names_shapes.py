"""Cases of the rules about names, versions, lengths and shapes."""

from dataclasses import replace

from situations import DENSE, DFLASH, DFLASH2, DSPARK, HYBRID, MIXED, UNKNOWN, Case, sglang, situation

from blockdraft.deploy.model_facts import DraftFacts

V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
FROM_FILES = replace(DFLASH, origin="config.json", architecture="DFlashDraftModel")
BLOCK5 = replace(DSPARK, block_size=5)
FIVE = replace(HYBRID, num_mtp_layers=2)
PLAIN_NAME = '--speculative-config \'{"model": "./drafter", "num_speculative_tokens": 15}\''
LOCAL = replace(DFLASH, verifier="./target", name="./speculator")

NAMES = [
    Case(rule="P1", hit=situation(version="0.19.1"), miss=situation(version="0.20.0")),
    Case(
        rule="P2",
        hit=situation(version="0.24.0", method="dspark", draft=DSPARK),
        miss=situation(version="0.25.0", method="dspark", draft=DSPARK),
    ),
    Case(
        rule="P3",
        hit=situation(version="0.27.1", draft=DFLASH2),
        miss=situation(version="0.28.0", draft=DFLASH2, env={"VLLM_USE_V2_MODEL_RUNNER": "1"}),
    ),
    Case(
        rule="P4",
        hit=situation(words=PLAIN_NAME, draft=FROM_FILES),
        miss=situation(words=PLAIN_NAME.replace("./drafter", "./my-dflash"), draft=FROM_FILES),
    ),
    Case(
        rule="P5",
        hit=situation(words='--speculative-config \'{"model": "org/EAGLE-3-x"}\'', method="eagle"),
        miss=situation(
            words='--speculative-config \'{"model": "org/EAGLE-3-x", "method": "eagle3"}\'', method="eagle3"
        ),
    ),
    Case(rule="P6", hit=situation(num_drafts=None), miss=situation(num_drafts=None, method="dspark", draft=DSPARK)),
    Case(
        rule="P7",
        hit=situation(words='-sc \'{"rejection_sample_method": "strict"}\''),
        miss=situation(words='-sc \'{"rejection_sample_method": "strict"}\'', version="0.20.0"),
    ),
    Case(
        rule="P8",
        hit=situation(words="-sc '{\"synthetic_acceptance_rate\": 0.5}'"),
        miss=situation(words="-sc '{\"synthetic_acceptance_rates\": [0.5]}'"),
    ),
    Case(
        rule="P9",
        hit=situation(options={"tensor_parallel_size": 2}),
        miss=situation(draft_fields={"tensor_parallel": 1}, tensor_parallel=2),
    ),
    Case(
        rule="P10",
        hit=situation(draft_fields={"tensor_parallel": 2}, tensor_parallel=4),
        miss=situation(draft_fields={"tensor_parallel": 4}, tensor_parallel=4),
    ),
    Case(
        rule="P11",
        hit=situation(words="--swap-space 16", version="0.18.0"),
        miss=situation(words="--swap-space 16", version="0.17.1"),
    ),
    Case(
        rule="P12",
        hit=situation(words="--spec-tokens 8 -sc '{\"num-speculative-tokens\": 8}'"),
        miss=situation(words='--spec-tokens 8 -sc \'{"method": "dflash"}\''),
    ),
    Case(
        rule="P12a",
        hit=situation(words="--spec-method dflash --spec-tokens 8", version="0.21.0"),
        miss=situation(words="--spec-method dflash --spec-tokens 8", version="0.22.0"),
    ),
    Case(
        rule="P13",
        hit=situation(words='-sc \'{"method": "medusa"}\'', method=None),
        miss=situation(words='-sc \'{"method": "medusa"}\'', method=None, version="0.32.0"),
    ),
    Case(
        rule="P14",
        hit=situation(draft=replace(FROM_FILES, architecture="Qwen3DFlashDraftModel")),
        miss=situation(draft=FROM_FILES),
    ),
    Case(
        rule="P15",
        hit=situation(draft=replace(DFLASH, projector_type="domino")),
        miss=situation(draft=replace(DFLASH, projector_type="dspark")),
    ),
    Case(
        rule="P16",
        hit=situation(method=None, draft=replace(LOCAL, name=DENSE.name)),
        miss=situation(method=None, draft=replace(LOCAL, name=DENSE.name, verifier="Qwen/Qwen3-8B")),
    ),
    Case(
        rule="P17",
        hit=situation(method="mtp", target=replace(UNKNOWN, model_type="deepseek_v41")),
        miss=situation(method="dspark", draft=DSPARK, target=replace(UNKNOWN, model_type="deepseek_v41")),
    ),
]

SHAPES = [
    Case(rule="P18", hit=situation(num_drafts=20), miss=situation(num_drafts=15)),
    Case(
        rule="P19",
        hit=situation(method="dspark", num_drafts=7, draft=BLOCK5),
        miss=situation(method="dspark", num_drafts=5, draft=BLOCK5),
    ),
    Case(
        rule="P20",
        hit=situation(method="dspark", num_drafts=5, draft=DSPARK, version="0.26.1"),
        miss=situation(method="dspark", num_drafts=5, draft=DSPARK, version="0.28.0"),
    ),
    Case(rule="P21", hit=sglang(num_drafts=14), miss=sglang(num_drafts=15)),
    Case(rule="P21", hit=situation(num_drafts=16), miss=situation(num_drafts=14)),
    Case(
        rule="P22",
        hit=sglang(method="dspark", num_drafts=6, draft=DSPARK),
        miss=sglang(method="dspark", num_drafts=7, draft=DSPARK),
    ),
    Case(rule="P23", hit=situation(target=HYBRID), miss=situation(target=HYBRID, draft=MIXED)),
    Case(
        rule="P23",
        hit=situation(draft=replace(DFLASH, fc_width=4 * 4096)),
        miss=situation(draft=replace(DFLASH, fc_width=5 * 4096)),
    ),
    Case(rule="P24", hit=situation(version="0.20.0"), miss=situation(version="0.20.1")),
    Case(
        rule="P25",
        hit=situation(method="mtp", num_drafts=3, target=FIVE),
        miss=situation(method="mtp", num_drafts=4, target=FIVE),
    ),
    Case(
        rule="P25a",
        hit=situation(method="mtp", num_drafts=3, target=HYBRID),
        miss=situation(method="mtp", num_drafts=1, target=HYBRID),
    ),
    Case(
        rule="P26",
        hit=situation(version="0.32.0", draft=replace(DFLASH, context_length=4096)),
        miss=situation(version="0.32.0", draft=replace(DFLASH, context_length=4096), context_length=4096),
    ),
    Case(
        rule="P26a",
        hit=situation(draft=replace(DFLASH, context_length=4096, rope_type="yarn")),
        miss=situation(draft=replace(DFLASH, context_length=4096, rope_type="llama3")),
    ),
    Case(
        rule="P27",
        hit=situation(draft=replace(DFLASH, draft_vocab_size=32000, tensor_names=frozenset({"fc.weight"}))),
        miss=situation(draft=replace(DFLASH, draft_vocab_size=32000, tensor_names=frozenset({"d2t"}))),
    ),
    Case(rule="P28", hit=situation(draft=replace(FROM_FILES, mask_token_id=None)), miss=situation(draft=FROM_FILES)),
    Case(
        rule="P29",
        hit=sglang(draft=replace(DFLASH, mask_token_id=151936)),
        miss=sglang(draft=replace(DFLASH, mask_token_id=151935)),
    ),
    Case(
        rule="P30",
        hit=situation(version="0.32.0", draft=replace(DFLASH, file_names=frozenset({"mask_embedding.pt"}))),
        miss=situation(version="0.33.0", draft=replace(DFLASH, file_names=frozenset({"mask_embedding.pt"}))),
    ),
    Case(
        rule="P31",
        hit=situation(draft=replace(DFLASH, declared_sample_from_anchor=True)),
        miss=situation(draft=replace(DFLASH, declared_sample_from_anchor=False)),
    ),
    Case(
        rule="P31a",
        hit=situation(draft=replace(DFLASH, drafts_from_anchor=True)),
        miss=situation(method="dspark", draft=DSPARK),
    ),
    Case(
        rule="P32",
        hit=situation(draft=replace(DFLASH, interleaved_rope=True)),
        miss=situation(draft=replace(DFLASH, interleaved_rope=True, declares_rope_style=True)),
    ),
    Case(
        rule="P33",
        hit=situation(method="draft-model", draft=DraftFacts(name="small", origin="config.json", vocab_size=32000)),
        miss=situation(method="draft-model", draft=DraftFacts(name="small", origin="config.json", vocab_size=151936)),
    ),
]
