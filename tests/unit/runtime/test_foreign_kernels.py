"""The kernels of ARM processors, compiled by a cross compiler and run in an emulator, against the portable ones.

Debian's packages g++-aarch64-linux-gnu and qemu-user-static bring both.
"""

from __future__ import annotations

import platform
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NATIVE = ROOT / "src/blockdraft/runtime/native"
COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64-static"
MISSING = [name for name in (COMPILER, EMULATOR) if not shutil.which(name)]


@pytest.mark.slow
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
@pytest.mark.skipif(platform.machine() == "aarch64", reason="these kernels are tested directly")
def test_neon_equals_portable_and_rows_do_not_depend_on_others(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    build = runpy.run_path(str(ROOT / "hatch_build.py"))
    objects = []
    for name, (header, flags) in build["INSTRUCTION_SETS"]["aarch64"].items():
        options = (f"-DBLOCKDRAFT_ISA={name}", f'-DBLOCKDRAFT_SIMD="{header}"', *flags.split())
        objects.append(compile_one(build["COMMON"], NATIVE / "network.cpp", tmp_path / f"{name}.o", *options))
    kernels = [f"-DBLOCKDRAFT_HAS_{name.upper()}" for name in build["INSTRUCTION_SETS"]["aarch64"]]
    for source in (NATIVE / "core.cpp", NATIVE / "team.cpp", Path(__file__).with_name("foreign_kernels.cpp")):
        objects.append(compile_one(build["COMMON"], source, tmp_path / f"{source.stem}.o", *kernels))
    program = tmp_path / "foreign_kernels"
    subprocess.run([COMPILER, "-static", "-pthread", "-o", program, *objects], check=True)
    done = subprocess.run(
        [EMULATOR, "-cpu", "max", program, "neon", "portable"], capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "")


def compile_one(common: tuple[str, ...], source: Path, made: Path, *options: str) -> Path:
    subprocess.run([COMPILER, *common, f"-I{NATIVE}", *options, "-c", source, "-o", made], check=True)
    return made
