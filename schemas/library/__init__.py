"""Label schemas that come with Gleaner: `producer enqueue --schema NAME` takes each by its module's name.

A module here holds one class that is named in ``__all__``. These classes are installed with the workers,
so their own pydantic validators run on every label.
"""
