"""What several commands take."""

from typing import Annotated

import typer

from schemas.engine_settings import EngineProfile
from schemas.label_spec import LabelSpec, load_label_spec
from schemas.settings import Settings, load_settings
from worker.engine.profiles import PROFILES

#: A node profile by name.
ProfileOption = Annotated[
    EngineProfile | None,
    typer.Option(
        help="Engine defaults for this kind of node: "
        + "; ".join(f"{name}: {profile.node}" for name, profile in PROFILES.items())
        + ". Default: GLEANER_ENGINE_PROFILE.",
    ),
]

#: What to label by.
SchemaOption = Annotated[
    str, typer.Option(help="Label schema: a built-in name, module:Class, a .py file with a class, or a .json file.")
]


def settings_with(profile: EngineProfile | None) -> Settings:
    """The settings of the environment, with the profile of the command line."""
    settings = load_settings()
    return settings if profile is None else settings.model_copy(update={"engine_profile": profile})


def label_spec(source: str) -> LabelSpec:
    """The label spec that a job with this schema would have."""
    return load_label_spec(source)[0]
