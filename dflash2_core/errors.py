"""The errors that reach a user. Each carries one sentence: what was found, what was expected, where, what to do."""


class Dflash2Error(Exception):
    """Base of every error that this project raises on purpose."""


class ConfigError(Dflash2Error):
    """A drafter's configuration is missing a key, contradicts itself, or asks for what is not supported."""


class CheckpointError(Dflash2Error):
    """A checkpoint's files are missing, unsafe, or do not hold the tensors that its configuration describes."""


class CompatibilityError(Dflash2Error):
    """A drafter and a target (or an engine) do not fit each other."""


class SamplingError(Dflash2Error):
    """A request asks for sampling that cannot be honoured exactly, or that makes no sense."""


class EngineError(Dflash2Error):
    """An engine was not found, cannot run DFlash 2, did not start, or failed at a request."""
