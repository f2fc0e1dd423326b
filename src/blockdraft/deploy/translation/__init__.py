"""One engine's deployment as another's: what means the same is said there, the rest is listed with the reason."""

from blockdraft.deploy.translation.origin import as_comment, read_origin, restore, restored_source
from blockdraft.deploy.translation.translate import Translation, translate

__all__ = ["Translation", "as_comment", "read_origin", "restore", "restored_source", "translate"]
