"""The matrix and the configuration of its jobs, composed without Hydra's application and without torch."""

import random
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from omegaconf.errors import ReadonlyConfigError

from cast.experiments.bootstrap import MIN_PROMPTS
from jobs import composition, machine, schema
from jobs.composition import CONF, ConfigurationError
from jobs.study import NAME, expand
from workflow.lib import options
from workflow.lib.options import Options

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("study", "scale"), [("smoke", None), ("embedded", None), ("paper", "tiny")])
def test_every_job_composes_as_hydra_does(study, scale):
    schema.register()
    jobs = expand(study, ["data.root=/x y", "seed=3", "tracking=offline", "budgets=[15,31]"], scale=scale).jobs
    if len(jobs) > 15:  # one of each experiment, drawn
        drawn = random.Random(0).sample(jobs, len(jobs))
        jobs = {job.experiment: job for job in drawn}.values()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for job in jobs:
            assert composition.plain(job.compose()) == composition.plain(compose("config", overrides=job.arguments)), (
                job.label
            )


def test_composing_like_jobs_is_fast():
    def compose(seed):
        return composition.compose_job("width_sweep", "smollm2_fp32", "math", [f"seed={seed}"])

    assert compose(0).seed == 0
    start = time.process_time()
    assert [compose(seed).seed for seed in range(1, 31)] == list(range(1, 31))
    assert (time.process_time() - start) / 30 < 0.04


def test_an_experiment_may_choose_what_every_job_has(tmp_path):
    conf = shutil.copytree(CONF, tmp_path / "conf")
    with open(conf / "experiment/width_sweep.yaml", "a") as file:
        file.write("seed: 7\nengine: graph\n")
    for overrides, seed in (([], 7), (["seed=3"], 3)):
        arguments = composition.job_arguments("width_sweep", "tiny_qwen3", "tiny", overrides)
        fast = composition.compose_job("width_sweep", "tiny_qwen3", "tiny", overrides, conf)
        for config in (fast, composition.compose_with_hydra("config", arguments, conf)):
            assert (config.seed, config.engine.value) == (seed, "graph")


def test_a_job_is_composed_once_and_nobody_changes_it():
    job, again = expand("smoke").jobs[0], expand("smoke").jobs[0]
    assert job.compose() is again.compose()
    with pytest.raises(ReadonlyConfigError):
        job.compose().seed = 1


def test_names_match_their_files_and_the_rule_for_names():
    for group in ("setting", "target", "drafter", "device", "domain", "site"):
        for path in (CONF / group).glob("*.yaml"):
            content = yaml.safe_load(path.read_text())
            name = content["setting"]["name"] if group == "setting" else content["name"]
            assert name == path.stem
            assert NAME.fullmatch(name)


def test_a_device_or_model_is_fewer_than_twenty_lines():
    for group in ("setting", "target", "drafter", "device", "domain"):
        for path in (CONF / group).glob("*.yaml"):
            assert len(path.read_text().splitlines()) < 20, path


def test_every_setting_of_the_tree_composes():
    for setting in composition.options("setting"):
        config = composition.compose_job("width_sweep", setting, "math")
        assert config.setting.name == setting
        if config.target.source == "Qwen/Qwen3-8B":
            assert config.target.revision == "main"


def test_values_of_a_study_reach_its_jobs():
    embedded = expand("embedded")
    sweep = embedded.of("width_sweep")[0].compose()
    assert list(sweep.budgets) == [7, 11, 15, 23, 31, 47, 63, 95, 127]
    assert embedded.of("latency_probe")[0].compose().prefix_tokens == 256
    assert {job.compose().scores.setting for job in embedded.of("width")} == {"smollm2_fp32"}
    assert [job.record for job in embedded.of("drafter_scores")] == [
        "results/embedded/drafter_scores/smollm2_fp32/math.parquet"
    ]


