"""One Hypothesis profile: machines under load are slow, which is no failure."""

from hypothesis import settings

settings.register_profile("epd-router", deadline=None)
settings.load_profile("epd-router")
