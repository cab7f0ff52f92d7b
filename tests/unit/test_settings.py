import os
from pathlib import Path

import pytest
from pydantic import ValidationError

from producer.cli.options import settings_with
from schemas.env_files import ENV_PREFIX, SettingsError
from schemas.settings import Settings, load_settings


@pytest.fixture(autouse=True)
def clean(tmp_path, monkeypatch):
    """No settings from outside, an empty current directory, and nothing kept from test to test."""
    for name in list(os.environ):
        if name.upper().startswith(ENV_PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    load_settings.cache_clear()
    yield tmp_path
    load_settings.cache_clear()


def write(name, *lines):
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def test_defaults_need_no_environment():
    settings = load_settings()
    assert settings.chunk_size == 256
    assert settings.database_url.get_secret_value() == "postgresql://gleaner@127.0.0.1:5432/gleaner"
    assert load_settings() is settings


def test_each_setting_has_a_description():
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_nothing_listens_or_connects_beyond_this_machine_by_default():
    settings = load_settings()
    assert "127.0.0.1" in settings.database_url.get_secret_value()
    assert "127.0.0.1" in settings.broker_url.get_secret_value()


@pytest.mark.parametrize("name", ["GLEANER_CHUNK_SIZE", "gleaner_chunk_size"])
def test_a_variable_is_read_in_either_case(monkeypatch, name):
    monkeypatch.setenv(name, "32")
    assert load_settings().chunk_size == 32


def test_the_environment_wins_over_env_which_wins_over_the_local_stack(monkeypatch):
    write(".gleaner/local.env", "GLEANER_CHUNK_SIZE=1", "GLEANER_LEASE_S=11", "GLEANER_SEED=21")
    write(".env", "GLEANER_CHUNK_SIZE=2", "GLEANER_LEASE_S=12")
    monkeypatch.setenv("GLEANER_CHUNK_SIZE", "3")
    settings = load_settings()
    assert (settings.chunk_size, settings.lease_s, settings.seed) == (3, 12, 21)


@pytest.mark.parametrize("place", ["environment", ".env"])
def test_an_empty_value_counts_as_not_given(monkeypatch, place):
    if place == "environment":
        monkeypatch.setenv("GLEANER_CHUNK_SIZE", "")
    else:
        write(".env", "GLEANER_CHUNK_SIZE=")
    assert load_settings().chunk_size == 256


def test_an_empty_variable_does_not_hide_the_file(monkeypatch):
    write(".env", "GLEANER_CHUNK_SIZE=9")
    monkeypatch.setenv("GLEANER_CHUNK_SIZE", "")
    assert load_settings().chunk_size == 9


@pytest.mark.parametrize("place", ["environment", ".env", ".gleaner/local.env"])
def test_an_unknown_name_is_refused_and_the_near_one_named(monkeypatch, place):
    if place == "environment":
        monkeypatch.setenv("GLEANER_CHUNKSIZE", "32")
    else:
        write(place, "GLEANER_CHUNKSIZE=32")
    with pytest.raises(SettingsError, match=r"GLEANER_CHUNKSIZE is no setting: did you mean GLEANER_CHUNK_SIZE\?"):
        load_settings()


def test_every_unknown_name_is_said_and_where_the_settings_are_listed(monkeypatch):
    monkeypatch.setenv("GLEANER_ZZZ", "1")
    monkeypatch.setenv("GLEANER_MODLE", "x")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert "GLEANER_ZZZ is no setting." in message  # nothing is near
    assert "did you mean GLEANER_MODEL?" in message
    assert "`producer doctor`" in message


def test_names_of_other_programs_are_left_alone(monkeypatch):
    monkeypatch.setenv("GLEANERS", "1")
    write(".env", "POSTGRES_PASSWORD=x", "# GLEANER_TYPO=1", "export GLEANER_SEED=4")
    assert load_settings().seed == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("GLEANER_CHUNK_SIZE", "many"),
        ("GLEANER_CHUNK_SIZE", "0"),
        ("GLEANER_CHUNK_SIZE", "1.5"),
        ("GLEANER_LEASE_S", "-1"),
        ("GLEANER_ENGINE", "tgi"),
        ("GLEANER_MODEL", "a model"),
        ("GLEANER_GPU_MEMORY_UTILIZATION", "1.5"),
        ("GLEANER_DATABASE_PREPARE", "perhaps"),
        ("GLEANER_FLOWER_PORT", "70000"),
        ("GLEANER_ENGINE_ARGS", "{not json"),
        ("GLEANER_ENGINE_ARGS", "[1]"),
        ("GLEANER_CHAT_TEMPLATE_KWARGS", "yes"),
    ],
)
@pytest.mark.parametrize("place", ["environment", ".env"])
def test_a_bad_value_names_its_variable(monkeypatch, place, name, value):
    if place == "environment":
        monkeypatch.setenv(name, value)
    else:
        write(".env", f"{name}={value}")
    with pytest.raises(SettingsError, match=rf"^{name}: \S"):
        load_settings()


