"""Each set of kernels that this processor has, against NumPy, and against itself with other rows beside."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from random_weights import random_matrix

from blockdraft.cache.packed import PackedKVCache, PackedKVLayout
from blockdraft.models.config import RopeConfig
from blockdraft.models.layers.rope import Rope, apply_rope
from blockdraft.models.layers.rope_angles import RopeAngles
from blockdraft.runtime import native_core
from blockdraft.runtime.native_core import (
    ContextRows,
    Core,
    PackedLayer,
    PackedMatrix,
    PackedNetwork,
    Walk,
    available_kernels,
    int_array,
)
from blockdraft.runtime.quantized import Format, Quantized, quantize, stack

pytestmark = pytest.mark.native

RANDOM = np.random.default_rng(0)
KERNELS = available_kernels() or ["none"]  # and then nothing runs
NUM_THREADS = (1, 3)


@pytest.fixture(params=KERNELS)
def kernels(request: pytest.FixtureRequest) -> str:
    return request.param


def floats(*shape: int) -> np.ndarray:
    return RANDOM.standard_normal(shape).astype(np.float32)


def rounded(rows: np.ndarray) -> np.ndarray:
    """Activations as the kernels see them: signed bytes in groups of 32."""
    groups = rows.reshape(len(rows), -1, 32)
    steps = np.abs(groups).max(-1, keepdims=True) / 127
    return (np.rint(groups / np.where(steps > 0, steps, 1)) * steps).reshape(rows.shape)


@pytest.mark.parametrize("num_threads", NUM_THREADS)
@pytest.mark.parametrize("kind", Format)
def test_products_equal_numpy_and_do_not_depend_on_other_rows(kernels, kind, num_threads):
    matrix = random_matrix(RANDOM, kind, 72, 192)
    packed, core = PackedMatrix.of(matrix), Core(num_threads, kernels)
    rows = floats(17, 192)
    rows[3] = 0
    rows[5, 32:64] = 0
    expected = rounded(rows) @ matrix.to_floats().T.astype(np.float64)
    found = core.product(packed, rows)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
    for start in range(17):
        for end in range(start + 1, min(start + 9, 17) + 1):
            assert np.array_equal(core.product(packed, rows[start:end].copy()), found[start:end])


def test_the_largest_sums_fit(kernels):
    """All weights as large as they get, or as small, with activations of one size: sixteen bits would overflow."""
    for kind in Format:
        mins = np.zeros((32, 2), np.float16) if kind == Format.NIBBLES_WITH_MIN else None
        for weight in (255 if kind == Format.BYTES else 15, 0):
            values, scales = np.full((32, 64), weight, np.uint8), np.ones((32, 2), np.float16)
            matrix = Quantized(format=kind, values=values, scales=scales, mins=mins)
            for sign in (1, -1):
                rows = np.full((5, 64), sign * 127, np.float32)
                expected = rows @ matrix.to_floats().T
                assert np.array_equal(Core(1, kernels).product(PackedMatrix.of(matrix), rows), expected)


@pytest.mark.parametrize("num_threads", NUM_THREADS)
def test_a_walk_equals_numpy(kernels, num_threads):
    """Each token is the largest of its logits and a bias from the token before, in the target's ids."""
    w1, matrix = floats(50, 64), quantize(floats(72, 64))
    target_ids = RANDOM.integers(0, 50, 72).astype(np.int32)
    counts, anchors, logits = [5, 1, 3], [3, 4, 49], floats(9, 72) * 8
    expected, rows = [], iter(logits)
    for count, token_id in zip(counts, anchors, strict=True):
        ids = [token_id]
        for _ in range(count):
            biased = next(rows) + matrix.to_floats() @ rounded(w1[ids[-1:]])[0]
            ids.append(int(target_ids[biased.argmax()]))
        expected.append(ids[1:])
    core = Core(num_threads, kernels)
    walk = Walk(
        w1=torch.from_numpy(w1),
        w2=PackedMatrix.of(matrix),
        target_ids=torch.from_numpy(target_ids),
        counts=counts,
        previous_ids=anchors,
    )
    assert core.walk(walk, torch.from_numpy(logits)) == expected
    wider = torch.cat((torch.from_numpy(logits), torch.full((9, 8), 99.0)), dim=1)
    assert core.walk(walk, wider[:, :72]) == expected


