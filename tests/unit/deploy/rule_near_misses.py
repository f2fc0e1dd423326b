"""Near misses inside the releases of a rule, for rules whose other case lies outside them."""

from dataclasses import replace

from situations import DENSE, DFLASH, DFLASH2, DSPARK, HYBRID, UNKNOWN, sglang, situation

V1 = {"VLLM_USE_V2_MODEL_RUNNER": "0"}
V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1"}

NEAR_MISSES = {
    "P1": situation(version="0.19.1", method="eagle3"),
    "P2": situation(version="0.24.0"),
    "P7": situation(words='-sc \'{"rejection_sample_method": "standard"}\''),
    "P11": situation(words="--kv-offloading-size 16"),
    "P12a": situation(version="0.21.0", words="--speculative-config '{}'"),
    "P13": situation(words='-sc \'{"method": "eagle3"}\'', method="eagle3"),
    "P20": situation(version="0.26.1", method="dspark", num_drafts=7, draft=DSPARK),
    "P24": situation(version="0.20.0", method="eagle3"),
    "P30": situation(version="0.32.0", draft=replace(DFLASH, file_names=frozenset({"config.json"}))),
    "P35": situation(
        version="0.23.0",
        target=replace(UNKNOWN, model_type="gemma4"),
        draft_fields={"attention_backend": "FLASH_ATTN"},
    ),
    "P55a": situation(max_batched_tokens=8192),
    "P69": situation(version="0.32.0", target=DENSE, draft=DFLASH2, num_drafts=7),
    "P72a": sglang(target=HYBRID, words="--mamba-radix-cache-strategy extra_buffer"),
    "P77": situation(version="0.29.0"),
    "P78": situation(
        version="0.27.1", method="dspark", draft=DSPARK, num_drafts=7, target=replace(UNKNOWN, model_type="qwen3")
    ),
    "P81": situation(version="0.28.0", env=V1, options={"draft_sampling": "probabilistic"}),
    "P85": situation(version="0.27.1"),
    "P87": situation(version="0.31.0", own={"async-scheduling": True}, method="eagle3"),
}

WITH_ONE_BUT_NOT_THE_OTHER = {
    "P81": situation(version="0.28.0", env=V2, options={"draft_sampling": "greedy"}),
    "P69": situation(version="0.32.0", target=HYBRID),  # a plain DFlash drafter keeps its hits
    "P24": situation(version="0.20.0", method="mtp"),
    "P35": situation(version="0.23.0"),
}
