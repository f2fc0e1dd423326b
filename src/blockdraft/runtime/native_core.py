"""The native kernels from Python: which of them this processor has, and whole passes of a network through them.

The library is built when blockdraft is installed. Where no compiler was found there is none, and
`why_unavailable` says so: models then run in torch. Calls release the interpreter's lock.

Shape legend: T packed rows, D width, V vocabulary, M tapped layers, R rows with logits, P positions, U draft
vocabulary.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from blockdraft.runtime.memory import Stretch
from blockdraft.runtime.native_structures import (
    STRUCTURES,
    CContext,
    CLayer,
    CMatrix,
    CNetwork,
    CPass,
    CSegment,
    CWalk,
)
from blockdraft.runtime.quantized import GROUP, UNIT_ROWS, Format, Quantized, pack, pad_rows, unpack

Floats = NDArray[np.float32]

MOST_HEADS_OF_A_GROUP = 64
"""As many query heads may share a key/value head (`kMostQueries` in native/network.cpp)."""

LIBRARY = Path(__file__).parent / "libblockdraft_core.so"
"""Where the build puts the library."""


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    library.blockdraft_kernels.restype = ctypes.c_char_p
    library.blockdraft_kernels.argtypes = [ctypes.c_int]
    library.blockdraft_open.restype = ctypes.c_void_p
    library.blockdraft_open.argtypes = [ctypes.c_char_p, ctypes.c_int]
    library.blockdraft_close.argtypes = [ctypes.c_void_p]
    library.blockdraft_run.argtypes = [ctypes.c_void_p] * 5
    library.blockdraft_product.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int,
        ctypes.c_void_p,
    ]
    return library


@cache
def why_unavailable() -> str | None:
    """Return why there are no native kernels here, in half a sentence; None if there are."""
    if not LIBRARY.exists():
        return "this installation came without native kernels (no C++ compiler was found)"
    try:
        sizes = [_library().blockdraft_size(n) for n in range(len(STRUCTURES))]
    except (OSError, AttributeError) as error:
        return f"the native kernels cannot be loaded: {error}"
    if sizes != [ctypes.sizeof(structure) for structure in STRUCTURES]:
        return "the native kernels were built from other sources; install blockdraft again"
    return None


def available_kernels() -> list[str]:
    """Return the sets of kernels that this processor can run, best first; none without a library."""
    if why_unavailable():
        return []
    names: list[str] = []
    while name := _library().blockdraft_kernels(len(names)):
        names.append(name.decode())
    return names


def _address(array: NDArray[Any] | torch.Tensor | None) -> int | None:
    if array is None:
        return None
    if isinstance(array, torch.Tensor):  # tells it ten times as fast, and a round asks for twenty
        assert array.is_contiguous()
        return array.data_ptr()
    assert array.flags.c_contiguous
    return array.ctypes.data


def _ints(values: Sequence[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(values))(*values)


def int_array(count: int) -> ctypes.Array[ctypes.c_int32]:
    """Return room for so many whole numbers."""
    return (ctypes.c_int32 * count)()


@dataclass(frozen=True, kw_only=True)
class PackedMatrix:
    """A matrix in the units of `quantized.pack`; `num_rows` are its own, without padding."""

    data: NDArray[np.uint8]
    format: Format
    num_rows: int
    is_placed: bool = False
    """Whether it is in a `Stretch`, where passes read it; a network leaves such a matrix where it is."""

    @classmethod
    def of(cls, matrix: Quantized) -> PackedMatrix:
        """Pack a matrix."""
        return cls(data=pack(pad_rows(matrix)), format=matrix.format, num_rows=matrix.shape[0])

    @property
    def padded_rows(self) -> int:
        """Rows that a product computes."""
        return int(self.data.shape[0]) * UNIT_ROWS

    @property
    def num_cols(self) -> int:
        """Width of the inputs."""
        return int(self.data.shape[1]) * GROUP

    def placed(self, stretch: Stretch) -> PackedMatrix:
        """Return a copy in a stretch of memory."""
        return replace(self, data=stretch.put(self.data), is_placed=True)

    def unpack(self) -> Quantized:
        """Return the matrix, without padding."""
        return unpack(self.data, self.format).take_rows(np.arange(self.num_rows))

    @cached_property
    def _structure(self) -> CMatrix:
        return CMatrix(_address(self.data), self.format, self.padded_rows, self.num_cols)


@dataclass(frozen=True, kw_only=True)
class PackedLayer:
    """One layer. Shapes as in `native/core.h`; `window` is None if rows see everything before them."""

    attention_norm: Floats
    mlp_norm: Floats
    qkv: PackedMatrix
    output: PackedMatrix
    gate_up: PackedMatrix
    down: PackedMatrix
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    qkv_bias: Floats | None = None
    output_bias: Floats | None = None
    window: int | None = None
    causal: bool = True

    @property
    def matrices(self) -> tuple[PackedMatrix, ...]:
        """All matrices of the layer."""
        return self.qkv, self.output, self.gate_up, self.down

    def _structure(self) -> CLayer:
        vectors = (self.attention_norm, self.mlp_norm, self.q_norm, self.k_norm, self.qkv_bias, self.output_bias)
        return CLayer(
            *(_address(vector) for vector in vectors),
            *(matrix._structure for matrix in self.matrices),
            self.window or 0,
            int(self.causal),
        )


class PackedNetwork:
    """A stack of layers with its embedding and head, as the kernels read it."""

    def __init__(
        self,
        *,
        layers: Sequence[PackedLayer],
        final_norm: Floats,
        head: PackedMatrix,
        embedding: PackedMatrix,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rotary_dim: int,
        norm_eps: float,
        score_scale: float | None = None,
        embedding_scale: float = 1.0,
    ) -> None:
        layers, self.head, self.embedding = _side_by_side(layers, head, embedding)
        self.layers, self.final_norm = tuple(layers), final_norm
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.width = len(final_norm)
        self._layers = (CLayer * len(layers))(*(layer._structure() for layer in layers))
        self._network = CNetwork(
            ctypes.cast(self._layers, ctypes.POINTER(CLayer)),
            _address(final_norm),
            self.head._structure,
            self.embedding._structure,
            len(layers),
            self.width,
            num_heads,
            num_kv_heads,
            head_dim,
            rotary_dim,
            norm_eps,
            head_dim**-0.5 if score_scale is None else score_scale,
            embedding_scale,
        )

    @property
    def num_bytes(self) -> int:
        """Bytes of the matrices; an embedding that is the head too counts once."""
        matrices = [matrix for layer in self.layers for matrix in layer.matrices]
        matrices += [self.head] if self.head is self.embedding else [self.head, self.embedding]
        return sum(matrix.data.nbytes for matrix in matrices)


def _side_by_side(
    layers: Sequence[PackedLayer], head: PackedMatrix, embedding: PackedMatrix
) -> tuple[list[PackedLayer], PackedMatrix, PackedMatrix]:
    """Move all matrices that are in none into a stretch of memory, in the order in which a pass reads them."""
    matrices = [matrix for layer in layers for matrix in layer.matrices]
    matrices += [head] if head is embedding else [head, embedding]
    loose = [matrix.data.nbytes for matrix in matrices if not matrix.is_placed]
    stretch = Stretch(sum(loose), len(loose))
    moved = [matrix if matrix.is_placed else matrix.placed(stretch) for matrix in matrices]
    rest = iter(moved)
    layers = [
        replace(layer, qkv=next(rest), output=next(rest), gate_up=next(rest), down=next(rest)) for layer in layers
    ]
    return layers, moved[4 * len(layers)], moved[-1]


@dataclass(frozen=True, slots=True)
class PackedSegment:
    """The rows that one sequence contributes; `cache` is the memory of a `PackedKVCache` with room for them."""

    cache: torch.Tensor
    capacity: int
    num_past: int
    num_rows: int


@dataclass(frozen=True, kw_only=True)
class ContextRows:
    """Tapped states of the target, to be appended to the contexts of a draft network.

    Shapes: features [T, M*D]; fuse [D, M*D]; hidden_norm [D]; angles: cosines and sines [P, rotary_dim / 2].
    """

    segments: Sequence[PackedSegment]
    features: torch.Tensor
    angles: tuple[torch.Tensor, torch.Tensor]
    fuse: PackedMatrix
    hidden_norm: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class Walk:
    """How the tokens of draft blocks are chosen: each by its logits and a bias from the token before.

    Shapes: w1 [V, rank]; w2 [U, rank]; target_ids [U], the target's id of each draft id. `counts` are the tokens of
    each sequence, `previous_ids` the target's id of the token before each.
    """

    w1: torch.Tensor
    w2: PackedMatrix
    target_ids: torch.Tensor
    counts: Sequence[int]
    previous_ids: Sequence[int]


class _ContextCall:
    """The structure of a context, with what it points to."""

    def __init__(self, context: ContextRows) -> None:
        self._context, self._segments = context, _segments(context.segments)
        self.structure = CContext(
            ctypes.addressof(self._segments),
            _address(context.features),
            _address(context.angles[0]),
            _address(context.angles[1]),
            _address(context.hidden_norm),
            context.fuse._structure,
            len(context.segments),
            context.features.shape[0],
        )


class _WalkCall:
    """The structure of a walk, with what it points to."""

    def __init__(self, walk: Walk, logits: torch.Tensor | None) -> None:
        assert logits is not None
        counts = walk.counts
        self._walk, self._logits, self._most = walk, logits, max(counts)
        self._counts, self._previous = _ints(counts), _ints(walk.previous_ids)
        self._starts = _ints(list(accumulate(counts[:-1], initial=0)))
        self._chosen = int_array(len(counts) * self._most)
        self.structure = CWalk(
            walk.w2._structure,
            _address(walk.w1),
            logits.data_ptr(),
            ctypes.addressof(self._starts),
            ctypes.addressof(self._counts),
            _address(walk.target_ids),
            ctypes.addressof(self._previous),
            ctypes.addressof(self._chosen),
            logits.stride(0),
            len(counts),
            self._most,
            walk.w2.num_rows,
        )

    def chosen(self) -> list[list[int]]:
        """Return the target's ids, as many for each sequence as its count."""
        starts = range(0, len(self._chosen), self._most)
        return [self._chosen[start : start + count] for start, count in zip(starts, self._walk.counts, strict=True)]


