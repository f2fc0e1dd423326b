"""Random deployments of each engine, drawn from the tables of its dialect."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from blockdraft.deploy.deployment import Container, Deployment, Draft, EngineName
from blockdraft.deploy.dialects import llamacpp, sglang, vllm
from blockdraft.deploy.dialects.flags import Flag, flag_table, plain
from blockdraft.deploy.dialects.settings import Setting

ENGINES: tuple[EngineName, ...] = ("vllm", "sglang", "llamacpp")
SETTINGS = {"vllm": vllm.SETTINGS, "sglang": sglang.SETTINGS, "llamacpp": llamacpp.SETTINGS}

NAMES = st.from_regex(r"[A-Za-z][\w.]{0,12}", fullmatch=True)
TEXTS = st.one_of(
    NAMES, st.sampled_from(["a b", 'it\'s "so"', '{"a": [1, 2.5], "b": null}', "*.gguf", "x;y", "", "a=b"])
)
COUNTS = st.integers(2, 10_000)
REPOSITORIES = st.builds("{}/{}".format, NAMES, NAMES)
FILES = st.builds("{}{}.gguf".format, st.sampled_from(["", "/models/", "~/", "./a/b/"]), NAMES)

_NAMED_MODELS = {"model", "model-path", "hf-repo", "model-url", "docker-repo"}
_READ_ASIDE = {"split-mode", "tensor-split", "speculative-config", "lookup-cache-static"}


def values_of(setting: Setting) -> st.SearchStrategy[Any]:
    """Return values of the field that a flag fills."""
    if setting.type == "integer":
        return COUNTS
    if setting.type == "number":
        return st.sampled_from([0.25, 0.5, 0.875, 0.95])
    if setting.type == "switch":
        return st.just(True)
    if setting.fills == "attention_backend":
        return st.sampled_from(["FLASHINFER", "TRITON_ATTN"])
    words = [*setting.words, *setting.also.values()]
    return st.one_of(NAMES, st.sampled_from(words)) if words else NAMES


@st.composite
def owns(draw: st.DrawFn, engine: EngineName) -> dict[str, Any]:
    """Return settings of flags that fill no field, on and off, with one value and with several."""
    taken = {setting.key for setting in SETTINGS[engine]} | _NAMED_MODELS | _READ_ASIDE
    free = [
        flag
        for flag in flag_table(engine).flags
        if flag.key not in taken and not flag.key.startswith(("spec", "draft"))
    ]
    chosen = draw(st.lists(st.sampled_from(free), max_size=4, unique_by=lambda flag: flag.key))
    return {flag.key: draw(_own(flag)) for flag in chosen}


def _own(flag: Flag) -> st.SearchStrategy[Any]:
    if flag.arity == "0":
        return st.sampled_from([True, False] if flag.off_names else [True])
    one = st.one_of(TEXTS.map(plain), COUNTS)
    if flag.arity in ("+", "*", "2"):
        size = {"min_size": 2, "max_size": 2} if flag.arity == "2" else {"min_size": 1, "max_size": 3}
        return st.lists(one, **size).map(tuple)
    return one


@st.composite
def drafts(draw: st.DrawFn, engine: EngineName) -> tuple[Draft, ...]:
    """Return what an engine can draft with."""
    if draw(st.booleans()):
        return ()
    method = draw(st.sampled_from(_METHODS[engine]))
    length = draw(st.one_of(st.none(), st.integers(1, 64)))
    if engine == "llamacpp":
        return draw(_llamacpp_drafts(method, length))
    needs_model = method in ("dflash", "dspark", "eagle", "eagle3", "draft-model")
    model = draw(REPOSITORIES.map(lambda name: f"{name}-draft".replace("mtp", "m"))) if needs_model else None
    options: dict[str, Any] = {}
    fields_of_draft: dict[str, Any] = {}
    if needs_model:
        fields_of_draft = {
            "kv_dtype": draw(st.sampled_from([None, "bf16", "fp8", "auto"])),
            "attention_backend": draw(st.sampled_from([None, "FLASH_ATTN" if engine == "vllm" else "fa3"])),
            "quantization": draw(st.sampled_from([None, "fp8"])),
        }
    if draw(st.booleans()):
        options |= {"draft_sampling": "probabilistic"}
    if draw(st.booleans()):
        options |= {"verification": "block"}
    if engine == "vllm" and method == "ngram":
        options |= {"n_match": 5, "n_match_min": 2} if draw(st.booleans()) else {"on_gpu": True}
    if engine == "vllm" and method != "ngram" and draw(st.booleans()):
        options |= {"enforce_eager": True, "num_speculative_tokens_per_batch_size": [[1, 4, 8], [5, 64, 2]]}
    if engine == "sglang" and method in ("eagle", "eagle3") and length and draw(st.booleans()):
        options |= {"num_steps": 3, "num_branches": 4}
    if engine == "sglang" and draw(st.booleans()):
        options |= {"accept_threshold_single": 0.5, "draft_window_size": 512}
    return (Draft(method=method, model=model, num_draft_tokens=length, options=options, **fields_of_draft),)


@st.composite
def _llamacpp_drafts(draw: st.DrawFn, method: Any, length: int | None) -> tuple[Draft, ...]:
    model = Draft(
        method=method,
        model=draw(st.one_of(REPOSITORIES, FILES.filter(lambda name: "/" in name))) if method != "mtp" else None,
        num_draft_tokens=length,
        kv_dtype=draw(st.sampled_from([None, "q8_0"])),
        options=draw(st.sampled_from([{}, {"n_min": 2, "p_min": 0.5}, {"gpu_layers": 99, "draft_sampling": "greedy"}])),
    )
    mod = Draft(
        method="ngram-mod", num_draft_tokens=length, options=draw(st.sampled_from([{}, {"n_match": 24, "n_min": 4}]))
    )
    simple = Draft(
        method="ngram", num_draft_tokens=length, options=draw(st.sampled_from([{}, {"n_match": 12, "min_hits": 2}]))
    )
    index = Draft(method="ngram", num_draft_tokens=length, options={"variant": "ngram-map-k4v", "n_match": 8})
    return tuple(
        draw(st.sampled_from([(model,), (model, mod), (mod,), (simple, mod), (index,), (simple, index, model)]))
    )


_METHODS: dict[EngineName, tuple[Any, ...]] = {
    "vllm": ("dflash", "dspark", "mtp", "eagle", "eagle3", "draft-model", "ngram", "suffix"),
    "sglang": ("dflash", "dspark", "mtp", "eagle", "eagle3", "draft-model", "ngram"),
    "llamacpp": ("dflash", "dspark", "mtp", "eagle3", "draft-model"),
}

CONTAINERS = st.builds(
    Container,
    image=st.just(""),
    ports=st.sampled_from([(), ("8000:8000",), ("127.0.0.1:1:2", "3:4")]),
    mounts=st.sampled_from([(), ("~/cache:/cache", "/a:/b:ro")]),
    gpus=st.sampled_from([None, "all", "2", "device=0,1"]),
    shares_ipc=st.booleans(),
    other=st.sampled_from(
        [(), ("--shm-size", "16g", "--network", "host"), ("--device", "/dev/kfd", "--device", "/dev/dri")]
    ),
)
_IMAGES = {
    "vllm": "vllm/vllm-openai:latest",
    "sglang": "lmsysorg/sglang:dev",
    "llamacpp": "ghcr.io/ggml-org/llama.cpp:server",
}


@st.composite
def deployments(draw: st.DrawFn, engine: EngineName, contained: bool | None = None) -> Deployment:
    """Return a deployment that the engine can say."""
    values = {setting.fills: draw(values_of(setting)) for setting in SETTINGS[engine] if draw(st.booleans())}
    values.pop("target", None)
    if values.get("value_dtype") is not None and values.get("value_dtype") == values.get("kv_dtype", "f16"):
        del values["value_dtype"]
    if "value_dtype" in values:
        values.setdefault("kv_dtype", "f16")
    elif engine == "llamacpp" and "kv_dtype" in values:
        values["kv_dtype"] = draw(st.sampled_from(["f16", "q8_0"]))
    if engine == "llamacpp" and draw(st.booleans()):
        values["tensor_parallel"] = draw(st.integers(2, 8))
    container = None
    if contained or (contained is None and draw(st.booleans())):
        container = draw(CONTAINERS)
        container = Container(**{**_shallow(container), "image": _IMAGES[engine]})
        if engine != "vllm":
            values["host"] = "0.0.0.0"
    return Deployment(
        engine=engine,
        target=draw(st.one_of(REPOSITORIES, FILES) if engine == "llamacpp" else REPOSITORIES),
        drafts=draw(drafts(engine)),
        own=draw(owns(engine)),
        environment=draw(st.sampled_from([{}, {"HF_TOKEN": "abc", "CUDA_VISIBLE_DEVICES": "0,1"}, {"A": "b c"}])),
        container=container,
        **values,
    )


def _shallow(container: Container) -> dict[str, Any]:
    return {field.name: getattr(container, field.name) for field in fields(container)}
