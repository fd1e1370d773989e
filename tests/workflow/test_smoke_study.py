"""The smoke study end to end, and what a second run does after each kind of change."""

import itertools
import json
import os
import resource
import shutil
import signal
import subprocess
import time

import pandas as pd
import pytest
import yaml
from browser import WIDTHS, in_a_browser, opened

from cast.experiments.partial import Partial
from cast.experiments.records import DECODE, LATENCY, SCORES, read_records
from jobs.study import expand
from workflow.lib import outcome, resume, retry

STUDY = ("--config", "study=smoke")
SCHEMAS = {"width_sweep": DECODE, "latency_probe": LATENCY, "drafter_scores": SCORES}


def test_every_job_left_a_record_with_its_provenance(smoke):
    for job in expand("smoke").jobs:
        path = smoke.root / job.record
        if job.experiment == "width":
            assert json.loads(path.read_text())["width"] in (7, 15, 31)
            continue
        frame = read_records(path, SCHEMAS[job.experiment])
        assert set(frame.status) == {"measured"}
        told = json.loads(path.with_suffix(".json").read_text())
        assert told["records"] == len(frame)
        assert (frame.setting == job.setting).all()
    assert not list(smoke.root.rglob("*.partial"))


def test_everything_that_was_promised_is_rendered(smoke):
    results = smoke.root / "results/smoke"
    for name in ("fig2", "fig3"):
        assert all((results / "figures" / f"{name}.{suffix}").stat().st_size for suffix in ("pdf", "svg", "png", "csv"))
    for name in ("table2", "table12"):
        assert all((results / "tables" / f"{name}.{suffix}").stat().st_size for suffix in ("csv", "md", "tex", "html"))
    assert all((results / f"scorecard.{suffix}").stat().st_size for suffix in ("md", "json", "html"))


def test_it_tells_how_long_it_will_take_and_how_far_it_is(smoke):
    told = (smoke.root / "told.txt").read_text()
    assert "study smoke: 1 x latency_probe, 1 x drafter_scores, 1 x width, 2 x width_sweep, then figures" in told
    assert "smoke: 5 jobs checked" in told
    assert "width_sweep tiny_llama/tiny_llama 4/4" in told
    assert "tiny_qwen3: N* = " in told


def test_timed_jobs_never_overlap(smoke):
    spans = []
    for job in expand("smoke").jobs:
        if job.experiment != "width":
            told = json.loads((smoke.root / job.record).with_suffix(".json").read_text())
            spans.append((told["started"], told["finished"]))
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))


def test_a_second_run_does_nothing(smoke):
    before = smoke.mtimes("results/**/*")
    start = cpu_seconds()
    assert smoke.planned(*STUDY) == {}
    assert cpu_seconds() - start < 20
    assert smoke.mtimes("results/**/*") == before


