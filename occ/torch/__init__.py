"""occ in PyTorch: `export` a module to an artifact, and `torch.compile(module, backend="occ")`.

`docs/torch.md` is the guide. torch is imported when one of these functions is called.
"""

from __future__ import annotations

from occ.torch.backend import Fallback, backend
from occ.torch.explain import Explanation, explain
from occ.torch.export import export

__all__ = ["Explanation", "Fallback", "backend", "explain", "export"]