def test_where_bf16_is_emulated_another_setting_takes_its_place(monkeypatch):
    monkeypatch.setattr("jobs.study.bf16_is_emulated", lambda: True)
    assert expand("embedded").settings == ["smollm2_fp32_1thread", "smollm2_fp32"]
    monkeypatch.setattr("jobs.study.bf16_is_emulated", lambda: False)
    assert expand("embedded").settings == ["smollm2_bf16", "smollm2_fp32"]


@pytest.mark.parametrize(
    ("text", "gpu", "emulated"),
    [
        ("flags\t\t: fpu avx512f avx512_bf16", None, False),
        ("flags\t\t: fpu amx_bf16 amx_tile", None, False),
        ("Features\t: fp asimd bf16", None, False),
        ("flags\t\t: fpu avx2 avx512f", None, True),
        ("", None, True),
        ("flags\t\t: fpu avx2", {"name": "a GPU"}, False),
    ],
)
def test_emulation_is_read_from_the_processor(text, gpu, emulated, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cuda_gpu", lambda: gpu)
    (tmp_path / "cpuinfo").write_text(text)
    machine.bf16_is_emulated.cache_clear()
    assert machine.bf16_is_emulated(str(tmp_path / "cpuinfo")) is emulated
    machine.bf16_is_emulated.cache_clear()


def test_only_what_is_measured_changes_a_digest():
    def digest(*overrides):
        return composition.config_digest(composition.compose_job("width_sweep", "tiny_qwen3", "tiny", overrides))

    assert digest() == digest("tracking=offline", "out=elsewhere.parquet")
    assert len({digest(), digest("seed=1"), digest("budgets=[7]"), digest("data.root=/x")}) == 4


def test_overrides_go_where_their_key_is_known():
    overrides = ["budgets=[15,31]", "data.root=/x y", "tracking.project=mine"]
    assert composition.applicable(overrides, "latency_probe") == overrides[1:]
    assert composition.applicable(overrides, "width_sweep") == overrides
    assert composition.bookkeeping(overrides) == overrides[2:]
    with pytest.raises(ConfigurationError, match="unknown key 'budgts'"):
        [job.compose() for job in expand("smoke", ["budgts=[3]"]).jobs]


@pytest.mark.parametrize(
    ("config", "read"),
    [
        ({}, Options()),
        ({"study": "smoke", "gpus": []}, Options("smoke", ())),
        ({"gpus": ["a6000"]}, Options("embedded", ("a6000",))),
        ({"overrides": ["seed=1", "data.root=/x y"]}, Options(overrides=("seed=1", "data.root=/x y"))),
        ({"overrides": '["seed=1"]'}, Options(overrides=("seed=1",))),
        ({"overrides": "seed=1"}, Options(overrides=("seed=1",))),
        ({"overrides": "['seed=1', data.root=/x y]"}, Options(overrides=("seed=1", "data.root=/x y"))),
        ({"overrides": "[seed=1"}, Options(overrides=("[seed=1",))),
        ({"study": "paper", "scale": "tiny"}, Options("paper", scale="tiny")),
    ],
)
def test_options_of_the_command_line(config, read):
    assert options.read(config) == read


@pytest.mark.parametrize("config", [{"budgets": [1]}, {"gpus": 3}, {"overrides": {"a": 1}}])
def test_options_that_are_refused(config):
    with pytest.raises(ConfigurationError, match=next(iter(config))):
        options.read(config)


def test_a_description_changes_no_digest():
    config = composition.compose_job("width_sweep", "tiny_qwen3", "tiny")
    before = composition.config_digest(config)
    config.experiment.about, config.experiment.yields, config.domain.license = "other words", ["E01"], "MIT"
    assert composition.config_digest(config) == before
    assert composition.plain(config)["experiment"]["about"] == "other words"


def test_no_time_limit_of_the_full_study_leaves_a_cell_without_an_interval():
    limited = [config for job in expand("embedded-full").jobs if "min_prompts" in (config := job.compose())]
    assert {config.experiment.script for config in limited} == {"decode", "equivalence"}
    assert {config.min_prompts for config in limited if config.time_limit_s is not None} == {MIN_PROMPTS}


def test_a_setting_of_a_study_may_have_values_of_its_own(monkeypatch):
    monkeypatch.setattr("jobs.study.bf16_is_emulated", lambda: False)
    own = OmegaConf.load(CONF / "study" / "embedded.yaml").experiments.width_sweep.by_setting
    limits = {job.setting: job.compose().time_limit_s for job in expand("embedded").of("width_sweep")}
    assert limits == {setting: values.overrides.time_limit_s for setting, values in own.items()}
    assert len(set(limits.values())) == 2


def test_the_tiny_scale_leaves_no_checkpoint_of_the_hub_and_no_gpu():
    for job, whole in zip(expand("paper", scale="tiny").jobs, expand("paper").jobs, strict=True):
        config = job.compose()
        for axis in ("lengths", "block_sizes", "seeds"):  # shrunken, never added
            assert (config.get(axis) is None) == (whole.compose().get(axis) is None), job.label
        assert job.record.startswith("results/paper-tiny/")
        assert config.device.kind.value == "cpu"
        assert not [path for path, source in sources_of(composition.plain(config)) if "/" in source], job.label
        assert config.domain is None or config.domain.source in ("file", "package", "pydoc")
    with pytest.raises(ConfigurationError, match="unknown scale 'huge'; known: tiny"):
        expand("paper", scale="huge")


def sources_of(config, path=""):
    for key, value in config.items():
        if isinstance(value, dict) and key != "domain":
            yield from sources_of(value, f"{path}{key}.")
        elif key == "source":
            yield path, value


def test_an_experiment_without_its_file_is_named(tmp_path):
    shutil.copytree(CONF, tmp_path / "conf")
    (tmp_path / "conf/experiment/width_sweep.yaml").unlink()
    with pytest.raises(ConfigurationError, match="study smoke: unknown experiment 'width_sweep'; known: "):
        expand("smoke", conf=tmp_path / "conf")


@pytest.fixture
def conf(tmp_path):
    """A copy of the configuration tree, and a function that edits one of its files."""
    shutil.copytree(CONF, tmp_path / "conf")

    def edit(name, *replacements):
        path = tmp_path / "conf" / name
        text = path.read_text()
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new, 1)
        path.write_text(text)
        return tmp_path / "conf"

    return edit