def test_a_walk_takes_the_first_of_equals(kernels):
    zeros = PackedMatrix.of(quantize(np.zeros((96, 32), np.float32)))
    walk = Walk(
        w1=torch.from_numpy(floats(101, 32)),
        w2=zeros,
        target_ids=torch.arange(96, dtype=torch.int32) + 5,
        counts=[2],
        previous_ids=[7],
    )
    for value in (0.0, torch.nan):
        logits = torch.full((2, 96), value)
        assert Core(3, kernels).walk(walk, logits) == [[5, 5]]


class Tiny:
    """A network of one or two layers, and the same in float32 torch without any rounding of activations."""

    def __init__(self, *, head_dim: int, num_heads: int, num_kv_heads: int, window: int | None, causal: bool) -> None:
        self.H, self.N, self.G, self.D = head_dim, num_heads, num_kv_heads, 64
        self.window, self.causal = window, causal
        self.rope = RopeConfig(theta=10000.0, rotary_dim=head_dim)
        width = num_heads * head_dim
        self.parts = {
            "qkv": quantize(floats((num_heads + 2 * num_kv_heads) * head_dim, 64) / 8),
            "output": quantize(floats(64, width) / width**0.5),
            "gate": quantize(floats(96, 64) / 8),
            "up": quantize(floats(96, 64) / 8),
            "down": quantize(floats(64, 96) / 10),
            "embedding": quantize(floats(96, 64)),
        }
        self.norms = {name: 1 + 0.1 * floats(64) for name in ("attention", "mlp", "final")}
        self.head_norms = {name: 1 + 0.1 * floats(head_dim) for name in ("q", "k")}
        self.bias = 0.1 * floats((num_heads + 2 * num_kv_heads) * head_dim)
        both = stack([self.parts["gate"], self.parts["up"]])
        order = np.arange(192).reshape(2, 3, 32).swapaxes(0, 1).ravel()
        embedding = PackedMatrix.of(self.parts["embedding"])
        layer = PackedLayer(
            attention_norm=self.norms["attention"],
            mlp_norm=self.norms["mlp"],
            q_norm=self.head_norms["q"],
            k_norm=self.head_norms["k"],
            qkv_bias=self.bias,
            qkv=PackedMatrix.of(self.parts["qkv"]),
            output=PackedMatrix.of(self.parts["output"]),
            gate_up=PackedMatrix.of(both.take_rows(order)),
            down=PackedMatrix.of(self.parts["down"]),
            window=window,
            causal=causal,
        )
        self.network = PackedNetwork(
            layers=[layer, layer],
            final_norm=self.norms["final"],
            head=embedding,
            embedding=embedding,
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            rotary_dim=head_dim,
            norm_eps=1e-6,
        )
        self.layout = PackedKVLayout(num_layers=2, num_kv_heads=num_kv_heads, head_dim=head_dim)
        self.angles = RopeAngles(self.rope)

    def run(self, core: Core, pieces: list[list[int]], num_context: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Run one sequence in pieces; returns logits and both layers' outputs of all rows but the context's."""
        cache = PackedKVCache(self.layout)
        logits, taps = [], []
        for ids in pieces:
            segment = cache.take_rows(len(ids))
            out, tap = torch.empty(len(ids), 96), torch.empty(len(ids), 128)
            core.run(
                self.network,
                [segment],
                ids,
                self.angles.up_to(cache.length + len(ids)),
                wanted=range(len(ids)),
                logits=out,
                tapped=(0, 1),
                taps=tap,
            )
            cache.advance(len(ids))
            logits.append(out.numpy())
            taps.append(tap.numpy())
        return np.concatenate(logits), np.concatenate(taps)

    def reference(self, ids: list[int]) -> torch.Tensor:
        """Logits of all rows of one piece."""
        parts = {name: torch.from_numpy(part.to_floats()) for name, part in self.parts.items()}
        norms = {name: torch.from_numpy(norm) for name, norm in {**self.norms, **self.head_norms}.items()}
        T, (cos, sin) = (
            len(ids),
            Rope(self.rope, torch.float32, torch.device("cpu")).rows(torch.arange(len(ids)), len(ids)),
        )
        place = torch.arange(T)
        seen = torch.ones(T, T, dtype=torch.bool)
        if self.causal:
            seen = place[None] <= place[:, None]
        if self.window:
            seen = seen & (place[None] > place[:, None] - self.window)
        hidden = parts["embedding"][torch.tensor(ids)]
        for _ in range(2):
            rows = F.rms_norm(hidden, (64,), norms["attention"], 1e-6)
            heads = (rows @ parts["qkv"].T + torch.from_numpy(self.bias)).view(T, -1, self.H)
            q, k, v = heads.split([self.N, self.G, self.G], dim=1)
            q = apply_rope(F.rms_norm(q, (self.H,), norms["q"], 1e-6), cos, sin)
            k = apply_rope(F.rms_norm(k, (self.H,), norms["k"], 1e-6), cos, sin)
            k, v = (heads.repeat_interleave(self.N // self.G, dim=1).transpose(0, 1) for heads in (k, v))
            attended = F.scaled_dot_product_attention(q.transpose(0, 1), k, v, attn_mask=seen)
            hidden = hidden + attended.transpose(0, 1).reshape(T, -1) @ parts["output"].T
            rows = F.rms_norm(hidden, (64,), norms["mlp"], 1e-6)
            hidden = hidden + (F.silu(rows @ parts["gate"].T) * (rows @ parts["up"].T)) @ parts["down"].T
        return F.rms_norm(hidden, (64,), norms["final"], 1e-6) @ parts["embedding"].T


def assert_close(logits: np.ndarray, expected: np.ndarray) -> None:
    """Activations are rounded to eight bits, keys and values to half precision: a part in a hundred, row by row."""
    error = np.linalg.norm(logits - expected, axis=-1) / np.linalg.norm(expected, axis=-1)
    assert error.max() < 0.06
    assert error.mean() < 0.02


SHAPES = {
    "one query head for each": {"head_dim": 32, "num_heads": 2, "num_kv_heads": 2},
    "groups of three": {"head_dim": 64, "num_heads": 9, "num_kv_heads": 3},
    "a group of ten": {"head_dim": 96, "num_heads": 10, "num_kv_heads": 1},
    "heads of 128": {"head_dim": 128, "num_heads": 4, "num_kv_heads": 2},
    "heads of 256": {"head_dim": 256, "num_heads": 2, "num_kv_heads": 1},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("window", "causal"), [(None, True), (7, True), (None, False), (7, False)])
def test_a_pass_equals_plain_mathematics(kernels, shape, window, causal):
    tiny = Tiny(**SHAPES[shape], window=window, causal=causal)
    ids = RANDOM.integers(0, 96, 41).tolist()
    logits, _ = tiny.run(Core(2, kernels), [ids])
    expected = tiny.reference(ids).numpy()
    assert_close(logits, expected)


@pytest.mark.parametrize("shape", ["heads of 128", "heads of 256"])
def test_the_largest_scores_fit(kernels, shape):
    """Queries and keys of which all channels are alike: their products add up to as much as they can."""
    tiny = Tiny(**SHAPES[shape], window=None, causal=False)
    tiny.bias[: (tiny.N + tiny.G) * tiny.H] = 1000
    for norm in tiny.head_norms.values():
        norm[:] = 0.1  # so that scores do not decide for one position alone
    ids = RANDOM.integers(0, 96, 5).tolist()
    logits, _ = tiny.run(Core(2, kernels), [ids])
    assert_close(logits, tiny.reference(ids).numpy())


def test_a_cache_keeps_its_rows_when_it_grows(kernels):
    """Two passes, once with room from the start and once without."""
    tiny = Tiny(**SHAPES["groups of three"], window=None, causal=True)
    ids = RANDOM.integers(0, 96, 150).tolist()
    last, capacities = [], []
    for capacity in (50, 400):
        cache = PackedKVCache(tiny.layout, capacity)
        for piece in (ids[:50], ids[50:]):
            logits = torch.empty(len(piece), 96)
            angles = tiny.angles.up_to(150)
            segment, wanted = cache.take_rows(len(piece)), range(len(piece))
            Core(1, kernels).run(tiny.network, [segment], piece, angles, wanted=wanted, logits=logits)
            cache.advance(len(piece))
        last.append(logits)
        capacities.append(cache.capacity)
    assert capacities[0] < capacities[1]
    assert torch.equal(*last)


def test_long_contexts_are_attended_in_chunks(kernels):
    num_rows = 120 if kernels == "portable" else 1200
    for window in (None, 530):
        tiny = Tiny(head_dim=32, num_heads=2, num_kv_heads=1, window=window, causal=True)
        ids = RANDOM.integers(0, 96, num_rows).tolist()
        logits, _ = tiny.run(Core(2, kernels), [ids])
        expected = tiny.reference(ids).numpy()
        assert_close(logits, expected)


@pytest.mark.parametrize("window", [None, 9, 530])
def test_a_row_is_the_same_bits_however_a_sequence_is_cut(kernels, window):
    num_rows = 70 if kernels == "portable" else 600
    tiny = Tiny(**SHAPES["groups of three"], window=window, causal=True)
    ids = RANDOM.integers(0, 96, num_rows).tolist()
    whole = tiny.run(Core(1, kernels), [ids])
    for trial in range(3):
        cuts = np.sort(RANDOM.choice(np.arange(1, num_rows), num_rows // (3 + 7 * trial), replace=False))
        pieces = [piece.tolist() for piece in np.split(np.array(ids), cuts)]
        for whole_rows, rows in zip(whole, tiny.run(Core(NUM_THREADS[trial % 2], kernels), pieces), strict=True):
            assert np.array_equal(whole_rows, rows)


def test_sequences_in_one_pass_do_not_see_each_other(kernels):
    tiny, core = Tiny(**SHAPES["groups of three"], window=None, causal=True), Core(2, kernels)
    prompts = [RANDOM.integers(0, 96, length).tolist() for length in (5, 1, 30)]
    alone = [tiny.run(core, [ids])[0] for ids in prompts]
    caches = [PackedKVCache(tiny.layout) for _ in prompts]
    total = sum(map(len, prompts))
    logits = torch.empty(total, 96)
    core.run(
        tiny.network,
        [cache.take_rows(len(ids)) for cache, ids in zip(caches, prompts, strict=True)],
        [i for ids in prompts for i in ids],
        tiny.angles.up_to(30),
        wanted=range(total),
        logits=logits,
    )
    assert np.array_equal(logits.numpy(), np.concatenate(alone))


@pytest.mark.parametrize("num_choices", [96, 90, 33])
def test_the_largest_logit_of_a_row_is_found_and_the_first_of_equals(kernels, num_choices):
    """Every output comes twice, so that each maximum has a twin; what pads the last unit does not count."""
    tiny = Tiny(**SHAPES["groups of three"], window=None, causal=True)
    rows = np.concatenate((np.arange(48), np.arange(48)))[:num_choices]
    network = PackedNetwork(
        layers=tiny.network.layers,
        final_norm=tiny.norms["final"],
        head=PackedMatrix.of(tiny.parts["embedding"].take_rows(rows[::-1])),
        embedding=tiny.network.embedding,
        num_heads=tiny.N,
        num_kv_heads=tiny.G,
        head_dim=tiny.H,
        rotary_dim=tiny.H,
        norm_eps=1e-6,
    )
    for num_threads in NUM_THREADS:
        ids = RANDOM.integers(0, 96, 40).tolist()
        logits, best = torch.empty(40, network.head.padded_rows), int_array(40)
        Core(num_threads, kernels).run(
            network,
            [PackedKVCache(tiny.layout).take_rows(40)],
            ids,
            tiny.angles.up_to(40),
            wanted=range(40),
            logits=logits,
            best=best,
        )
        assert np.array_equal(best, logits.numpy()[:, :num_choices].argmax(-1))


def test_kernels_with_fused_multiplication_agree_bit_for_bit():
    """Sets differ in how many lanes they compute at once, not in what a lane computes."""
    sets = [name for name in KERNELS if name in ("avx512", "avxvnni", "avx2")]
    if len(sets) < 2:
        pytest.skip("this processor has one of them, or none")
    tiny = Tiny(**SHAPES["groups of three"], window=None, causal=True)
    ids = RANDOM.integers(0, 96, 50).tolist()
    results = [tiny.run(Core(1, name), [ids])[0] for name in sets]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_an_unknown_set_of_kernels_is_named():
    with pytest.raises(RuntimeError, match="not mmx"):
        Core(1, "mmx")


def test_a_library_from_other_sources_is_not_used(monkeypatch):
    """After a pull without a new installation, structures may have other fields."""
    native_core.why_unavailable.cache_clear()
    monkeypatch.setattr(native_core, "STRUCTURES", native_core.STRUCTURES[1:])
    try:
        assert "install blockdraft again" in native_core.why_unavailable()
        assert available_kernels() == []
    finally:
        native_core.why_unavailable.cache_clear()


@pytest.mark.parametrize("num_threads", NUM_THREADS)
def test_a_draft_in_one_call_equals_its_parts(kernels, num_threads):
    """Context, rows and walk of two sequences, one of which has no new context."""
    tiny = Tiny(**SHAPES["groups of three"], window=None, causal=False)
    core = Core(num_threads, kernels)
    fuse, hidden_norm = PackedMatrix.of(quantize(floats(64, 128))), torch.from_numpy(1 + 0.1 * floats(64))
    features, counts = torch.from_numpy(floats(7, 128)), [4, 2]
    ids = RANDOM.integers(0, 96, sum(counts)).tolist()
    walk = Walk(
        w1=torch.from_numpy(floats(96, 32) * 3),
        w2=PackedMatrix.of(quantize(floats(96, 32))),
        target_ids=torch.arange(96, dtype=torch.int32),
        counts=counts,
        previous_ids=[ids[0], ids[4]],
    )

    def draft(*, at_once: bool) -> tuple[list[list[int]], torch.Tensor, list[torch.Tensor]]:
        caches = [PackedKVCache(tiny.layout, 16) for _ in counts]
        angles = tiny.angles.up_to(16)
        context = ContextRows(
            segments=[caches[0].take_rows(7)], features=features, angles=angles, fuse=fuse, hidden_norm=hidden_norm
        )
        caches[0].advance(7)
        segments = [cache.take_rows(count) for cache, count in zip(caches, counts, strict=True)]
        logits = torch.empty(6, 96)
        more = {"context": context, "walk": walk} if at_once else {}
        if not at_once:
            core.extend(tiny.network, context)
        chosen = core.run(tiny.network, segments, ids, angles, wanted=range(6), logits=logits, **more)
        return chosen if at_once else core.walk(walk, logits), logits, [cache.memory for cache in caches]

    chosen, logits, caches = draft(at_once=True)
    others = draft(at_once=False)
    assert chosen == others[0]
    assert len({token_id for own in chosen for token_id in own}) > 1
    assert torch.equal(logits, others[1])
    assert caches[0].count_nonzero() > 0
    assert all(torch.equal(cache, other) for cache, other in zip(caches, others[2], strict=True))
