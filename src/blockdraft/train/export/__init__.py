"""One drafter, every engine: the layouts that other programs read, checked by loading them back.

exporter    the one call: refuse, write, verify, describe
folders     Z Lab, DeepSpec and speculators: config.json and model.safetensors
gguf_file   llama.cpp: one file with the target's tokenizer
verify      drafts of what was written against drafts of what was given
card        README.md of the exported folder
"""

from blockdraft.train.export.exporter import LAYOUTS, export_drafter
from blockdraft.train.export.report import ExportReport

__all__ = ["LAYOUTS", "ExportReport", "export_drafter"]
