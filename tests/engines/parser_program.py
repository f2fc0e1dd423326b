"""Run with the interpreter of an engine's environment: let its own argument parser judge command lines.

    python parser_program.py vllm|sglang < commands.json

Standard input is a list of lists of words (after the program). The last line of the output is a list of as many texts:
empty for what the parser takes, otherwise what it says. An engine imports far more than its parser needs; what is not
installed is stood in for, so that an unpacked wheel on PYTHONPATH is enough where torch and transformers are there.
"""

import argparse
import importlib.abc
import importlib.machinery
import io
import json
import sys
import types
from contextlib import redirect_stderr
from pathlib import Path
from unittest.mock import MagicMock

ENGINES = ("vllm", "sglang")


class StandIn(types.ModuleType):
    """A module that has whatever is asked for: classes by capitals, anything else as a mock."""

    __path__ = ()
    __version__ = "9.9.9"

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        value = type(name, (), {}) if name[:1].isupper() else MagicMock(name=f"{self.__name__}.{name}")
        setattr(self, name, value)
        return value


class StandIns(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds what nothing else found, if it is an engine that asks: its extensions, and packages it uses."""

    def __init__(self, folder):
        self.folder = folder
        self.packages = set()

    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in sys.stdlib_module_names or (package in ENGINES and "_C" not in name):
            return None
        is_new = package not in self.packages and package not in ENGINES
        if is_new and (package in sys.modules or not self.is_asked_by_engine()):
            return None
        self.packages.add(package)
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def is_asked_by_engine(self):
        frame = sys._getframe(2)
        while frame and "importlib" in frame.f_code.co_filename:
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(self.folder)

    def create_module(self, spec):
        return StandIn(spec.name)

    def exec_module(self, module):
        pass


def vllm_parser():
    from vllm.config.speculative import SpeculativeConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ModuleNotFoundError:  # until 0.32
        from vllm.entrypoints.launchers.cli_args import make_arg_parser

    parser = make_arg_parser(FlexibleArgumentParser())
    keys = set(SpeculativeConfig.__dataclass_fields__)

    def check(arguments):
        config = parser.parse_args(arguments).speculative_config or {}
        unknown = set(config) - keys
        if unknown:
            raise ValueError(f"--speculative-config has no keys {sorted(unknown)}")

    return check


def sglang_parser():
    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    return parser.parse_args


def verdict(check, arguments):
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            check(arguments)
    except SystemExit:
        return said.getvalue().strip().splitlines()[-1]
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main(engine):
    import torch  # noqa: F401 - before the stand-ins, which would hide what it looks for in vain
    import transformers  # noqa: F401

    folder = next(str(Path(entry) / engine) for entry in sys.path if (Path(entry) / engine / "__init__.py").is_file())
    sys.meta_path.append(StandIns(folder))
    check = vllm_parser() if engine == "vllm" else sglang_parser()
    print(json.dumps([verdict(check, arguments) for arguments in json.load(sys.stdin)]))


if __name__ == "__main__":
    main(sys.argv[1])
