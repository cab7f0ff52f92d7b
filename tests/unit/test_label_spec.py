import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from schemas.budget import max_output_tokens
from schemas.errors import UsageError
from schemas.label_spec import LabelSpec, Sampling, builtin_names, load_label_spec, template_fields
from schemas.library.packages import Packages
from schemas.library.papers import Papers

ROOT = Path(__file__).parents[2]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}}
SPEC = LabelSpec(name="things", json_schema=SCHEMA, system_prompt="Label it.")

ONE_CLASS = '''
from __future__ import annotations
from pydantic import BaseModel, Field
from schemas.label_schema import LabelSchema

class ReviewTone(LabelSchema):
    """How a review sounds."""
    tone: str = Field(max_length=9, description="In a word.")
    title: str | None
'''
TWO_CLASSES = ONE_CLASS + "\nclass Other(BaseModel):\n    x: bool\n"


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty current directory; modules that a test imports from it are forgotten again."""
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if name.startswith(("gleaner_schema_", "my_")):
            del sys.modules[name]


# -- digest -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"name": "others"},
        {"system_prompt": "Label it!"},
        {"template": "{text}\n"},
        {"sampling": Sampling(temperature=0.1)},
        {"sampling": Sampling(top_p=0.9)},
        {"class_path": "schemas.library.papers:Papers"},
        {"json_schema": {**SCHEMA, "description": "d"}},
        {"json_schema": {**SCHEMA, "properties": dict(reversed(SCHEMA["properties"].items()))}},
        {"json_schema": {**SCHEMA, "required": ["a"]}},
    ],
)
def test_the_digest_changes_with_every_component(change):
    changed = LabelSpec(**{**dict(SPEC), **change})
    assert changed.digest != SPEC.digest


def test_every_component_is_covered_by_the_digest():
    # A new field must come into the digest and into the test above.
    assert LabelSpec.model_fields.keys() == {
        "name", "json_schema", "system_prompt", "template", "sampling", "over_long", "class_path",
    }  # fmt: skip
    assert SPEC.model_dump().keys() == LabelSpec.model_fields.keys()


def test_equal_specs_have_equal_digests():
    assert LabelSpec(**json.loads(json.dumps(SPEC.model_dump()))).digest == SPEC.digest
    assert len(SPEC.digest) == 64


def test_digests_and_schema_texts_are_the_same_in_every_process():
    program = (
        "from schemas.label_spec import *\n"
        "specs = [load_label_spec(name)[0] for name in builtin_names()]\n"
        "print([(spec.digest, spec.schema_text) for spec in specs])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT), "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        ).stdout
        for seed in ("1", "2")
    }
    specs = [load_label_spec(name)[0] for name in builtin_names()]
    assert outputs == {f"{[(spec.digest, spec.schema_text) for spec in specs]}\n"}


def test_a_spec_cannot_be_changed_and_takes_nothing_unknown():
    with pytest.raises(ValidationError, match="frozen"):
        SPEC.name = "x"
    with pytest.raises(ValidationError, match="Extra inputs"):
        LabelSpec(**dict(SPEC), colour="red")


@pytest.mark.parametrize("sampling", [{"temperature": -1}, {"temperature": 3}, {"top_p": 0}, {"top_k": 1}])
def test_sampling_has_limits(sampling):
    with pytest.raises(ValidationError):
        Sampling(**sampling)


@pytest.mark.parametrize("name", ["", "1st", "Papers", "a-b", "a b", "å", "a" * 42, 'a"; DROP', "a\n"])
def test_a_name_must_be_an_identifier_without_quotes(name):
    with pytest.raises(ValidationError, match="name"):
        LabelSpec(**{**dict(SPEC), "name": name})


# -- what --schema takes ----------------------------------------------------------------------------------------------


def test_the_built_in_schemas():
    assert builtin_names() == ["packages", "papers"]


@pytest.mark.parametrize(("name", "model"), [("papers", Papers), ("packages", Packages)])
def test_a_built_in_schema_brings_prompt_and_class(name, model):
    spec, notes = load_label_spec(name)
    assert spec.name == name
    assert spec.class_path == f"schemas.library.{name}:{model.__name__}"
    assert spec.model_class() is model
    assert spec.system_prompt == model.system_prompt
    assert list(spec.json_schema["properties"]) == list(model.model_fields)
    assert notes == ()
    assert spec.max_output_tokens == max_output_tokens(spec.json_schema)
    assert json.loads(spec.schema_text) == spec.json_schema


def test_a_file_with_one_class(here):
    (here / "my schema.py").write_text(ONE_CLASS)
    spec, notes = load_label_spec("my schema.py")
    assert spec.name == "review_tone"
    assert spec.class_path is None
    assert spec.model_class() is None
    assert spec.template == "{text}"
    assert list(spec.json_schema["properties"]) == ["tone", "title"]
    assert len(notes) == 1
    # The default prompt holds the docstring and the fields with their descriptions.
    assert "How a review sounds." in spec.system_prompt
    assert "- tone: In a word." in spec.system_prompt
    assert "- title\n" in spec.system_prompt


def test_a_class_of_a_file_with_several(here):
    (here / "my.py").write_text(TWO_CLASSES)
    assert load_label_spec("my.py:Other")[0].name == "other"
    assert load_label_spec(f"{here}/my.py:ReviewTone")[0].name == "review_tone"


def test_a_class_of_a_module_in_the_current_directory(here):
    (here / "my_schemas.py").write_text(TWO_CLASSES)
    path = list(sys.path)
    spec, _ = load_label_spec("my_schemas:Other")
    assert spec.name == "other"
    assert spec.class_path is None
    assert sys.path == path


def test_a_built_in_class_named_by_its_module_brings_no_class_path():
    assert load_label_spec("schemas.library.papers:Papers")[0].class_path is None


@pytest.mark.parametrize(
    ("file", "name"), [("Thing.json", "thing"), ("thing.schema.json", "thing"), ("my-Things.json", "my_things")]
)
def test_a_json_schema_file(here, file, name):
    (here / file).write_text(json.dumps({**SCHEMA, "description": "Things."}))
    spec, notes = load_label_spec(file)
    assert spec.name == name
    assert spec.json_schema["additionalProperties"] is False
    assert spec.class_path is None
    assert "Things." in spec.system_prompt
    assert notes == ()


def test_what_is_moved_is_among_the_notes_and_only_the_engine_gets_less(here):
    field = {"type": "integer", "minimum": 0, "maximum": 9, "multipleOf": 3}
    (here / "a.json").write_text(json.dumps({"type": "object", "properties": {"n": field}}))
    spec, notes = load_label_spec("a.json")
    assert notes == ("$.n: `multipleOf` is checked after generation: the engine can't constrain it",)
    assert spec.json_schema["properties"]["n"] == field
    assert "multipleOf" not in spec.schema_text
    assert "multipleOf" in json.dumps(spec.model_dump())


def test_a_json_schema_file_with_a_byte_order_mark(here):
    (here / "a.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(SCHEMA).encode())
    assert load_label_spec("a.json")[0].name == "a"


def test_prompt_template_and_name_can_be_given():
    spec, _ = load_label_spec("papers", prompt="Say it.", template="{id}: {text}", name="articles")
    assert (spec.system_prompt, spec.template, spec.name) == ("Say it.", "{id}: {text}", "articles")
    assert spec.class_path == "schemas.library.papers:Papers"
    assert spec.digest != load_label_spec("papers")[0].digest


@pytest.mark.parametrize(
    ("file", "content", "source", "message"),
    [
        ("my.py", TWO_CLASSES, "my.py", r"one pydantic class, found ReviewTone, Other: name it as my\.py:Class"),
        ("my.py", "x = 1", "my.py", "found none"),
        ("my.py", "from schemas.label_schema import LabelSchema", "my.py", "found none"),
        ("my.py", ONE_CLASS, "my.py:Gone", "has no pydantic class 'Gone'"),
        ("my.py", ONE_CLASS + "\nx = 1", "my.py:x", "has no pydantic class 'x'"),
        ("my.py", "raise RuntimeError('boom')", "my.py", r"my\.py failed as it was run: RuntimeError: boom"),
        ("my.py", "import sys; sys.exit(0)", "my.py", r"my\.py failed as it was run: SystemExit"),
        ("my.py", "class A(:", "my.py", r"my\.py failed as it was run: SyntaxError"),
        ("my_a.py", "raise RuntimeError('boom')", "my_a:A", r"--schema my_a:A: can't import 'my_a': boom"),
        ("my_b.py", "class A(:", "my_b:A", r"--schema my_b:A: can't import"),
        ("my_c.py", "x = 1", "my_c:A", "my_c has no pydantic class 'A'"),
        (None, "", "gone.py", r"no file gone\.py: --schema takes a built-in name \(packages, papers\)"),
        (None, "", "gone:A", "can't import 'gone'"),
        (None, "", ":A", "can't import ''"),
        (None, "", ".x:A", "can't import"),
        (None, "", "paper", r"unknown schema 'paper': --schema takes a built-in name \(packages, papers\)"),
        (None, "", "", "unknown schema ''"),
        (None, "", "gone.json", r"--schema gone\.json: No such file"),
        ("a.json", "{", "a.json", "not JSON"),
        ("a.json", '{"a": NaN}', "a.json", "not JSON: NaN"),
        ("a.json", "[]", "a.json", "a JSON Schema is an object"),
        ("a.json", "{}", "a.json", "needs `type: object`"),
        ("a.json", "[" * 100_000, "a.json", "nested too deeply"),
        ("a.json", '{"type": "object", "properties": {"a": {"not": {}}}}', "a.json", r"\$\.a: allows any"),
        ("papers_v1.json", json.dumps(SCHEMA), "papers_v1.json", "'papers_v1' looks like a version"),
        ("1.json", json.dumps(SCHEMA), "1.json", "label spec: name: "),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_be_used_says_why(here, file, content, source, message):
    if file:
        (here / file).write_text(content)
    with pytest.raises(UsageError, match=message):
        load_label_spec(source)


def test_a_class_without_json_schema_says_why(here):
    (here / "my.py").write_text(
        "from collections.abc import Callable\nfrom pydantic import BaseModel\n"
        "class A(BaseModel):\n    f: Callable[[], int]\n"
    )
    with pytest.raises(UsageError, match="no JSON Schema can be made of it"):
        load_label_spec("my.py")


@pytest.mark.parametrize("bad", ["\x00", "\ud800"])
@pytest.mark.parametrize("where", ["description", "enum", "name", "prompt", "template"])
def test_text_that_postgres_cannot_store_is_refused(here, where, bad):
    field = {"enum": ["a" + bad if where == "enum" else "a"], "description": bad if where == "description" else "d"}
    schema = {"type": "object", "properties": {bad if where == "name" else "a": field}}
    (here / "a.json").write_text(json.dumps(schema))
    with pytest.raises(UsageError, match=r"NUL or half a surrogate pair|unicode string"):
        load_label_spec(
            "a.json",
            prompt=bad if where == "prompt" else "Label it.",
            template="{text}" + bad if where == "template" else None,
        )


@pytest.mark.parametrize("name", ["papers_v1", "x_v22"])
def test_a_name_that_looks_like_a_version_is_refused(name):
    # The view papers_v1 would be taken for version 1 of papers.
    with pytest.raises(UsageError, match="looks like a version"):
        load_label_spec("papers", name=name)


def test_a_name_that_ends_in_v_and_words_is_fine():
    assert load_label_spec("papers", name="papers_vx")[0].name == "papers_vx"


# -- classes that run on workers --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", [None, "os:path", "os:system", "schemas.label_schema:LabelSchema", "schemas.library:papers", "my_evil:Evil"]
)
def test_a_class_from_elsewhere_never_runs(path):
    assert LabelSpec(**{**dict(SPEC), "class_path": path}).model_class() is None


@pytest.mark.parametrize(
    "path",
    [
        "schemas.library.papers.evil",
        "schemas.library.papers.evil:Evil",
        "schemas.library.gone:Gone",
        "schemas.library.:Papers",
        "schemas.library.papers",
        "schemas.library.papers:",
        "schemas.library.papers:Gone",
        "schemas.library.papers:StrEnum",
        "schemas.library.papers:__doc__",
        "schemas.library...os:path",
    ],
)
def test_a_class_that_is_not_installed_is_refused(path):
    with pytest.raises(UsageError, match=r"not installed here|has no pydantic class"):
        LabelSpec(**{**dict(SPEC), "class_path": path}).model_class()


def test_a_refused_class_path_imports_nothing(here):
    (here / "my_evil.py").write_text("raise SystemExit('ran')")
    LabelSpec(**{**dict(SPEC), "class_path": "my_evil:Evil"}).model_class()
    assert "my_evil" not in sys.modules


# -- templates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("template", "fields"),
    [
        ("{text}", ["text"]),
        ("{id}: {text}\n{year}, {year}", ["id", "text", "year", "year"]),
        ('{{"a": 1}} {text}', ["text"]),
        ("{journal name} {dc.title} {text}", ["journal name", "dc.title", "text"]),
        ("<doc>{text}</doc> {标题}", ["text", "标题"]),
    ],
)
def test_fields_of_a_template(template, fields):
    assert template_fields(template) == fields


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "exactly once"),
        ("no field", "exactly once"),
        ("{{text}}", "exactly once"),
        ("{Text}", "exactly once"),
        ("{ text }", "exactly once"),
        ("{text} {text}", "exactly once"),
        ("{text", "broken"),
        ("text}", "broken"),
        ('{"a": 1} {text}', "plain name"),
        ("{} {text}", "plain name"),
        ("{0} {text}", "plain name"),
        ("{text!r}", "plain name"),
        ("{text:>10}", "plain name"),
        ("{text:{width}}", "plain name"),
    ],
)
def test_a_broken_template_is_refused(template, message):
    with pytest.raises(UsageError, match=message):
        template_fields(template)


def test_a_broken_template_is_refused_when_it_is_given():
    with pytest.raises(UsageError, match="exactly once"):
        load_label_spec("papers", template="Read this:")