def cpu_seconds():
    """Of the processes that have ended: a busy machine changes the time on the wall."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize(
    ("override", "measured"),
    [
        ("budgets=[7,15]", {"width_sweep": 2, "width": 1}),
        ("iterations=4", {"latency_probe": 1, "width": 1}),
        ("seed=1", {"width_sweep": 2, "latency_probe": 1, "drafter_scores": 1, "width": 1}),
        ("tracking=offline", {}),
    ],
)
def test_a_changed_value_measures_what_depends_on_it(smoke, override, measured):
    rules = smoke.planned(*STUDY, f'overrides=["{override}"]')
    assert {rule: count for rule, count in rules.items() if rule in _MEASURING} == measured
    assert bool(rules) == bool(measured)


_MEASURING = ("width_sweep", "latency_probe", "drafter_scores", "width")


def test_touched_weights_and_comments_measure_nothing_and_a_figure_module_renders_its_figure(smoke, fresh_tree):
    tree = fresh_tree(with_results=smoke)
    (tree.root / "tests/golden").unlink()
    shutil.copytree(smoke.root / "tests/golden", tree.root / "tests/golden")
    for path in (tree.root / "tests/golden").rglob("*.safetensors"):
        os.utime(path)
    study = tree.root / "conf/study/smoke.yaml"
    study.write_text("# another comment\n" + study.read_text())
    assert tree.planned(*STUDY) == {}
    with open(tree.root / "figures/fig2.py", "a") as file:
        file.write("\n# a comment\n")
    assert tree.planned(*STUDY) == {"fig2": 1}


@pytest.mark.parametrize(
    ("record", "rendered"),
    [
        ("drafter_scores/tiny_qwen3/tiny", {"scorecard"}),
        ("latency_probe/tiny_qwen3/random", {"fig2", "fig3", "table2", "table12", "scorecard"}),
        ("width_sweep/tiny_llama/tiny_llama", {"summary", "fig2", "fig3", "table2", "table12", "scorecard"}),
    ],
)
def test_a_changed_record_renders_what_reads_it(smoke, fresh_tree, record, rendered):
    tree = fresh_tree(with_results=smoke)
    path = tree.root / f"results/smoke/{record}.parquet"
    pd.read_parquet(path).assign(host="another").to_parquet(path)
    assert tree.planned(*STUDY, "gpus=[]") == dict.fromkeys(rendered, 1)


def test_jobs_keep_their_bytecode(smoke):
    kept = {path.name.split(".")[0] for path in (smoke.root / "figures/__pycache__").glob("*.pyc")}
    assert {"data", "table2"} <= kept


def test_edited_prompts_are_measured_again(smoke, fresh_tree):
    tree = fresh_tree(with_results=smoke)
    prompts = tree.root / "conf/prompts/tiny_llama.jsonl"
    prompts.write_text(prompts.read_text().replace("29", "30", 1))
    rules = tree.planned(*STUDY)
    assert {rule: count for rule, count in rules.items() if rule in _MEASURING} == {"width_sweep": 1}


def test_records_of_another_cluster_are_rendered(smoke, fresh_tree):
    tree = fresh_tree(with_results=smoke)
    sweeps = tree.root / "results/smoke/width_sweep"
    (sweeps / "elsewhere").mkdir()
    frame = pd.read_parquet(sweeps / "tiny_qwen3/tiny.parquet").assign(setting="elsewhere")
    frame.to_parquet(sweeps / "elsewhere/tiny.parquet")
    rules = tree.planned(*STUDY)
    assert "summary" in rules
    assert rules.keys().isdisjoint(_MEASURING)


def test_a_width_without_its_score_log_is_left_out(fresh_tree):
    """The log is of another device, which is not measured now."""
    tree = fresh_tree()
    study = tree.root / "conf/study/smoke.yaml"
    text = study.read_text()
    text = text.replace("  drafter_scores:\n    settings: [tiny_qwen3]", "  drafter_scores:\n    settings: [other]")
    text = text.replace("      scores.domain: tiny", "      scores.domain: tiny\n      scores.setting: other")
    study.write_text(text)
    setting = (tree.root / "conf/setting/tiny_qwen3.yaml").read_text()
    other = setting.replace("cpu_1thread", "cpu").replace("name: tiny_qwen3", "name: other")
    (tree.root / "conf/setting/other.yaml").write_text(other)
    rules = tree.planned("--config", "study=smoke", "gpus=[cpu_1thread]")
    assert rules["latency_probe"] == 1
    assert "width" not in rules


def test_without_gpus_nothing_is_measured_whatever_changed(smoke):
    assert smoke.planned(*STUDY, "gpus=[]", 'overrides=["budgets=[7,15]"]').keys().isdisjoint(_MEASURING)


def test_a_failed_job_leaves_the_others_rendered(smoke, fresh_tree):
    """One record is gone and its script broken: the rest is rendered, the exit code says so, a later run
    repairs it."""
    tree = fresh_tree(with_results=smoke)
    record = tree.root / "results/smoke/width_sweep/tiny_llama/tiny_llama.parquet"
    record.unlink()
    for path in (tree.root / "results/smoke/tables").iterdir():
        path.unlink()
    study = tree.root / "conf/study/smoke.yaml"
    content = yaml.safe_load(study.read_text()) | {"artefacts": ["table12"]}
    study.write_text(yaml.safe_dump(content, sort_keys=False))
    script = tree.root / "scripts/decode.py"
    whole = script.read_text()
    script.write_text("raise SystemExit(1)\n")
    assert tree.snakemake(*STUDY).returncode == 1
    table = (tree.root / "results/smoke/tables/table12.md").read_text()
    assert "tiny_qwen3" in table
    assert "not measured" in table
    script.write_text(whole)
    assert tree.planned(*STUDY)["width_sweep"] == 1


@pytest.fixture(scope="module")
def report(smoke):
    finished = smoke.snakemake("--report", "results/smoke/report.html", *STUDY, "gpus=[]")
    assert finished.returncode == 0, finished.stderr
    return smoke.root / "results/smoke/report.html"


def test_the_report_is_one_file_with_every_artefact(report):
    text = report.read_text()
    for name in ("fig2.svg", "fig3.svg", "table2.html", "table12.html", "table12.csv", "scorecard.html"):
        assert name in text


# Snakemake keeps every result inside the page, as a data address.
LOOK = """
const wide = address => new Promise(done => {
  const image = new Image();
  image.onload = () => done(image.naturalWidth);
  image.onerror = () => done(0);
  image.src = address;
});
const entries = Object.values(results);
const images = entries.filter(entry => entry.mime_type.startsWith('image/'));
const widths = await Promise.all(images.map(image => wide(image.data_uri)));
told.images = widths.length;
told.broken = widths.filter(width => !width).length;
told.scorecards = entries.filter(entry => entry.name === 'scorecard.html' && entry.caption.includes('verdict')).length;
told.text = document.body.innerText.replace(/\\s+/g, ' ');
"""


@in_a_browser
@pytest.mark.parametrize("device", WIDTHS)
def test_the_report_opens_offline(report, tmp_path, device):
    page = opened(report, tmp_path / device, WIDTHS[device], LOOK)
    # The stylesheet library inside Snakemake's report advises against itself; that is no error of the page.
    assert not [line for line in page.console if "should not be used in production" not in line]
    assert int(page.value("images")) >= 2
    assert page.value("broken") == "0"
    assert page.value("scorecards") == "1"
    assert {"Figures", "Tables", "Scorecard"} <= set(page.value("text").split())


def test_lint_is_clean(smoke):
    finished = smoke.snakemake("--lint", *STUDY)
    assert "good condition" in finished.stdout + finished.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("study=nope",), "unknown study 'nope'; known: embedded"),
        (("study=smoke", "budgets=[1]"), "unknown --config key 'budgets'; known: study, scale, gpus, overrides"),
        (("study=smoke", 'overrides=["seed=abc"]'), "Error merging override seed=abc"),
        (("study=smoke", 'overrides=["time_limit_s=nan"]'), "time_limit_s must be a finite number"),
        (("study=smoke", 'overrides=["setting=tiny_llama"]'), "override setting=tiny_llama: a study gives each job"),
        (("study=smoke", "gpus=[a6000]"), "gpus=['a6000']; the devices of study smoke: cpu_1thread"),
    ],
)
def test_a_wrong_command_line_is_one_line(smoke, arguments, message):
    finished = smoke.snakemake("-n", "--config", *arguments)
    assert finished.returncode == 1
    lines = [line for line in (finished.stdout + finished.stderr).splitlines() if "profile" not in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {message}")


@pytest.mark.skipif(not shutil.which("unshare"), reason="no file system can be mounted here")
def test_results_that_cannot_be_written_are_one_line_and_nothing_starts(fresh_tree):
    tree = fresh_tree()
    (tree.root / "results").mkdir()
    mounted = 'mount --bind results results && mount -o remount,bind,ro results || exit 77; exec "$@"'
    finished = subprocess.run(
        ["unshare", "-m", "sh", "-c", mounted, "sh", *tree.command(*STUDY)],
        cwd=tree.root,
        env=tree.environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode == 77 or finished.stderr.startswith("unshare"):
        pytest.skip("no file system can be mounted here")
    assert finished.returncode == 1
    told = [line for line in finished.stderr.splitlines() if line.startswith("error: ")]
    assert told == [
        "error: results/smoke/preflight.json: cannot be written (Read-only file system); choose a writable place",
        "error: nothing was started: the checks of the study failed, see above",
    ]
    assert finished.stderr.splitlines()[-2:] == told
    assert "starts" not in finished.stderr


def test_a_site_says_what_a_cluster_calls_a_device(fresh_tree):
    tree = fresh_tree()
    names = "{partition: gpu, account: mine, constraint: hbm3, gpu_model: h100, exclusive: true}"
    (tree.root / "conf/site/lab.yaml").write_text(f"name: lab\ndevices:\n  cpu_1thread: {names}\n")
    finished = tree.snakemake("-n", "--quiet", "host", *STUDY, 'overrides=["site=lab"]')
    asked = "slurm_partition=gpu, slurm_account=mine, constraint=hbm3, slurm_extra=--exclusive"
    assert finished.stdout.count(asked) >= 5, finished.stderr  # no GPU model where no GPU is asked for


def test_checks_that_fail_start_nothing(fresh_tree):
    tree = fresh_tree()
    finished = tree.snakemake(*STUDY, 'overrides=["device.threads=999"]')
    assert finished.returncode == 1
    assert "error: device.threads=999 but this process may use" in finished.stderr
    assert not list(tree.root.rglob("*.parquet"))


def test_the_last_words_name_failed_cells(smoke, fresh_tree, capsys):
    assert outcome.main(str(smoke.root / "results/smoke")) == 0
    tree = fresh_tree(with_results=smoke)
    path = tree.root / "results/smoke/latency_probe/tiny_qwen3/random.parquet"
    frame = pd.read_parquet(path).assign(status="failed", reason="out of memory", latency_ms=None)
    frame.to_parquet(path)
    assert outcome.main(str(tree.root / "results/smoke")) == 1
    assert "failed: latency_probe tiny_qwen3/random: out of memory" in capsys.readouterr().err


def test_resume_refuses_while_a_job_is_alive(tmp_path, capsys):
    record = tmp_path / "width_sweep/a/math.parquet"
    with Partial(record, "d") as job:
        job.append("x", [], 0.0)
        assert resume.main(str(tmp_path)) == 2
        assert f"process {os.getpid()}" in capsys.readouterr().err
    assert resume.main(str(tmp_path)) == 0


@pytest.mark.slow
def test_what_was_killed_is_continued(smoke, fresh_tree, untimed):
    """First the pipeline, whose job lives on: a second one is locked out and resuming refused; then the job."""
    tree = fresh_tree(with_results=smoke)
    record = tree.root / "results/smoke/width_sweep/tiny_qwen3/tiny.parquet"
    checkpoint = record.with_name("tiny.parquet.partial")
    only_this = (str(record.relative_to(tree.root)), *STUDY)
    record.unlink()
    with subprocess.Popen(
        tree.command(*only_this),
        cwd=tree.root,
        env=tree.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as pipeline:
        wait_until(lambda: writer_of(checkpoint))
        job = writer_of(checkpoint)
        pipeline.kill()
    os.kill(job, signal.SIGSTOP)  # so that it is alive below, however busy the machine is
    assert "locked" in tree.snakemake(*only_this).stderr.lower()
    assert resume.main(str(tree.root / "results/smoke")) == 2
    os.kill(job, signal.SIGKILL)
    wait_until(lambda: resume.main(str(tree.root / "results/smoke")) == 0)
    assert checkpoint.exists() and not record.exists()
    assert tree.snakemake("--unlock", *STUDY).returncode == 0
    finished = tree.snakemake(*only_this)
    assert finished.returncode == 0, finished.stderr
    assert "width_sweep" not in tree.planned(*STUDY)
    pd.testing.assert_frame_equal(untimed(record), untimed(smoke.root / record.relative_to(tree.root)))


def test_a_corrupt_record_is_told_and_measured_again(smoke, fresh_tree, capsys):
    tree = fresh_tree(with_results=smoke)
    record = tree.root / "results/smoke/width_sweep/tiny_llama/tiny_llama.parquet"
    record.write_bytes(record.read_bytes()[:-100])
    assert outcome.main(str(tree.root / "results/smoke")) == 1
    assert str(record) in capsys.readouterr().err
    retry.main(str(tree.root / "results/smoke"))
    assert tree.planned(*STUDY)["width_sweep"] == 1


def test_a_clock_that_went_back_measures_nothing_again(smoke, fresh_tree):
    """Records from the future, whose content nobody changed."""
    tree = fresh_tree(with_results=smoke)
    tomorrow = time.time() + 86400
    for path in tree.root.glob("results/smoke/*/*/*.parquet"):
        os.utime(path, (tomorrow, tomorrow))
    assert tree.planned(*STUDY).keys().isdisjoint(_MEASURING)


def writer_of(checkpoint):
    """The process named in its first line, None before there is one; takes no lock from under the job."""
    try:
        return json.loads(checkpoint.read_bytes()[:512])["claim"]["pid"]
    except (OSError, ValueError):
        return None


def wait_until(holds, seconds=100):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)
