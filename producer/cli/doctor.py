"""``producer doctor``: whether settings are sound and services answer, and every setting with its reason."""

import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import typer
from pydantic import SecretStr

from producer.cli.output import JsonFlag, print_json, say
from producer.cli.tables import output_width
from schemas.database import REVISION, connect, database_address, require_migrated
from schemas.env_files import ENV_PREFIX
from schemas.errors import GleanerError
from schemas.queue import broker_address, create_app, require_broker
from schemas.settings import Settings, settings_and_faults

#: Shown for a secret that is set, and for the password in a URL.
MASK = "********"
#: Up to the last @: a password that was not escaped may hold one. For HTTP a user alone may be a token.
_PASSWORD = re.compile(r"((?<=http)://|(?<=https)://|://[^:/@]*:).*@")
_SECRET_PARAMETER = re.compile(r"([?&][^=&]*(?:pass|key|token|secret)[^=&]*=)[^&]*", re.IGNORECASE)

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer doctor")
def doctor(as_json: JsonFlag = False) -> None:
    """Check the settings, Postgres, its tables and the broker, and list all settings; exit 1 if something is wrong."""
    settings, faults = settings_and_faults()
    # What the settings don't say can't be checked: the default would be somewhere else.
    bad = {fault.name for fault in faults}
    listed = [_setting(settings, name) for name in Settings.model_fields]
    checks = [{"check": "setting", "ok": False, "detail": f"{fault.message} (from {fault.place})"} for fault in faults]
    if "GLEANER_DATABASE_URL" not in bad:
        checks += [
            _check("Postgres", database_address(settings), lambda: connect(settings, "producer doctor").close()),
            _check("tables", f"revision {REVISION}", lambda: _tables(settings)),
        ]
    if "GLEANER_BROKER_URL" not in bad:
        checks.append(_check("broker", broker_address(settings), lambda: _broker(settings)))
    if as_json:
        print_json({"settings": listed, "checks": checks})
    else:
        _show(listed, checks)
    if not all(check["ok"] for check in checks):
        raise typer.Exit(1)


def _setting(settings: Settings, name: str) -> dict[str, Any]:
    info = Settings.model_fields[name]
    return {
        "name": ENV_PREFIX + name.upper(),
        "value": _masked(getattr(settings, name), name),
        "default": _masked(info.get_default(call_default_factory=True, validated_data={}), name),
        "description": info.description,
    }


def _masked(value: Any, name: str) -> Any:
    if isinstance(value, SecretStr):
        secret = value.get_secret_value()
        if name.endswith("_url"):
            return _SECRET_PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1{MASK}@", secret))
        return MASK if secret else ""
    return value if value is None or isinstance(value, bool | int | float | str | dict) else str(value)


def _check(what: str, where: str, run: Callable[[], None]) -> dict[str, Any]:
    try:
        run()
    except GleanerError as error:
        return {"check": what, "ok": False, "detail": str(error)}
    return {"check": what, "ok": True, "detail": where}


def _tables(settings: Settings) -> None:
    with connect(settings, "producer doctor") as connection:
        require_migrated(connection)


def _broker(settings: Settings) -> None:
    with create_app(settings) as broker:
        require_broker(broker, settings)


def _show(listed: list[dict[str, Any]], checks: list[dict[str, Any]]) -> None:
    for check in checks:
        _say(f"{'ok   ' if check['ok'] else 'WRONG'}  {check['check']}: {check['detail']}", indent=7)
    say()
    for setting in listed:
        default = "" if setting["value"] == setting["default"] else f" (default: {setting['default']})"
        _say(f"{setting['name']} = {setting['value']}{default}", indent=4)
        _say(f"    {setting['description']}", indent=4)


def _say(line: str, indent: int) -> None:
    """A line, wrapped at words on a terminal, and there alone: what reads a pipe wants whole lines."""
    if not sys.stdout.isatty():
        say(line)
        return
    margin = " " * indent
    for part in textwrap.wrap(
        line, output_width(), subsequent_indent=margin, break_long_words=False, break_on_hyphens=False
    ):
        say(part)
