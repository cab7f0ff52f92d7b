"""Packages that only some need: how to install one."""

import re
import shlex
from importlib.metadata import PackageNotFoundError, requires


def install(package: str) -> str:
    """The command that installs a package, in the range that is known to work.

    It names the package and no extra of ours: the index of packages has another's project under our name.
    """
    try:
        needs = requires("gleaner") or []
    except PackageNotFoundError:  # run from a folder of sources
        needs = []
    named = (need.partition(";")[0].strip() for need in needs)
    found = next((need for need in named if re.match(rf"{re.escape(package)}(?![\w.-])", need)), package)
    return f"pip install {shlex.quote(found)}"
