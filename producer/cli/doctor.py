"""``producer doctor``: every setting with its reason, and whether the services answer."""

from collections.abc import Callable
from typing import Any

import typer
from pydantic import SecretStr

from producer.cli.output import JsonFlag, print_json, say
from schemas.database import REVISION, connect, database_address, require_migrated
from schemas.errors import GleanerError
from schemas.queue import broker_address, create_app, require_broker
from schemas.settings import ENV_PREFIX, Settings, load_settings

#: Shown for a secret that is set.
MASK = "********"

app = typer.Typer(add_completion=False)


@app.command(epilog="Example: producer doctor")
def doctor(as_json: JsonFlag = False) -> None:
    """List all settings, then check Postgres, its tables and the broker; exit 1 if something is wrong."""
    settings = load_settings()
    listed = [_setting(settings, name) for name in Settings.model_fields]
    checks = [
        _check("Postgres", database_address(settings), lambda: connect(settings, "producer doctor").close()),
        _check("tables", f"revision {REVISION}", lambda: _tables(settings)),
        _check("broker", broker_address(settings), lambda: _broker(settings)),
    ]
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
        "value": _masked(getattr(settings, name)),
        "default": _masked(info.get_default(call_default_factory=True, validated_data={})),
        "description": info.description,
    }


def _masked(value: Any) -> Any:
    if isinstance(value, SecretStr):
        return MASK if value.get_secret_value() else ""
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
    for setting in listed:
        default = "" if setting["value"] == setting["default"] else f" (default: {setting['default']})"
        say(f"{setting['name']} = {setting['value']}{default}")
        say(f"    {setting['description']}")
    say()
    for check in checks:
        say(f"{'ok   ' if check['ok'] else 'WRONG'}  {check['check']}: {check['detail']}")
