"""The default model written out with its weights as our engine computes them: dequantised, in bfloat16.

Peers then run the same weights; the kernels of the shipped quantisation would round activations as well.
"""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from safetensors.torch import save_file

from blockdraft.models.gguf_tokenizer import read_gguf_tokenizer
from blockdraft.models.load import load_target
from blockdraft.models.weights.gguf_header import read_gguf_header
from blockdraft.models.weights.layout import destinations


def write_bf16_gguf(source: Path, path: Path) -> Path:
    """Copy a GGUF file with every matrix in bfloat16."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
    written_by_writer = {"general.architecture", "general.file_type", "general.quantization_version"}
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name not in written_by_writer:
            writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:])
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType.BF16
        writer.add_tensor(tensor.name, quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_llama_folder(source: Path, folder: Path) -> Path:
    """Write a GGUF file of the Llama architecture as a Hugging Face folder in bfloat16, without a tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    target = load_target(source, device="cpu", dtype="bfloat16")
    config, metadata = target.config, read_gguf_header(source).metadata
    tensors = destinations(target.weights, config, stored=())
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    settings = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.context_length,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_embeddings,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
    }
    (folder / "config.json").write_text(json.dumps(settings, indent=2), encoding="utf-8")
    return folder


def write_tokenizer(source: Path, folder: Path) -> None:
    """Write the tokenizer of a GGUF file and its chat template into a Hugging Face folder."""
    read_gguf_tokenizer(source).backend.save_pretrained(folder)
