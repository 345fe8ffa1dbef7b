"""Settings of the whole suite."""

from hypothesis import settings

# Machines differ and are shared: no test depends on how long something takes.
settings.register_profile("dflash2", deadline=None)
settings.load_profile("dflash2")