class Core:
    """A team of threads and a set of kernels. One pass at a time; others wait."""

    _close: Any = None

    def __init__(self, num_threads: int, kernels: str | None = None) -> None:
        """Take the named kernels, or the best that this processor has.

        Raises:
            RuntimeError: there are no native kernels, or none of that name.
        """
        names = available_kernels()
        if not names or (kernels is not None and kernels not in names):
            raise RuntimeError(why_unavailable() or f"this processor has the kernels {', '.join(names)}, not {kernels}")
        self.kernels = kernels or names[0]
        self.num_threads = num_threads
        self._handle = _library().blockdraft_open(self.kernels.encode(), num_threads)
        # Kept, as modules may be gone when the last objects are.
        self._close = _library().blockdraft_close

    def __del__(self) -> None:
        if self._close:
            self._close(self._handle)

    def run(
        self,
        network: PackedNetwork,
        segments: Sequence[PackedSegment],
        token_ids: Sequence[int],
        angles: tuple[torch.Tensor, torch.Tensor],
        *,
        wanted: Sequence[int],
        logits: torch.Tensor | None,
        hidden: torch.Tensor | None = None,
        best: ctypes.Array[ctypes.c_int32] | None = None,
        tapped: Sequence[int] = (),
        taps: torch.Tensor | None = None,
        context: ContextRows | None = None,
        walk: Walk | None = None,
    ) -> list[list[int]]:
        """Run all rows of the segments, write their keys and values, and fill the outputs.

        A draft is one call: `context` is appended before the rows run, and `walk` goes through their logits.

        Shapes: token_ids [T]; angles: cosines and sines [P, rotary_dim / 2]; wanted [R], packed rows; logits
        [R, head.padded_rows]; hidden [R, D], after the final norm; best R, where each row of logits is largest, the
        first of equals; tapped ascending, taps [T, M*D]. Returns what the walk chose.
        """
        rows = _segments(segments)
        ids, wanted_rows, layers = _ints(token_ids), _ints(wanted), _ints(tapped)
        call = CPass(
            ctypes.addressof(rows),
            ctypes.addressof(ids),
            _address(angles[0]),
            _address(angles[1]),
            ctypes.addressof(layers),
            _address(taps),
            ctypes.addressof(wanted_rows),
            _address(hidden),
            _address(logits),
            None if best is None else ctypes.addressof(best),
            len(segments),
            len(token_ids),
            len(tapped),
            len(wanted),
            network.head.num_rows,
        )
        return self._call(network, context, call, _WalkCall(walk, logits) if walk else None)

    def extend(self, network: PackedNetwork, context: ContextRows) -> None:
        """Append tapped states of the target to the context of a draft network."""
        self._call(network, context, None, None)

    def walk(self, walk: Walk, logits: torch.Tensor) -> list[list[int]]:
        """Choose the tokens of draft blocks. Shapes: logits [T, >= U], T the sum of counts, rows contiguous."""
        return self._call(None, None, None, _WalkCall(walk, logits))

    def _call(
        self, network: PackedNetwork | None, context: ContextRows | None, rows: CPass | None, walk: _WalkCall | None
    ) -> list[list[int]]:
        extension = _ContextCall(context) if context else None
        _library().blockdraft_run(
            self._handle,
            ctypes.addressof(network._network) if network else None,
            ctypes.addressof(extension.structure) if extension else None,
            ctypes.addressof(rows) if rows else None,
            ctypes.addressof(walk.structure) if walk else None,
        )
        return walk.chosen() if walk else []

    def product(self, matrix: PackedMatrix, inputs: Floats) -> Floats:
        """Multiply rows with a matrix. Shapes: inputs [T, C]; returns [T, rows of the matrix]."""
        outputs = np.empty((len(inputs), matrix.padded_rows), np.float32)
        _library().blockdraft_product(
            self._handle, ctypes.byref(matrix._structure), _address(inputs), len(inputs), _address(outputs)
        )
        return outputs[:, : matrix.num_rows]


def shared_core(num_threads: int | None = None) -> Core:
    """Return the core that models of this process share; by default with as many threads as torch had at first.

    Raises:
        RuntimeError: there are no native kernels.
    """
    return _core_with(num_threads or _torch_threads_at_first())


@cache
def _core_with(num_threads: int) -> Core:
    return Core(num_threads)


@cache
def _torch_threads_at_first() -> int:
    return torch.get_num_threads()


def _segments(segments: Sequence[PackedSegment]) -> ctypes.Array[CSegment]:
    return (CSegment * len(segments))(
        *(
            CSegment(_address(segment.cache), segment.capacity, segment.num_past, segment.num_rows)
            for segment in segments
        )
    )
