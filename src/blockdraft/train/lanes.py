"""Independent passes of a target side by side on a CPU, each with a share of torch's threads.

Small operations gain little from a second thread, so two passes at once finish sooner than one after the other with
both threads: 1.5 times for prefills and 1.3 times for batched decoding on two cores (docs/lab/LOG.md).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import torch

MAX_LANES = 4
"""Each lane holds the activations and logits of a pass of its own; only two have been measured."""


def num_lanes(device: torch.device) -> int:
    """Return how many passes should run at once."""
    return min(torch.get_num_threads(), MAX_LANES) if device.type == "cpu" else 1


def open_lanes(count: int) -> ThreadPoolExecutor:
    """Return a pool of `count` threads that share the caller's number of torch threads, which it keeps."""
    num_threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, initializer=_take_threads, initargs=(max(num_threads // count, 1),))
    # A pool starts a thread only if none is idle: this makes all of them take theirs now.
    started = Barrier(count)
    list(pool.map(lambda _: started.wait(), range(count)))
    torch.set_num_threads(num_threads)
    return pool


def _take_threads(number: int) -> None:
    torch.set_num_threads(number)
    torch.get_num_threads()  # a thread takes the number when it is first asked for; later it would be the caller's
