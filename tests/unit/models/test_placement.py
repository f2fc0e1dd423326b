"""Device and dtype from what a user wrote."""

from __future__ import annotations

import pytest
import torch

from blockdraft.errors import ConfigError
from blockdraft.models import placement
from blockdraft.models.placement import choose_device, choose_dtype

CPU = torch.device("cpu")


def test_auto_device_is_the_gpu_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto") == torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == CPU


def test_auto_dtype_is_bfloat16_where_it_is_native(monkeypatch: pytest.MonkeyPatch) -> None:
    for native, expected in ((True, torch.bfloat16), (False, torch.float32)):
        monkeypatch.setattr(placement, "cpu_has_bfloat16", lambda native=native: native)
        assert choose_dtype("auto", CPU) is expected
    for native, expected in ((True, torch.bfloat16), (False, torch.float16)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, native=native: native)
        assert choose_dtype("auto", torch.device("cuda")) is expected


def test_named_dtypes_are_honoured() -> None:
    assert choose_dtype("float16", CPU) is torch.float16


def test_a_wrong_name_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match=r"unknown dtype 'bfloat'.*did you mean 'bfloat16'"):
        choose_dtype("bfloat", CPU)
    with pytest.raises(ConfigError, match=r"unknown device 'cda'.*did you mean 'cuda'"):
        choose_device("cda")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_absent_device_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'cuda:1' is not available"):
        choose_device("cuda:1")
