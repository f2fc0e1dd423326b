"""Random matrices of every format."""

import numpy as np

from blockdraft.runtime.quantized import Format, Quantized


def random_matrix(random: np.random.Generator, kind: Format, num_rows: int, num_cols: int) -> Quantized:
    shape = (num_rows, num_cols // 32)
    return Quantized(
        format=kind,
        values=random.integers(0, 256 if kind == Format.BYTES else 16, (num_rows, num_cols)).astype(np.uint8),
        scales=random.random(shape).astype(np.float16),
        mins=random.standard_normal(shape).astype(np.float16) if kind == Format.NIBBLES_WITH_MIN else None,
    )
