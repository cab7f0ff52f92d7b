"""Alembic migrations of the Postgres schema ``gleaner``, run by `producer db`."""

from pathlib import Path

from alembic.config import Config

from schemas.settings import Settings


def alembic_config(settings: Settings) -> Config:
    """Alembic's configuration without an ini file: this folder, and the database of the settings."""
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent))
    config.attributes["settings"] = settings
    return config
