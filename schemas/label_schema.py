"""The base class of label schemas that bring their prompt."""

from typing import ClassVar

from pydantic import BaseModel, ConfigDict


class LabelSchema(BaseModel):
    """A label schema: the fields that the model fills for each document, with the prompt that asks for them.

    Any pydantic model can be a label schema; this base adds the prompt and forbids fields that were not asked for.
    Field descriptions become comments of the analysts' view and part of the default prompt.
    """

    model_config = ConfigDict(extra="forbid")

    #: What the model is told before each document. Empty: made from the docstring and the field descriptions.
    system_prompt: ClassVar[str] = ""

    #: The user's turn. ``{text}`` stands for the document; other names for its id (``{id}``) or metadata.
    template: ClassVar[str] = "{text}"
