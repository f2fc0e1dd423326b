"""All matrix products of a decoder in one CPU runtime, timed, in that runtime's environment; for `cpu_runtimes.py`.

Needs numpy and the runtime alone. Reads what to do as JSON from stdin:

    {"runtime": "onnxruntime-4bit", "layers": 30, "widths": {"hidden": 576, "keys": 192, "mlp": 1536, "vocab": 49152},
     "rows": [1, 8], "repeats": 20, "threads": 2}

and writes {"seconds": {"1": [...], "8": [...]}, "cold_s": ..., "peak_bytes": ..., "version": ...} to stdout. Products
hang on one another as in the model (query, key and value; output; gate and up; down; at last the head). Norms,
attention and what else a pass does are left out, in favour of the runtime. Weights are random: times do not depend on
them.
"""

# ruff: noqa: PLC0415 - each runtime is imported where it is used

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Step = Callable[[np.ndarray], object]


@dataclass(frozen=True, kw_only=True)
class Product:
    """One product [rows, size_in] x [size_in, size_out], of which the first `taken` columns go on."""

    name: str
    size_in: int
    size_out: int
    taken: int


def products(layers: int, widths: dict[str, int]) -> Iterator[Product]:
    """Yield the products of a pass in their order."""
    hidden, mlp = widths["hidden"], widths["mlp"]
    for layer in range(layers):
        yield Product(name=f"qkv{layer}", size_in=hidden, size_out=hidden + 2 * widths["keys"], taken=hidden)
        yield Product(name=f"o{layer}", size_in=hidden, size_out=hidden, taken=hidden)
        yield Product(name=f"up{layer}", size_in=hidden, size_out=2 * mlp, taken=mlp)
        yield Product(name=f"down{layer}", size_in=mlp, size_out=hidden, taken=hidden)
    yield Product(name="head", size_in=hidden, size_out=widths["vocab"], taken=widths["vocab"])


def weights(product: Product) -> np.ndarray:
    """Return random weights. Shapes: returns [size_out, size_in] float32."""
    generator = np.random.default_rng(len(product.name) + product.size_out)
    drawn = generator.standard_normal((product.size_out, product.size_in), dtype=np.float32)
    return drawn * np.float32(product.size_in**-0.5)


def onnxruntime(chain: list[Product], threads: int, bits: int, group: int) -> tuple[Step, str]:
    """Products with MatMulNBits, activations in eight bits (accuracy level 4)."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    nodes, tensors = [], []

    def constant(name: str, value: np.ndarray) -> str:
        tensors.append(numpy_helper.from_array(value, name))
        return name

    constant("axis", np.array([1])), constant("start", np.array([0]))
    before = "x"
    for one in chain:
        groups = one.size_in // group
        packed = np.random.default_rng(1).integers(0, 256, (one.size_out, groups, group * bits // 8), dtype=np.uint8)
        scales = np.full(one.size_out * groups, 0.01, dtype=np.float32)
        nodes.append(
            helper.make_node(
                "MatMulNBits",
                [before, constant(f"{one.name}.w", packed), constant(f"{one.name}.s", scales)],
                [f"{one.name}.y"],
                domain="com.microsoft",
                K=one.size_in,
                N=one.size_out,
                bits=bits,
                block_size=group,
                accuracy_level=4,
            )
        )
        before = f"{one.name}.y"
        if one.taken != one.size_out:
            end = constant(f"{one.name}.end", np.array([one.taken]))
            nodes.append(helper.make_node("Slice", [before, "start", end, "axis"], [f"{one.name}.t"]))
            before = f"{one.name}.t"
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", chain[0].size_in])
    made = helper.make_tensor_value_info(before, TensorProto.FLOAT, ["rows", chain[-1].size_out])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(helper.make_graph(nodes, "products", [given], [made], tensors), opset_imports=opsets)
    model.ir_version = 9
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return lambda x: session.run(None, {"x": x}), f"{onnxruntime.__version__}, onnx {onnx.__version__}"


def openvino(chain: list[Product], threads: int) -> tuple[Step, str]:
    """Products on eight-bit weights with a scale a row, which the plugin multiplies without unpacking them all."""
    import openvino as ov
    from openvino import opset13 as op

    given = op.parameter([-1, chain[0].size_in], ov.Type.f32)
    before = given
    for one in chain:
        stored = np.clip(weights(one) * 60, -127, 127).astype(np.int8)
        scales = np.full((one.size_out, 1), 0.02, dtype=np.float32)
        weight = op.multiply(op.convert(op.constant(stored), ov.Type.f32), op.constant(scales))
        before = op.matmul(before, weight, False, True)
        if one.taken != one.size_out:
            ends = [np.array([number]) for number in (0, one.taken, 1, 1)]
            before = op.slice(before, *(op.constant(end) for end in ends))
    compiled = ov.Core().compile_model(
        ov.Model([before], [given]), "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    )
    request = compiled.create_infer_request()
    return lambda x: request.infer([x]), ov.__version__


def torch_linear(chain: list[Product], threads: int, *, is_compiled: bool) -> tuple[Step, str]:
    """Products in bfloat16 through oneDNN, called one by one or compiled as one region."""
    import torch

    torch.set_num_threads(threads)
    layers = [torch.from_numpy(weights(one)).to(torch.bfloat16) for one in chain]

    def run(x: torch.Tensor) -> torch.Tensor:
        for one, weight in zip(chain, layers, strict=True):
            x = torch.nn.functional.linear(x, weight)[:, : one.taken]
        return x

    called = torch.compile(run, dynamic=False) if is_compiled else run
    inside = torch.inference_mode()(lambda x: called(torch.from_numpy(x).to(torch.bfloat16)))
    return inside, torch.__version__


RUNTIMES: dict[str, Callable[[list[Product], int], tuple[Step, str]]] = {
    "onnxruntime-4bit": lambda chain, threads: onnxruntime(chain, threads, 4, 32),
    "onnxruntime-8bit": lambda chain, threads: onnxruntime(chain, threads, 8, 64),
    "openvino-8bit": openvino,
    "torch-bf16": lambda chain, threads: torch_linear(chain, threads, is_compiled=False),
    "torch-compiled-bf16": lambda chain, threads: torch_linear(chain, threads, is_compiled=True),
}


def main() -> None:
    """Read what to do, do it, and write the times."""
    begin = time.perf_counter()
    asked: dict[str, Any] = json.load(sys.stdin)
    chain = list(products(asked["layers"], asked["widths"]))
    step, version = RUNTIMES[asked["runtime"]](chain, asked["threads"])
    inputs = {rows: np.ones((rows, chain[0].size_in), dtype=np.float32) for rows in asked["rows"]}
    step(inputs[asked["rows"][0]])
    cold_s = time.perf_counter() - begin
    for x in inputs.values():
        for _ in range(3):
            step(x)
    seconds: dict[int, list[float]] = {rows: [] for rows in inputs}
    for _ in range(asked["repeats"]):
        for rows, x in inputs.items():  # in turns, so that a disturbance meets all of them
            start = time.perf_counter()
            step(x)
            seconds[rows].append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": seconds, "cold_s": cold_s, "peak_bytes": peak, "version": version}))


if __name__ == "__main__":
    main()
