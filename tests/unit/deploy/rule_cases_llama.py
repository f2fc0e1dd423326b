"""Cases of the rules about llama.cpp."""

from dataclasses import replace

from situations import DFLASH, DSPARK, FOR_MIXTURE, HYBRID, MIXED, MIXTURE, Case, llama

from blockdraft.deploy.deployment import Draft
from blockdraft.deploy.model_facts import DraftFacts
from blockdraft.deploy.rules import Workload

IN_GGUF = replace(DFLASH, origin="GGUF header", architecture="dflash")
PAIR = {"target": HYBRID, "draft": MIXED}
MIXTURE_PAIR = {"target": MIXTURE, "draft": FOR_MIXTURE}
MTP = {"method": "mtp", "num_drafts": 2, "draft": None}
DSPARK_PAIR = {"method": "dspark", "num_drafts": 7, "draft": DSPARK}
MOD = Draft(method="ngram-mod")
NETWORK = Draft(method="dflash", model="d", num_draft_tokens=15)
EAGLE3 = DraftFacts(name="e", origin="GGUF header", method="eagle3", architecture="eagle3")

CASES = [
    Case(rule="L1", hit=llama(words="--draft-max 16"), miss=llama(words="--spec-draft-n-max 15")),
    Case(rule="L2", hit=llama(words="--draft-model d.gguf"), miss=llama(words="--model-draft d.gguf")),
    Case(rule="L3", hit=llama(words="--spec-type dflash"), miss=llama(words="--spec-type draft-dflash,ngram-mod")),
    Case(rule="L4", hit=llama(draft=replace(IN_GGUF, architecture="dflash-draft")), miss=llama(draft=IN_GGUF)),
    Case(rule="L5", hit=llama(draft=replace(IN_GGUF, vocab_size=None)), miss=llama(draft=IN_GGUF)),
    Case(rule="L6", hit=llama(own={"mmproj": "m.gguf"}), miss=llama(own={"mmproj": "m.gguf"}, **MTP)),
    Case(rule="L7", hit=llama(num_sequences=8), miss=llama(num_sequences=4)),
    Case(rule="L8", hit=llama(num_sequences=2, on="strix-halo"), miss=llama(num_sequences=1, on="strix-halo")),
    Case(
        rule="L9",
        hit=llama(target=HYBRID, drafts=(MOD,)),
        miss=llama(target=HYBRID, draft=MIXED, drafts=(MOD, NETWORK)),
    ),
    Case(rule="L10", hit=llama(**MTP, target=HYBRID), miss=llama(**MTP)),
    Case(rule="L11", hit=llama(), miss=llama(**MTP)),
    Case(
        rule="L12",
        hit=llama(options={"gpu_layers": 0}),
        miss=llama(options={"gpu_layers": 0}, on="cpu"),
    ),
    Case(
        rule="L12a",
        hit=llama(context_length=32768, num_sequences=2),
        miss=llama(context_length=32768, num_sequences=1),
    ),
    Case(
        rule="L13",
        hit=llama(words="-md e.gguf", method="eagle3", draft=EAGLE3),
        miss=llama(words="-md d.gguf", draft=IN_GGUF),
    ),
    Case(rule="L14", hit=llama(words="-hfd org/draft"), miss=llama(words="-hfd org/draft --spec-type draft-dflash")),
    Case(rule="L15", hit=llama(num_drafts=None), miss=llama(num_drafts=8)),
    Case(rule="L16", hit=llama(num_drafts=16), miss=llama(num_drafts=15)),
    Case(
        rule="L17",
        hit=llama(**DSPARK_PAIR | {"draft": replace(DSPARK, tensor_names=frozenset())}, options={"p_min": 0.5}),
        miss=llama(
            **DSPARK_PAIR | {"draft": replace(DSPARK, tensor_names=frozenset({"conf_proj.weight"}))},
            options={"p_min": 0.5},
        ),
    ),
    Case(
        rule="L18",
        hit=llama(**PAIR, drafts=(NETWORK, MOD)),
        miss=llama(**PAIR, drafts=(NETWORK, replace(MOD, num_draft_tokens=15))),
    ),
    Case(rule="L19", hit=llama(words="--spec-draft-conf-min 0.5"), miss=llama(words="--spec-draft-p-min 0.5")),
    Case(
        rule="L20",
        hit=llama(draft_fields={"kv_dtype": "q8_0"}),
        miss=llama(draft_fields={"kv_dtype": "f16"}),
    ),
    Case(
        rule="L21",
        hit=llama(drafts=(NETWORK, Draft(method="mtp"))),
        miss=llama(drafts=(NETWORK, MOD)),
    ),
    Case(rule="L22", hit=llama(words="--spec-type none,ngram-mod"), miss=llama(words="--spec-type none")),
    Case(
        rule="L23",
        hit=llama(**MIXTURE_PAIR, own={"n-cpu-moe": 20}),
        miss=llama(target=MIXTURE, drafts=(MOD,), own={"n-cpu-moe": 20}),
    ),
    Case(rule="L24", hit=llama(own={"split-mode": "tensor"}), miss=llama(own={"split-mode": "layer"})),
    Case(
        rule="L25",
        hit=llama(**DSPARK_PAIR, words="--spec-draft-device CUDA0"),
        miss=llama(words="--spec-draft-device CUDA0"),
    ),
    Case(
        rule="L26",
        hit=llama(target=replace(HYBRID, origin="GGUF header", model_type="falcon"), draft=MIXED),
        miss=llama(target=replace(HYBRID, origin="GGUF header", model_type="qwen35"), draft=MIXED),
    ),
    Case(
        rule="L27",
        hit=llama(**PAIR | {"target": replace(HYBRID, model_type="qwen3next")}),
        miss=llama(**PAIR),
    ),
    Case(rule="L28", hit=llama(target=MIXTURE, drafts=(MOD,)), miss=llama(drafts=(MOD,))),
    Case(
        rule="L29",
        hit=llama(load=Workload(request_fields=frozenset({"logprobs"}))),
        miss=llama(method=None, load=Workload(request_fields=frozenset({"logprobs"}))),
    ),
]
