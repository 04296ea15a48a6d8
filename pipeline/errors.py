"""The error family: each says what, where, expected and got, and how to mend it.

Every class is also the fitting builtin, so ``except ValueError`` keeps working, and carries the
exit code that the command line returns for it. A class names its ``__new__`` where Python would
find another one than it uses: dask calls it by name for what a worker has raised.
"""

from typing import TYPE_CHECKING


class FeatfoldError(Exception):
    """Base of every error that featfold raises on purpose."""

    exit_code = 1


class ConfigError(FeatfoldError, ValueError):
    """A job, an option or an argument that cannot be carried out as written."""

    exit_code = 2


class UnknownNameError(ConfigError, KeyError):
    """A name (detector, metric, split, option) that does not exist; the message names near ones."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0]) if self.args else ""


class ExistsRefusedError(FeatfoldError, FileExistsError):
    """Output that exists already and was not asked to be overwritten."""

    exit_code = 2


class BudgetError(FeatfoldError, MemoryError):
    """A plan whose projected memory exceeds what a worker may use; raised before any read."""

    exit_code = 3
    if not TYPE_CHECKING:
        __new__ = Exception.__new__


class DeviceMemoryError(FeatfoldError, MemoryError):
    """A block that a device has no room for, in however small steps its rows come."""

    if not TYPE_CHECKING:
        __new__ = Exception.__new__


class DataError(FeatfoldError, ValueError):
    """Data that contradicts its declaration: shapes, dtypes, labels, non-finite values."""

    exit_code = 4
    row: int | None = None
    """The first row that it is of, where that is known, for those who know what rows are."""


class MissingInputError(DataError, FileNotFoundError):
    """An input file, store, split or array that is not there."""

    if not TYPE_CHECKING:
        __new__ = FileNotFoundError.__new__


class IncompleteError(DataError):
    """A split some of whose blocks were never committed."""


class CorruptError(DataError):
    """Stored bytes that do not match the checksum in the manifest."""


class LockedError(FeatfoldError, TimeoutError):
    """Something that another process holds; try again later."""

    exit_code = 75


class UnreachableError(FeatfoldError):
    """A service that could not be reached, or kept failing, for as long as it was asked."""


class NotJoinedError(FeatfoldError, TimeoutError):
    """A metric sync that some ranks of a process group did not join; nothing was exchanged."""


class StoppedError(FeatfoldError):
    """A run that was asked to stop, and did so after the work in flight."""

    exit_code = 143


class PartDoneError(FeatfoldError):
    """A part of an array job that has done its share, while others have not."""

    exit_code = 0


class DamagedPartialError(FeatfoldError):
    """A kept partial that cannot be read; it was removed, and is computed again when needed."""
