"""Threads that run passes side by side share the tables, which grow while others read."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest
import torch

from blockdraft.models.config import RopeConfig
from blockdraft.models.layers.rope import Rope
from blockdraft.models.layers.rope_angles import RopeAngles

CONFIG = RopeConfig(theta=10000.0, rotary_dim=64)
NUM_THREADS = 8


def torch_rows(position: int, tables: Rope) -> tuple[torch.Tensor, torch.Tensor]:
    return tables.rows(torch.tensor([position]), position)


def native_rows(position: int, tables: RopeAngles) -> tuple[np.ndarray, np.ndarray]:
    cosines, sines = tables.up_to(position + 1)
    return cosines[position], sines[position]


@pytest.mark.parametrize("kind", ["torch", "native"])
def test_tables_grow_under_the_eyes_of_other_threads(kind: str) -> None:
    with ThreadPoolExecutor(NUM_THREADS) as pool:
        for _ in range(40):
            tables = Rope(CONFIG, torch.float32, torch.device("cpu")) if kind == "torch" else RopeAngles(CONFIG)
            rows = torch_rows if kind == "torch" else native_rows
            start = Barrier(NUM_THREADS)

            def look(thread: int, tables=tables, rows=rows, start=start) -> None:
                start.wait()
                for position in (500, 3000 + 500 * thread):
                    cos, sin = rows(position, tables)
                    # Rotations, whatever the table that they come from.
                    np.testing.assert_allclose(np.asarray(cos) ** 2 + np.asarray(sin) ** 2, 1, rtol=1e-5)

            list(pool.map(look, range(NUM_THREADS)))
