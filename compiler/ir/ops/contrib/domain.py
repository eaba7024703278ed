"""The domain of contrib operators."""

from __future__ import annotations

DOMAIN = "com.microsoft"
