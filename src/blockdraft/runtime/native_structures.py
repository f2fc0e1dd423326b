"""What the native kernels are handed: plain structures of pointers and sizes, which mirror `native/core.h`.

That file explains their fields. Nothing here owns memory.
"""

from __future__ import annotations

import ctypes
from typing import ClassVar


class CMatrix(ctypes.Structure):
    """Packed weights."""

    _fields_: ClassVar = [
        ("data", ctypes.c_void_p),
        ("format", ctypes.c_int32),
        ("rows", ctypes.c_int32),
        ("cols", ctypes.c_int32),
    ]


class CLayer(ctypes.Structure):
    """One layer."""

    _fields_: ClassVar = [
        *(
            (name, ctypes.c_void_p)
            for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm", "qkv_bias", "output_bias")
        ),
        *((name, CMatrix) for name in ("qkv", "output", "gate_up", "down")),
        ("window", ctypes.c_int32),
        ("causal", ctypes.c_int32),
    ]


class CNetwork(ctypes.Structure):
    """A stack of layers."""

    _fields_: ClassVar = [
        ("layers", ctypes.POINTER(CLayer)),
        ("final_norm", ctypes.c_void_p),
        ("head", CMatrix),
        ("embedding", CMatrix),
        *(
            (name, ctypes.c_int32)
            for name in ("num_layers", "width", "num_heads", "num_kv_heads", "head_dim", "rotary_dim")
        ),
        *((name, ctypes.c_float) for name in ("norm_eps", "score_scale", "embedding_scale")),
    ]


class CSegment(ctypes.Structure):
    """The rows of one sequence."""

    _fields_: ClassVar = [
        ("cache", ctypes.c_void_p),
        ("capacity", ctypes.c_int64),
        ("num_past", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
    ]


class CPass(ctypes.Structure):
    """A pass over rows."""

    _fields_: ClassVar = [
        *(
            (name, ctypes.c_void_p)
            for name in (
                "segments",
                "token_ids",
                "cosines",
                "sines",
                "tapped",
                "taps",
                "wanted",
                "hidden",
                "logits",
                "best",
            )
        ),
        *((name, ctypes.c_int32) for name in ("num_segments", "num_rows", "num_taps", "num_wanted", "num_choices")),
    ]


class CContext(ctypes.Structure):
    """Tapped states that extend contexts."""

    _fields_: ClassVar = [
        *((name, ctypes.c_void_p) for name in ("segments", "features", "cosines", "sines", "hidden_norm")),
        ("fuse", CMatrix),
        ("num_segments", ctypes.c_int32),
        ("num_rows", ctypes.c_int32),
    ]


class CWalk(ctypes.Structure):
    """A walk through draft blocks."""

    _fields_: ClassVar = [
        ("w2", CMatrix),
        *((name, ctypes.c_void_p) for name in ("w1", "logits", "starts", "counts", "target_ids", "previous", "chosen")),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_int32) for name in ("num_sequences", "num_slots", "num_choices")),
    ]


STRUCTURES = (CMatrix, CLayer, CNetwork, CSegment, CPass, CContext, CWalk)
"""In the order of `core.h`, by which the library tells that it was built from the same sources."""
