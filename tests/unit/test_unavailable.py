"""An error about a service names the remedy that fits: start it, mend the password, or look where settings are read."""

import pytest
from psycopg import OperationalError

from schemas.database import unavailable
from schemas.settings import Settings

GIVEN = Settings(database_url="postgresql://g:x@127.0.0.1:1/g")  # type: ignore[arg-type]
ELSEWHERE = "it is set in no variable, and not in .gleaner/local.env or .env of this folder"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ('connection failed: FATAL:  password authentication failed for user "g"', "check user, password and database"),
        ("connection failed: fe_sendauth: no password supplied", "check user, password and database"),
        ('connection failed: FATAL:  database "g" does not exist', "check user, password and database"),
        ("connection failed: Connection refused\n\tIs the server running on that host?", "Start it (`make up`"),
    ],
)
def test_the_remedy_fits_the_cause(said: str, remedy: str) -> None:
    message = str(unavailable(GIVEN, OperationalError(said)))
    assert remedy in message
    assert ("Start it" in message) == ("refused" in said)
    assert ELSEWHERE not in message


def test_an_address_that_nobody_gave_is_said_to_be_a_default() -> None:
    assert str(unavailable(Settings(), OperationalError("Connection refused"))).endswith(
        f"GLEANER_DATABASE_URL: {ELSEWHERE}."
    )
