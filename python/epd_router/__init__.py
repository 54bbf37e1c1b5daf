"""Encode-Prefill-Decode router for multimodal LLM servers."""

from __future__ import annotations

from epd_router._core import __version__

__all__ = ["__version__"]