def test_every_bad_value_is_said_at_once(monkeypatch):
    monkeypatch.setenv("GLEANER_CHUNK_SIZE", "0")
    monkeypatch.setenv("GLEANER_SEED", "x")
    with pytest.raises(SettingsError, match=r"(?s)GLEANER_SEED: .*; GLEANER_CHUNK_SIZE: "):
        load_settings()


def test_unknown_names_and_bad_values_are_said_together(monkeypatch):
    monkeypatch.setenv("GLEANER_MODLE", "x")
    monkeypatch.setenv("GLEANER_SEED", "x")
    with pytest.raises(SettingsError, match=r"GLEANER_MODEL\?; GLEANER_SEED: 'x' is not a whole number\. `producer"):
        load_settings()


def test_settings_made_in_code_are_what_they_are_given(monkeypatch):
    monkeypatch.setenv("GLEANER_CHUNK_SIZE", "3")
    assert Settings(seed=4) == Settings(seed=4, chunk_size=256)
    with pytest.raises(ValidationError, match="chunksize"):
        Settings(chunksize=3)


def test_an_option_wins_and_leaves_other_settings_as_they_are(monkeypatch):
    monkeypatch.setenv("GLEANER_CHUNK_SIZE", "3")
    monkeypatch.setenv("GLEANER_DATABASE_URL", "postgresql://user:s3cret@host/0")
    settings = settings_with(chunk_size=5, model=None)
    assert settings.model_fields_set == {"chunk_size", "database_url"}
    assert (settings.chunk_size, settings.database_url) == (5, load_settings().database_url)


def test_json_settings_are_parsed(monkeypatch):
    monkeypatch.setenv("GLEANER_ENGINE_ARGS", '{"kv_cache_dtype": "fp8"}')
    assert load_settings().engine_args == {"kv_cache_dtype": "fp8"}


SECRETS = ("GLEANER_DATABASE_URL", "GLEANER_BROKER_URL", "GLEANER_ANALYST_URL", "GLEANER_FLOWER_PASSWORD")


def test_secrets_are_not_shown(monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(
            name, "redis://user:s3cret@host/0" if "BROKER" in name else "postgresql://user:s3cret@host/0"
        )
    settings = load_settings()
    for shown in (repr(settings), str(settings), repr(settings.model_dump()), settings.model_dump_json()):
        assert "s3cret" not in shown
    assert settings.database_url.get_secret_value() == "postgresql://user:s3cret@host/0"


def test_secrets_are_not_shown_by_an_error_about_another_setting(monkeypatch):
    for name in SECRETS:
        monkeypatch.setenv(name, "s3cret")
    monkeypatch.setenv("GLEANER_CHUNK_SIZE", "0")
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert "s3cret" not in str(caught.value)


def test_settings_cannot_be_changed():
    with pytest.raises(ValidationError, match="frozen"):
        load_settings().chunk_size = 1


def test_a_settings_error_is_wrong_use():
    assert SettingsError.exit_code == 2


@pytest.mark.parametrize("name", ["BROKER_CONNECT_TIMEOUT_S", "WRITE_INTERVAL_S", "SHUTDOWN_S", "OPENAI_TIMEOUT_S"])
def test_no_time_is_infinite(monkeypatch, name):
    monkeypatch.setenv(ENV_PREFIX + name, "inf")
    with pytest.raises(SettingsError, match=f"{ENV_PREFIX}{name}: .*finite"):
        load_settings()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LEASE_S", "99999999999999"),
        ("RECORD_MAX_BYTES", "999999999999999999999"),
        ("DATABASE_STATEMENT_TIMEOUT_S", "99999999999"),
        ("BROKER_KEY_PREFIX", os.fsdecode(b"\xff")),
    ],
)
def test_what_a_service_would_refuse_is_refused_at_once(monkeypatch, name, value):
    monkeypatch.setenv(ENV_PREFIX + name, value)
    with pytest.raises(SettingsError, match=ENV_PREFIX + name):
        load_settings()


def test_an_env_file_that_is_not_utf_8():
    Path(".env").write_bytes(b"GLEANER_MODEL=\xff\n")
    with pytest.raises(SettingsError, match=r"\.env is not UTF-8"):
        load_settings()


@pytest.mark.parametrize("line", ["GLEANER_CHUNK_SIZE: 5", 'GLEANER_CHUNK_SIZE="5'])
def test_a_line_of_ours_that_can_not_be_read_is_said_and_not_shown(line):
    write(".env", "OTHER: 1", line)
    with pytest.raises(SettingsError, match=r"\.env, line 2: can't be read") as error:
        load_settings()
    assert "5" not in str(error.value)
