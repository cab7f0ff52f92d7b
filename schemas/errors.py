"""Errors that a user meets: the message names the thing and the remedy, the class carries the exit code."""


class GleanerError(Exception):
    """Something outside the user's words failed: a service, the disk, an engine. The command exits 1."""

    exit_code = 1


class UsageError(GleanerError):
    """The call or its input is wrong and must be changed: a file, a field, a schema, a flag. Exits 2."""

    exit_code = 2


class DatabaseUnavailable(GleanerError):
    """Postgres can't be reached or refused us; the message says where it was looked for and what to set."""


class DatabaseNotMigrated(GleanerError):
    """The database has not the tables that this version needs: run `producer db upgrade`."""


class BrokerUnavailable(GleanerError):
    """Redis or Valkey can't be reached or refused us; the message says where and what to set."""


class EngineUnavailable(GleanerError):
    """The engine could not be started; the message names the cause and the setting to change."""
