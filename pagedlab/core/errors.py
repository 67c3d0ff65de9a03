"""The errors that pagedlab raises on purpose. Each carries one line: what, where, the value, what was expected."""


class PagedlabError(Exception):
    """Base of every error that is the user's to mend. The command line prints it as one line and exits with 2."""

    def __init__(self, line: str):
        """A line break, or another control character, in a value that `line` shows is escaped."""
        super().__init__("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line))


class ConfigError(PagedlabError):
    """A configuration value, or a combination of values, that cannot work."""


class WorkloadError(PagedlabError):
    """A workload file that cannot be read as what it claims to be. Names file, entry, field and value."""


class ModelError(PagedlabError):
    """A model that cannot be found, read or served."""


class InvariantError(AssertionError):
    """An internal invariant does not hold: a fault of pagedlab itself, found by an `audit()`."""


class OutOfBlocks(Exception):
    """The pool cannot give what was asked. Raised before anything is changed."""


class EngineStalled(RuntimeError):
    """The engine makes no progress: nothing can run, or no token was finished for too many steps."""
