"""A remedy names the package itself: on the index of packages our own name is another's."""

import re
from pathlib import Path

import pytest

from schemas import extras


@pytest.mark.parametrize(
    ("package", "command"),
    [
        ("pyarrow", "pip install 'pyarrow>=18'"),
        ("fsspec", "pip install 'fsspec[http]>=2024.10'"),
        ("py", "pip install py"),
    ],
)
def test_a_package_is_named_in_its_range(package: str, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = ["typer<1,>=0.20", "pyarrow>=18; extra == 'formats'", "fsspec[http]>=2024.10; extra == 'formats'"]
    monkeypatch.setattr(extras, "requires", lambda _: needs)
    assert extras.install(package) == command


def test_nobody_is_told_to_install_our_name_from_the_index() -> None:
    root = Path(__file__).parents[2]
    told = [
        str(path.relative_to(root))
        for folder in ("producer", "worker", "ops", "schemas", "README.md")
        for path in ([root / folder] if folder.endswith(".md") else (root / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".yml", ".yaml", ".sh")
        and re.search(r"pip install (-\S+ )*['\"]?gleaner", path.read_text())
    ]
    assert told == []
