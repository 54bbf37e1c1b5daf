"""Pictures as the router sees them: headers, content identity, pixels. Usable alone."""

from epd_router._core import Decoded, Limits, MediaError, PassThrough, Probe, decode, probe

__all__ = ["Decoded", "Limits", "MediaError", "PassThrough", "Probe", "decode", "probe"]
