"""An encoding that no byte tells for sure: what people's files are in is guessed, and the guess can be seen."""

from pathlib import Path

import pytest

from producer.readers import ReadOptions, open_reader
from producer.readers.encoding import detect_encoding, known
from producer.records import Reject
from schemas.errors import UsageError
from schemas.settings import Settings

GERMAN = "Der Käufer möchte für das Gerät eine Rückerstattung – der Preis betrug 49 €. Schöne Grüße aus München."
FRENCH = "L’élève a été reçu à l’hôpital – la fièvre était élevée, où il a coûté 30 € ; le cœur bat très fort, déjà."
SPANISH = "El niño comió piñas mañana; ¿cuánto cuesta? – La canción española está aquí, señor. 20 €"
POLISH = "Zażółć gęślą jaźń. Proszę o zwrot pieniędzy, ponieważ urządzenie nie działa – łódź była zepsuta."
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy. Zákazník žádá vrácení peněz – přístroj nefunguje, děkuji."
RUSSIAN = "Покупатель просит вернуть деньги, прибор не работает. Спасибо за помощь, жду ответа."
GREEK = "Ο πελάτης ζητά επιστροφή χρημάτων, η συσκευή δεν λειτουργεί. Ευχαριστώ πολύ."
JAPANESE = "お客様は返金を希望しています。機械が動きません。よろしくお願いします。"
CHINESE = "客户要求退款，因为设备无法工作。谢谢您的帮助，请尽快回复。"
ENGLISH = "The unit was returned by the customer in good order, and a refund was made.\r\n"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "cp1252"),
        (FRENCH, "cp1252"),
        (SPANISH, "cp1252"),
        ("Müller", "cp1252"),
        ("Größe: 5 €", "cp1252"),
        ("The “café” isn’t open – it’s closed… £5 or €6", "cp1252"),
        (GERMAN.replace("–", "-").replace("€", "EUR"), "latin-1"),
        (POLISH, "cp1250"),
        (CZECH, "cp1250"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8_r"),
        (GREEK, "cp1253"),
        (JAPANESE, "shift_jis"),
        (CHINESE, "gb18030"),
        (GERMAN, "mac_roman"),
        (FRENCH, "mac_roman"),
    ],
)
@pytest.mark.parametrize("rows", [1, 40, 4000])
@pytest.mark.parametrize("before", ["", ENGLISH * 200], ids=["alone", "among English"])
def test_an_encoding_is_guessed(text: str, encoding: str, rows: int, before: str) -> None:
    content = ("id;text\r\n" + before + "".join(f"{n};{text}\r\n" for n in range(rows))).encode(encoding)
    if encoding.startswith("mac"):
        content = content.replace(b"\r\n", b"\r")
    guess = detect_encoding(content[: 512 * 1024])
    assert content.decode(guess.name) == content.decode(encoding)
    assert guess.guessed in content.decode(encoding)
    assert not guess.guessed.isascii()


def test_a_guess_is_shown_with_some_of_the_text(tmp_path: Path) -> None:
    path = tmp_path / "corpus.csv"
    path.write_bytes(f"id;text\r\n1;{GERMAN}\r\n".encode("cp1252"))
    (note,) = open_reader(str(path), Settings()).notes
    assert note.endswith("cp1252 (a guess, which reads '1;Der Käufer möchte für das': --encoding for another)")


def test_utf_8_cut_in_a_character_is_utf_8() -> None:
    for cut in (1, 2, 3):
        assert detect_encoding(b"x" * 64 * 1024 + "🙂".encode()[:cut]).name == "utf-8"


def test_text_files_have_an_encoding_each(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("Müller".encode("latin-1"))
    (tmp_path / "b.txt").write_bytes("Müller".encode())
    (tmp_path / "c.txt").write_bytes(RUSSIAN.encode("cp1251"))
    records = list(open_reader(str(tmp_path), Settings()).records(lambda _: None))
    assert [record.content["text"] for record in records if isinstance(record.content, dict)] == [
        "Müller",
        "Müller",
        RUSSIAN,
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "id,text\n1,Käufer\n"),
        ("a.txt", "Käufer"),
        ("a.json", '[{"a": "Käufer"}]'),
        ("a.jsonl", '{"a": "Käufer"}\n'),
    ],
)
def test_a_wrong_encoding_is_rejected_with_the_remedy(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_bytes(content.encode("cp1252"))
    (record,) = open_reader(str(path), Settings(), ReadOptions(encoding="utf-8")).records(lambda _: None)
    assert isinstance(record.content, Reject)
    assert record.content.code == "bad_encoding"
    assert "--encoding" in record.content.reason


@pytest.mark.parametrize("name", ["idna", "punycode", "undefined", "rot13", "base64", "no such", "nul\0", ""])
def test_what_decodes_no_file_is_no_encoding(tmp_path: Path, name: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,text\n1,x\n")
    with pytest.raises(UsageError, match="is no encoding"):
        open_reader(str(path), Settings(), ReadOptions(encoding=name))


@pytest.mark.parametrize("name", ["utf8", "UTF-16", "utf-16-le", "utf-32", "utf-7", "ascii", "L1", "cp1252", "big5"])
def test_what_decodes_a_file_is_an_encoding(name: str) -> None:
    assert known(name)


@pytest.mark.parametrize("form", ["jsonl", "csv", "text"])
@pytest.mark.parametrize("name", ["utf-16", "UTF_32"])
def test_bytes_in_either_order_need_a_mark(tmp_path: Path, form: str, name: str) -> None:
    content = {"jsonl": '{"text": "é"}\n', "csv": "id;text\n1;é\n", "text": "é"}[form]
    path = tmp_path / "corpus"
    path.write_bytes(content.encode(name + "-le"))
    with pytest.raises(UsageError, match=r"has no byte order mark: give --encoding utf-(16|32)-le"):
        open_reader(str(path), Settings(), ReadOptions(format=form, encoding=name))
    for encoding, content_bytes in ((name + "-le", content.encode(name + "-le")), (name, content.encode(name))):
        path.write_bytes(content_bytes)
        reader = open_reader(str(path), Settings(), ReadOptions(format=form, encoding=encoding))
        assert ["é" in str(record.content) for record in reader.records(lambda _: None)] == [True]
