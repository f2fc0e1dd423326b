"""Builds the native kernels into the package when it is installed, editable or not.

One source file is compiled once for each instruction set; at run time the best that the processor has is taken.
Where there is no C++ compiler, or it fails, the package is built without them and says at run time that it computes
in torch. BLOCKDRAFT_BUILD_NATIVE=require makes a failure an error, =skip does not try; CXX names the compiler.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import platform_tags

PACKAGE = Path("src/blockdraft/runtime")
LIBRARY = PACKAGE / "libblockdraft_core.so"

# -ffp-contract=off: the order and the rounding of every sum are as written, which is what makes rows reproducible.
COMMON = (
    *("-std=c++17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno", "-fvisibility=hidden"),
    "-Wno-maybe-uninitialized",  # false alarms in GCC's own headers
)
AVX2 = "-mavx2 -mfma -mf16c"
AVX512 = "-mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mfma -mf16c"
INSTRUCTION_SETS = {
    "x86_64": {
        "avx512": ("simd_avx512.h", AVX512),
        "avxvnni": ("simd_avx2.h", f"{AVX2} -mavxvnni"),
        "avx2": ("simd_avx2.h", AVX2),
        "portable": ("simd_portable.h", ""),
    },
    "aarch64": {"neon": ("simd_neon.h", "-march=armv8.2-a+dotprod"), "portable": ("simd_portable.h", "")},
}
ARCHITECTURES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}


class NativeBuildHook(BuildHookInterface):
    """Compiles `runtime/native` and adds the library to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        wish = os.environ.get("BLOCKDRAFT_BUILD_NATIVE", "auto")
        if self.target_name != "wheel":
            return
        # Never an older library beside newer sources.
        Path(self.root, LIBRARY).unlink(missing_ok=True)
        if wish == "skip":
            return
        try:
            build(Path(self.root))
        except (OSError, RuntimeError) as error:
            if wish == "require":
                raise
            self.app.display_warning(f"built without native kernels, blockdraft will compute in torch: {error}")
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        # Nothing in it depends on the version of Python.
        build_data["tag"] = f"py3-none-{next(iter(platform_tags()))}"


def build(root: Path) -> None:
    """Compile the kernels of this architecture and put the library into the package.

    Raises:
        RuntimeError: there is no compiler, or it failed.
    """
    compiler = shlex.split(os.environ.get("CXX", "")) or [_find_compiler()]
    machine = platform.machine().lower()
    sets = INSTRUCTION_SETS.get(ARCHITECTURES.get(machine, ""), {"portable": ("simd_portable.h", "")})
    source = root / PACKAGE / "native"
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        jobs = {
            Path(folder, f"{name}.o"): [
                *(f"-DBLOCKDRAFT_ISA={name}", f'-DBLOCKDRAFT_SIMD="{header}"', *flags.split()),
                str(source / "network.cpp"),
            ]
            for name, (header, flags) in sets.items()
        }
        jobs |= {
            Path(folder, f"{name}.o"): [
                *(f"-DBLOCKDRAFT_HAS_{kernels.upper()}" for kernels in sets),
                str(source / f"{name}.cpp"),
            ]
            for name in ("core", "team")
        }
        list(pool.map(lambda job: _run([*compiler, *COMMON, *job[1], "-c", "-o", str(job[0])]), jobs.items()))
        # Made beside the old one and renamed: a process that has that one loaded keeps it.
        made = root / LIBRARY.with_suffix(".new")
        _run([*compiler, "-shared", "-pthread", "-o", str(made), *map(str, jobs)])
        made.replace(root / LIBRARY)


def _find_compiler() -> str:
    for name in ("c++", "g++", "clang++"):
        if path := shutil.which(name):
            return path
    raise RuntimeError("no C++ compiler (c++, g++ or clang++) was found")


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")


if __name__ == "__main__":
    build(Path(__file__).parent)
    print(f"built {LIBRARY}", file=sys.stderr)
