"""The provenance beside a record."""

import json
import subprocess
import sys
from pathlib import Path

from cast.experiments import provenance
from cast.experiments.provenance import Provenance, code_version, versions


def test_it_says_where_a_record_comes_from_and_is_json():
    opened = Provenance({"seed": 3, "budgets": [7]}, "digest", "cpu", 1, 3)
    closed = opened.close(records=5, sessions=["a", "b"], earlier_s=10.0, note="x")
    assert closed["config"] == {"seed": 3, "budgets": [7]}
    assert closed["config_digest"] == "digest"
    assert closed["records"] == 5
    assert closed["sessions"] == ["a", "b"]
    assert closed["wall_s"] >= 10.0
    assert closed["device"]["threads"] == 1
    assert closed["note"] == "x"
    assert closed["started"] <= closed["finished"]
    assert {"git_commit", "git_dirty", "host", "other_users_before", "other_users_after"} <= set(closed)
    json.dumps(closed, allow_nan=False)


def test_versions_name_what_a_number_depends_on():
    assert {"python", "torch", "transformers", "numpy"} <= set(versions())


def test_the_code_version_follows_the_source(tmp_path, monkeypatch):
    package = tmp_path / "cast"
    (package / "experiments").mkdir(parents=True)
    monkeypatch.setattr(provenance, "__file__", str(package / "experiments" / "provenance.py"))
    found = []
    for text in ("a = 1\n", "a = 2\n", "a = 1\n"):
        (package / "module.py").write_text(text)
        code_version.cache_clear()
        found.append(code_version())
    code_version.cache_clear()
    assert found[0] == found[2] != found[1]


def test_outside_git_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "provenance.py"))
    provenance.git_state.cache_clear()
    assert provenance.git_state() == ("", False)
    provenance.git_state.cache_clear()


def test_it_loads_no_torch():
    code = "import sys, cast.experiments.provenance; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path.cwd()).returncode == 0


def test_an_untracked_script_is_dirty_and_the_state_is_of_the_start(tmp_path, monkeypatch):
    for folder in ("src/cast/experiments", "scripts", "notes"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "src/cast/experiments/provenance.py").write_text("")

    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)

    def dirty():
        provenance.git_state.cache_clear()
        return provenance.git_state()[1]

    git("init")
    git("add", ".")
    git("commit", "-m", "a")
    monkeypatch.setattr(provenance, "__file__", str(tmp_path / "src/cast/experiments/provenance.py"))
    assert not dirty()
    (tmp_path / "notes/a.md").write_text("")
    assert not dirty()
    opened = Provenance({}, "digest", "cpu", 1, 0)
    (tmp_path / "scripts/new.py").write_text("")
    assert dirty()
    assert opened.close(records=0, sessions=[])["git_dirty"] is False
    provenance.git_state.cache_clear()