@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        (("name: smoke", "name: embedded"), "conf/study/smoke.yaml calls itself embedded; its name must be that of"),
        (("    estimate_s: 5\n", ""), "conf/study/smoke.yaml: no value for experiments.width.estimate_s"),
        (("    estimate_s: 5\n", "    estimate_s: .nan\n"), "estimate_s of width is nan, no time"),
        (("    settings: [tiny_qwen3]\n", ""), "no value for experiments.latency_probe.settings"),
        (("experiments:", "experiments: {}\nby_accident:"), "unknown key 'by_accident'"),
        (("artefacts: [", "artefacts: [["), "smoke.yaml: while parsing a flow sequence"),
        (
            ("      tiny_llama:\n", "      tiny_lama:\n"),
            "study smoke, width_sweep.by_setting: unknown setting 'tiny_lama'",
        ),
        (
            ("    overrides:\n      rounds", "    by_domain: {tinny: {}}\n    overrides:\n      rounds"),
            "unknown domain 'tinny'",
        ),
    ],
)
def test_a_wrong_study_is_told_by_its_file(conf, replacement, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        expand("smoke", conf=conf("study/smoke.yaml", replacement))
    assert len(str(caught.value).splitlines()) == 1


def test_a_study_without_jobs_or_in_the_place_of_another_is_refused(conf):
    tree = conf("study/smoke.yaml")
    text = "name: none\nabout: nothing\nexperiments: {}\n"
    (tree / "study/none.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="study none has no jobs"):
        expand("none", conf=tree)
    (tree / "study/smoke-tiny.yaml").write_text(text)
    with pytest.raises(ConfigurationError, match="would share its results with study smoke-tiny"):
        expand("smoke", conf=tree, scale="tiny")


@pytest.mark.parametrize(
    ("file", "replacement", "message"),
    [
        (
            "setting/tiny_qwen3.yaml",
            ("  name: tiny_qwen3", "  name: other"),
            "conf/setting/tiny_qwen3.yaml calls itself other",
        ),
        (
            "setting/tiny_qwen3.yaml",
            ("# @package _global_\n", ""),
            "lacks its first line; it must be '# @package _global_'",
        ),
        (
            "target/tiny_qwen3.yaml",
            ("name: tiny_qwen3", "name: tiny"),
            "conf/target/tiny_qwen3.yaml calls itself tiny;",
        ),
        ("device/cpu_1thread.yaml", ("kind: cpu", "kind: [cpu"), "cpu_1thread.yaml: while parsing a flow sequence"),
        ("drafter/tiny_qwen3.yaml", ("name: tiny_qwen3\n", "- tiny\n#"), "tiny_qwen3.yaml: "),
    ],
)
def test_a_file_that_is_not_what_it_seems_is_told_before_a_study_starts(conf, file, replacement, message):
    with pytest.raises(ConfigurationError, match=re.escape(message)) as caught:
        [job.compose(tree) for tree in [conf(file, replacement)] for job in expand("smoke", conf=tree).jobs]
    assert len(str(caught.value).splitlines()) == 1


def test_a_setting_without_its_first_line_is_told_by_hand_too(conf):
    tree = conf("setting/tiny_qwen3.yaml", ("# @package _global_\n", ""))
    with pytest.raises(ConfigurationError, match="a file of conf/setting lacks its first line"):
        composition.compose_with_hydra("config", ["setting=tiny_qwen3", "domain=tiny"], tree)


def test_a_file_that_is_no_yaml_is_one_line_by_hand_too(conf):
    tree = conf("device/cpu_1thread.yaml", ("kind: cpu", "kind: [cpu"))
    with pytest.raises(ConfigurationError, match=r"cpu_1thread\.yaml") as caught:
        composition.compose_with_hydra("config", ["setting=tiny_qwen3", "domain=tiny"], tree)
    assert len(str(caught.value).splitlines()) == 1


def test_a_name_that_no_path_could_take_is_refused(conf):
    tree = conf("setting/tiny_qwen3.yaml", ("  name: tiny_qwen3", "  name: My GPU"))
    (tree / "setting/tiny_qwen3.yaml").rename(tree / "setting/My GPU.yaml")
    with pytest.raises(ConfigurationError, match="a name is of a-z"):
        composition.check_names({"setting": "My GPU"}, tree)


@pytest.mark.parametrize("override", ["setting=tiny_llama", "experiment=width", "~domain", "out=x.parquet"])
def test_what_a_study_gives_its_jobs_is_not_overridden(override):
    with pytest.raises(ConfigurationError, match="a study gives each job its own"):
        expand("smoke", [override])


def test_every_experiment_names_a_script_and_reads_jobs_of_its_study():
    for experiment in composition.options("experiment"):
        content = composition.compose_job(experiment, "tiny_qwen3", "tiny").experiment
        assert content.name == experiment
        assert (ROOT / "scripts" / f"{content.script}.py").is_file()
    for study in composition.options("study"):
        matrix = expand(study)
        for job in matrix.jobs:
            assert set(matrix.sources(job)) == set(job.compose().experiment.reads)


def test_assumptions_are_complete_and_name_experiments():
    assumptions = yaml.safe_load((CONF / "assumptions.yaml").read_text())
    assert len(assumptions) >= 25
    known = {f"E{number:02d}" for number in range(1, 49)}
    for assumption in assumptions:
        assert set(assumption) == {"id", "experiments", "unstated", "choice", "reason"}
        assert set(assumption["experiments"]) <= known


def test_composing_loads_no_torch():
    code = (
        "import sys; sys.path[:0] = ['.', 'scripts']\n"
        "from jobs.study import expand; from workflow.lib import estimate, options, outcome, resume\n"
        "[job.compose() for job in expand('smoke').jobs]; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
