"""Run inside vLLM's own environment: answer prompts greedily with a DFlash drafter, print its counters as JSON.

    python vllm_program.py TARGET DRAFTER NUM_DRAFTS MAX_TOKENS REQUESTS.json

REQUESTS.json is {"prompts": [[token ids], ...], "stop_ids": [...]}: without a tokenizer nothing else ends an answer.
The output's last line is {"num_drafts": ..., "num_draft_tokens": ..., "num_accepted_tokens": ...}.
"""

import json
import sys
from pathlib import Path

from vllm import LLM, SamplingParams


def main(target: str, drafter: str, num_drafts: str, max_tokens: str, requests: str) -> None:
    llm = LLM(
        target,
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=2048,
        max_num_seqs=4,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config={"method": "dflash", "model": drafter, "num_speculative_tokens": int(num_drafts)},
    )
    asked = json.loads(Path(requests).read_text())
    sampling = SamplingParams(
        temperature=0, max_tokens=int(max_tokens), detokenize=False, stop_token_ids=asked["stop_ids"]
    )
    llm.generate([{"prompt_token_ids": ids} for ids in asked["prompts"]], sampling)
    prefix = "vllm:spec_decode_"
    counters = {
        metric.name.removeprefix(prefix): metric.value
        for metric in llm.get_metrics()
        if metric.name.startswith(prefix) and hasattr(metric, "value")
    }
    print("\n" + json.dumps(counters))


if __name__ == "__main__":
    main(*sys.argv[1:])
