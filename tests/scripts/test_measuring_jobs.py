"""The measuring scripts on the tiny pair: records, provenance, checkpoints and failures that are expected."""

import hashlib
import importlib
import json
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from decode import decode
from omegaconf import OmegaConf
from predict import predict
from probe import probe
from score_log import score_log
from scores import scores

from cast.errors import CastError, HubUnavailable
from cast.experiments.partial import Partial
from cast.experiments.records import DECODE, LATENCY, SCORE_LOG, SCORES, read_records, write_records
from jobs import composition, inputs, measuring, pairs, tracking
from workflow.lib import sync

SWEEP = ["prompt_limit=2", "max_new_tokens=12", "budgets=[7,15]"]
PROBE = ["prefix_tokens=16", "packed_tokens=[1,4,16,32,64,128]", "warmups=1", "iterations=2"]
SCORE = ["rounds=10", "max_new_tokens=24"]


def provenance(record):
    return json.loads(Path(record).with_suffix(".json").read_text())


def test_a_sweep_has_every_method_on_every_prompt_and_says_where_it_comes_from(tiny_job):
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    frame = read_records(config.out, DECODE)
    timed = frame[~frame.traced]
    assert set(zip(timed.method, timed.budget, strict=True)) == {
        ("autoregressive", 0), ("dflash", 7), ("cast", 7), ("cast", 15),
    }  # fmt: skip
    assert timed.groupby(["method", "budget"]).prompt_id.nunique().eq(2).all()
    assert (frame[["setting", "domain", "dtype", "status"]].drop_duplicates().to_numpy() == [
        ["tiny_qwen3", "tiny", "float32", "measured"]
    ]).all()  # fmt: skip
    told = provenance(config.out)
    assert told["records"] == len(frame)
    assert told["config"]["budgets"] == [7, 15]
    assert told["sessions"] == list(frame.session.unique())
    assert not Path(f"{config.out}.partial").exists()


def test_a_time_limit_ends_a_sweep_between_prompts(tiny_job):
    config = tiny_job("width_sweep", "max_new_tokens=12", "budgets=[7]", "time_limit_s=0.001")
    decode(config)
    assert read_records(config.out, DECODE).prompt_id.nunique() == 1


def test_a_probe_that_was_interrupted_starts_over(tiny_job):
    config = tiny_job("latency_probe", *PROBE, domain=None)
    digest = measuring.resume_digest(config, "cpu")
    with Partial(config.out, digest, lambda _: None) as partial:
        partial.append("0", [{"component": "draft"}], 1.0)
    probe(config)
    frame = read_records(config.out, LATENCY)
    assert frame.session.nunique() == 1
    assert frame.groupby(["component", "packed_tokens"]).size().eq(2).all()
    assert set(frame.domain) == {"random"}


def test_scores_and_probe_give_a_width_in_every_mode(tiny_job, tmp_path):
    probed, scored = (
        tiny_job("latency_probe", *PROBE, domain=None, out="p.parquet"),
        tiny_job("drafter_scores", *SCORE, out="s.parquet"),
    )
    probe(probed)
    scores(scored)
    curve = read_records(scored.out, SCORES)
    masses = np.load(tmp_path / "s.npz")["masses"]
    assert masses.dtype == np.float32
    assert masses.shape[1] == 512
    assert len(masses) >= 10
    np.testing.assert_allclose(curve.mass, masses.mean(axis=0, dtype=np.float64))
    assert set(curve["rounds"]) == {len(masses)}

    inputs = [f"inputs.latency={probed.out}", f"inputs.scores={scored.out}", "budgets=[7,15,31]"]
    predict(tiny_job("width", *inputs, out="w.json"))
    width = json.loads((tmp_path / "w.json").read_text())
    assert width["width"] in (7, 15, 31)
    assert width["predictions"][width["default"]]["cost"] == "affine"
    assert width["scores_source"] == "tiny_qwen3/tiny"
    assert width["scores_rounds"] == len(masses)
    assert width["probe_wall_s"] > 0
    assert len(width["masses"]) == 512


def test_a_checkpoint_the_hub_does_not_serve_is_a_record_and_not_an_error(tiny_job, monkeypatch):
    def gated(*_):
        raise pairs.Unavailable("own/gated is gated")

    monkeypatch.setattr(pairs, "load", gated)
    for job, schema, config in (
        (decode, DECODE, tiny_job("width_sweep", *SWEEP)),
        (probe, LATENCY, tiny_job("latency_probe", *PROBE, domain=None, out="p.parquet")),
        (scores, SCORES, tiny_job("drafter_scores", *SCORE, out="s.parquet")),
    ):
        job(config)
        frame = read_records(config.out, schema)
        assert set(frame.status) == {"failed"}
        assert set(frame.reason) == {"own/gated is gated"}
        assert provenance(config.out)["records"] == len(frame)


def test_a_width_without_its_probe_says_why(tiny_job, monkeypatch, tmp_path):
    scored = tiny_job("drafter_scores", *SCORE, out="s.parquet")
    scores(scored)
    monkeypatch.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
    probed = tiny_job("latency_probe", *PROBE, domain=None, out="p.parquet")
    probe(probed)
    inputs = [f"inputs.latency={probed.out}", f"inputs.scores={scored.out}"]
    predict(tiny_job("width", *inputs, out="w.json"))
    width = json.loads((tmp_path / "w.json").read_text())
    assert width["width"] is None
    assert "no such GPU" in width["reason"]


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried ...")],
)
def test_memory_that_does_not_suffice_keeps_what_was_measured(tiny_job, monkeypatch, error):
    from cast.experiments import width_sweep

    whole = width_sweep.run

    def runs_out(*arguments, **options):
        yield next(whole(*arguments, **options))
        raise error

    monkeypatch.setattr(width_sweep, "run", runs_out)
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    frame = read_records(config.out, DECODE)
    assert set(frame[frame.status == "measured"].prompt_id) == {"tiny/0"}
    assert frame[frame.status == "failed"].reason.str.startswith("out of memory").all()


@pytest.mark.parametrize(
    ("experiment", "job", "schema", "overrides"),
    [
        ("width_sweep", decode, DECODE, ["prompt_limit=2", "max_new_tokens=8", "budgets=[7]"]),
        ("drafter_scores", scores, SCORES, ["prompt_limit=2", "max_new_tokens=8"]),
        ("score_log", score_log, SCORE_LOG, ["prompt_limit=2", "max_new_tokens=8", "top=40"]),
    ],
)
def test_a_retry_goes_on_where_memory_did_not_suffice(tiny_job, monkeypatch, experiment, job, schema, overrides):
    protocol = importlib.import_module(f"cast.experiments.{experiment}")
    whole, done_before = protocol.run, []

    def runs_out(*arguments, done, **options):
        done_before.append(set(done))
        yield next(whole(*arguments, done=done, **options))
        raise MemoryError

    config = tiny_job(experiment, *overrides)
    with monkeypatch.context() as patched:
        patched.setattr(protocol, "run", runs_out)
        job(config)
        assert "failed" in set(read_records(config.out, schema).status)
        Path(config.out).unlink()  # as make retry does
        job(config)
        assert done_before == [set(), {"tiny/0"}]
    Path(config.out).unlink()
    job(config)
    assert set(read_records(config.out, schema).status) == {"measured"}
    assert len(provenance(config.out)["sessions"]) == 3
    assert not Path(f"{config.out}.partial").exists()


def test_memory_that_does_not_suffice_at_one_width_costs_the_others_nothing(tiny_job, monkeypatch):
    from cast.experiments import width_sweep

    whole = width_sweep.generate

    def runs_out(*arguments, **options):
        if options.get("budget") == 15:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: not enough memory: you tried ...")
        return whole(*arguments, **options)

    monkeypatch.setattr(width_sweep, "generate", runs_out)
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    frame = read_records(config.out, DECODE)
    failed = frame[frame.status == "failed"]
    assert set(failed.budget) == {15}
    assert failed.reason.str.startswith("out of memory").all()
    assert set(failed.prompt_id) == set(frame.prompt_id)
    assert len(frame[frame.budget == 7]) == len(failed) * 2  # the chain of block 8, and the tree


def test_a_mistake_of_the_program_is_no_record(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: 1 / 0)
    config = tiny_job("width_sweep", *SWEEP)
    with pytest.raises(ZeroDivisionError):
        decode(config)
    assert not Path(config.out).exists()
    assert not Path(f"{config.out}.partial").exists()


def test_a_missing_local_checkpoint_is_an_error(tiny_job):
    with pytest.raises(CastError, match="no/such/folder"):
        decode(tiny_job("width_sweep", *SWEEP, "drafter.source=no/such/folder"))


def test_a_broken_prompt_file_names_its_line(tiny_job, tmp_path):
    (tmp_path / "prompts.jsonl").write_text('{"id": "a", "prompt": "1 2"}\n{"id": \n')
    with pytest.raises(CastError, match=r"prompts.jsonl:2"):
        decode(tiny_job("width_sweep", *SWEEP, f"domain.path={tmp_path}/prompts.jsonl"))


@pytest.mark.slow
def test_tracking_offline_leaves_a_run_that_can_be_read_back(tiny_job, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = tiny_job("latency_probe", *PROBE, "tracking=offline", domain=None)
    probe(config)
    (folder,) = sync.newest_runs(tmp_path)
    (file,) = folder.glob("run-*.wandb")
    deadline = time.monotonic() + 20  # the service writes on after the run has ended
    while not any(record.HasField("exit") for record in offline_records(file)) and time.monotonic() < deadline:
        time.sleep(0.1)
    records = offline_records(file)
    (run,) = (record.run for record in records if record.HasField("run"))
    assert (run.run_group, run.job_type, run.project) == ("tiny_qwen3", "latency_probe", "cast")
    written = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert written["packed_tokens"] == [1, 4, 16, 32, 64, 128]
    assert written["input_digests"] == {}
    assert any(item.key == "rows" or "rows" in item.nested_key for r in records for item in r.history.item)
    assert any(record.HasField("artifact") for record in records)
    assert "warning" not in capsys.readouterr().err


def offline_records(file):
    """The records of an offline run: a LevelDB log of protobuf messages in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, place, parts, found = file.read_bytes(), 7, [], []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = struct.unpack_from("<HB", data, place + 4)
        parts.append(data[place + 7 : place + 7 + length])
        place += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            found.append(record)
            parts = []
    return found


def test_a_job_by_hand_prints_its_summary(tiny_job, capsys):
    for out, told in ((None, "ms_per_token/cast_7: 28.51\n"), ("results/x/record.parquet", "")):
        config = tiny_job("width_sweep")
        config.out = out
        tracking.track(config, Path("record.parquet"), None, {"ms_per_token/cast_7": 28.5123})
        assert capsys.readouterr().out == told


def test_wandbs_own_switch_turns_tracking_off(tiny_job, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "disabled")
    monkeypatch.setattr(tracking, "_log", lambda *_: pytest.fail("it was tracked"))
    tracking.track(tiny_job("width_sweep", "tracking=offline"), Path("record.parquet"), None, {})


def test_only_the_last_run_of_a_cell_is_synchronised(tmp_path):
    for name in ("20260101_000000-a", "20260102_000000-a", "20260101_000001-b"):
        (tmp_path / "wandb/wandb" / f"offline-run-{name}").mkdir(parents=True)
    assert [path.name for path in sync.newest_runs(tmp_path)] == [
        "offline-run-20260101_000001-b",
        "offline-run-20260102_000000-a",
    ]


def test_the_report_has_a_section_for_each_figure_and_table(tmp_path, monkeypatch):
    pytest.importorskip("wandb_workspaces", reason="wandb-workspaces is not installed")
    from wandb_report import wandb_report

    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/captions").symlink_to(Path("figures/captions").resolve())
    for name in ("figures/fig2.png", "tables/table2.csv", "width_sweep/tiny/math.parquet"):
        path = tmp_path / "results/smoke" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    config = composition.compose_with_hydra("whole_study", ["study=smoke", "tracking=none"])
    monkeypatch.chdir(tmp_path)
    wandb_report(config)
    blocks = json.loads((tmp_path / "results/smoke/wandb/report.json").read_text())["spec"]["blocks"]
    headings = [block["children"][0]["text"] for block in blocks if block["type"] == "heading"]
    assert headings == ["fig2", "table2", "Records"]
    grids = [block["metadata"] for block in blocks if block["type"] == "panel-grid"]
    values = [[item["value"] for item in grid["runSets"][0]["filters"]["filters"]] for grid in grids]
    assert values == [["smoke", "render"], ["smoke", "render"], ["tiny", "width_sweep"]]
    assert "Figure 2" in json.dumps(blocks)


def test_a_tracker_that_fails_is_one_warning(tiny_job, monkeypatch, capsys):
    def broken(*_):
        raise OSError("no place\nfor it")

    monkeypatch.setattr(tracking, "_log", broken)
    config = tiny_job("width_sweep", "tracking=online")
    tracking.track(config, Path("record.parquet"), pd.DataFrame(), {})
    told = capsys.readouterr().err.splitlines()
    assert [line.split(";")[0] for line in told] == [
        "warning: W&B (online): no place for it",
        "warning: W&B (offline): no place for it",
    ]


def test_an_archive_holds_records_and_what_made_them_and_nothing_unfinished(tmp_path, monkeypatch):
    from archive import archive

    config = composition.compose_with_hydra("whole_study", ["study=smoke"])
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CastError, match="holds no records"):
        archive(config)
    for name in ("conf/study/smoke.yaml", "results/smoke/width_sweep/a/b.parquet", "results/smoke/logs/x.log"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(name)
    archive(config)
    bundle = Path("outputs/archive/smoke.zip")
    with zipfile.ZipFile(bundle) as content:
        assert content.namelist() == [
            "smoke/results/smoke/width_sweep/a/b.parquet",
            "smoke/conf/study/smoke.yaml",
            "smoke/SHA256SUMS",
        ]
        assert hashlib.sha256(b"conf/study/smoke.yaml").hexdigest() in content.read("smoke/SHA256SUMS").decode()
    before = bundle.read_bytes()
    Path("results/smoke/width_sweep/a/b.parquet.partial").touch()  # a failed job's, for a retry
    archive(config)
    assert bundle.read_bytes() == before
    Path("results/smoke/width_sweep/a/c.parquet.partial").touch()
    with pytest.raises(CastError, match="unfinished"):
        archive(config)


def test_another_machine_weights_or_prompts_do_not_continue(tiny_job, tmp_path, monkeypatch):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"id": "a", "prompt": "1 2"}\n')
    weights = tmp_path / "drafter"
    weights.mkdir()
    (weights / "config.json").write_text("{}")
    config = tiny_job("width_sweep", f"domain.path={prompts}", f"drafter.source={weights}")

    def digest(kind="cpu"):
        inputs.file_digest.cache_clear()
        return measuring.resume_digest(config, kind)

    found = [digest(), digest("cuda")]
    prompts.write_text('{"id": "a", "prompt": "1 3"}\n')
    found.append(digest())
    (weights / "config.json").write_text('{"a": 1}')
    found.append(digest())
    monkeypatch.setattr(measuring.socket, "gethostname", lambda: "elsewhere")
    found.append(digest())
    assert len(set(found)) == len(found)
    assert digest() == found[-1]


def test_the_provenance_names_weights_prompts_and_code(tiny_job):
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    told = provenance(config.out)
    assert any(path.endswith("model.safetensors") for path in told["checkpoints"])
    assert told["prompts_sha256"] == inputs.file_digest("conf/prompts/tiny.jsonl")
    assert told["code_version"] == measuring.code_version()


def test_digests_are_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".snakemake").mkdir()
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"1")
    read = []
    monkeypatch.setattr(inputs, "sha256_file", lambda path: read.append(path) or f"digest {len(read)}")
    for expected, change in (("digest 1", None), ("digest 1", None), ("digest 2", b"22")):
        if change:
            file.write_bytes(change)
        inputs.file_digest.cache_clear()
        assert inputs.file_digest(str(file)) == expected
    inputs.file_digest.cache_clear()


def test_a_failed_row_names_the_device_of_its_setting(tiny_job, monkeypatch):
    monkeypatch.setattr(pairs, "load", lambda *_: (_ for _ in ()).throw(pairs.Unavailable("no such GPU")))
    config = tiny_job("width_sweep", *SWEEP)
    decode(config)
    assert set(read_records(config.out, DECODE).device) == {"cpu_1thread"}


def test_a_drafter_that_does_not_fit_is_no_unavailable_checkpoint(tiny_job, monkeypatch):
    from cast.models import loading

    def loads(error):
        def load(*_, **__):
            raise error("no")

        return load

    config = tiny_job("width_sweep", "drafter.source=owner/name")
    monkeypatch.setattr(loading, "load_pair", loads(CastError))
    with pytest.raises(CastError):
        pairs.load(config, "cpu")
    monkeypatch.setattr(loading, "load_pair", loads(HubUnavailable))
    with pytest.raises(pairs.Unavailable):
        pairs.load(config, "cpu")


def test_what_is_unavailable_is_one_line(capsys):
    from jobs import entry

    def unavailable():
        raise pairs.Unavailable("own/gated is gated")

    assert entry._exit_code(unavailable) == 2
    assert capsys.readouterr().err == "error: own/gated is gated\n"


def test_a_column_the_schema_does_not_know_is_refused(tiny_job, tmp_path):
    config = tiny_job("latency_probe", *PROBE, domain=None)
    row = {"component": "draft", "prefix_tokens": 1, "packed_tokens": 1, "iteration": 0, "latency": 3.0}
    frame = measuring.framed([row], LATENCY)
    assert "latency_ms" in frame
    with pytest.raises(CastError, match="column latency is unknown"):
        measuring.write(Path(config.out), frame, LATENCY, {})


def test_a_prediction_refuses_records_of_another_setting_or_drafter(tiny_job, tmp_path):
    identity = {
        "experiment": "x", "setting": "tiny_qwen3", "device": "d", "target": "t", "drafter": "tiny_qwen3",
        "domain": "tiny",
        "dtype": "float32", "engine": "eager", "threads": 1, "host": "h", "session": "s",
        "status": "failed", "reason": "r",
    }  # fmt: skip
    place = {"component": "draft", "prefix_tokens": 1, "packed_tokens": 1, "iteration": 0}
    latency = {**identity, **place, "latency_ms": None}
    curve = {**identity, "rank": 1, "mass": None, "rounds": None}
    inputs_given = [f"inputs.latency={tmp_path}/p.parquet", f"inputs.scores={tmp_path}/s.parquet"]

    def attempt(setting="tiny_qwen3", drafter="tiny_qwen3"):
        write_records(pd.DataFrame([latency | {"setting": setting}]), tmp_path / "p.parquet", LATENCY)
        write_records(pd.DataFrame([curve | {"drafter": drafter}]), tmp_path / "s.parquet", SCORES)
        predict(tiny_job("width", *inputs_given, out="w.json"))

    with pytest.raises(CastError, match=r"setting other, but .* tiny_qwen3"):
        attempt(setting="other")
    with pytest.raises(CastError, match=r"drafter other, but .* tiny_qwen3"):
        attempt(drafter="other")
    attempt()
    told = json.loads((tmp_path / "w.json").read_text())
    assert {"host", "device", "git_commit"} <= set(told)
    assert all(len(digest) == 64 for digest in told["inputs"].values())
    assert len(told["inputs"]) == 2


def test_an_engine_that_does_not_exist_is_refused(tiny_job):
    from jobs.composition import ConfigurationError

    with pytest.raises(ConfigurationError, match="warp"):
        tiny_job("width_sweep", "engine=warp")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("GatedRepoError", HubUnavailable),
        ("LocalEntryNotFoundError", HubUnavailable),
        ("RepositoryNotFoundError", CastError),
        ("RevisionNotFoundError", CastError),
        ("HFValidationError", CastError),
    ],
)
def test_a_misnamed_repository_is_an_error_and_a_gated_one_unavailable(name, kind, monkeypatch):
    import huggingface_hub
    from huggingface_hub import errors

    from cast.models.loading import checkpoint_folder

    error_type = getattr(errors, name)

    def download(*_, **__):
        raise error_type.__new__(error_type)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(CastError) as caught:
        checkpoint_folder("owner/name")
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("experiment", "overrides", "told"),
    [
        ("width_sweep", ["~budgets"], "budgets is deleted; give it a value"),
        ("width_sweep", ["budgets=[7,7]"], "budgets names 7 twice"),
        ("width_sweep", ["methods=[cast,cast]"], "methods names cast twice"),
        ("width_sweep", ["seeds=[1,1]"], "seeds names 1 twice"),
        ("width_sweep", ["budgets=[16385]"], "budgets must be 16384 or less"),
        ("width_sweep", ["seed=-1"], "seed must be 0 or more"),
        (
            "sampled_decoding",
            ["seed=7"],
            r"seed=7 does nothing .*, which runs seeds=\[0, 1, 2\]; give seeds=\[7\] as well",
        ),
        ("width_sweep", ["block_size=1"], "block_size must be 2 or more"),
        ("width_sweep", ["methods=[ngram]"], r"ngram has no widths; .* '\+method_options.ngram=\{budgets: \[15\]\}'"),
        ("width_sweep", ["+method_options.cast={budgets: [3]}"], "cast has no options"),
        ("width_sweep", ["+method_options.gram={budgets: [3]}"], "method_options names 'gram'"),
        (
            "drafter_comparison",
            ["methods=[ngram]", "method_options.ngram.budgets=15"],
            "must be a list of whole numbers",
        ),
        ("drafter_comparison", ["methods=[ngram]", "method_options.ngram.budgets=[5,5]"], "budgets names 5 twice"),
        ("drafter_comparison", ["methods=[ngram]", "method_options.ngram.budgets=[-1]"], "budgets must be 0 or more"),
        ("width_sweep", ["+drafter@baselines.cast.x=tiny_qwen3"], "cast drafts with the setting's drafter"),
        ("width_sweep", ["drafter=none"], "has no drafter"),
        ("drafter_scores", ["drafter=none"], "has no drafter"),
        ("score_log", ["drafter=none"], "has no drafter"),
        ("greedy_equivalence", ["methods=[ngram]"], "compares autoregressive, dflash, cast, not ngram"),
        ("replay", ["requests=4", "batch_size=8"], "a batch of 8 is drawn from requests=4"),
        ("replay", ["budgets=[500]"], "budgets has 500, above largest_budget=127"),
        ("replay", ["largest_budget=100000"], "largest_budget must be 16384 or less"),
        ("width", ["overhead_ms=-1"], "overhead_ms must be 0 or more"),
        (
            "serving_goodput",
            ["priced_packed_tokens=[2,4]"],
            r"must begin at 1 \(a root alone\) and go on; got \[2, 4\]",
        ),
        ("serving_goodput", ["priced_packed_tokens=[1]"], "priced_packed_tokens must begin at 1"),
        ("serving_goodput", ["requests=4"], "requests=4 never fill 32 active slots"),
    ],
)
def test_what_no_pair_could_decode_with_is_refused(tiny_job, experiment, overrides, told):
    with pytest.raises(CastError, match=told):
        measuring.check_values(tiny_job(experiment, *overrides))


def test_a_cost_that_no_policy_asks_for_may_be_any(tiny_job):
    measuring.check_values(tiny_job("serving_goodput", "priced_packed_tokens=[2]", "variants=[dense/uniform]"))


@pytest.mark.parametrize("overrides", [[], ["seeds=[5,6]"], ["seed=7", "seeds=[7]"], ["seed=7", "seeds=null"]])
def test_seeds_come_alone_or_with_the_first_of_them(tiny_job, overrides):
    measuring.check_values(tiny_job("sampled_decoding", *overrides))


def test_jobs_that_do_not_draft_need_no_drafter(tiny_job):
    for experiment, *overrides in (("latency_probe",), ("width_sweep", "methods=[autoregressive]"), ("replay",)):
        measuring.check_values(tiny_job(experiment, "drafter=none", *overrides))


def test_a_head_of_another_kind_is_told_by_its_place(tmp_path):
    def job(experiment, *overrides):
        return composition.compose_job(experiment, "tiny_drafters", "tiny", overrides)

    with pytest.raises(
        CastError, match=r"drafter=tiny_eagle3 is a head of kind EAGLE-3, and dflash needs one of kind DF"
    ):
        pairs.load(job("latency_probe", "drafter=tiny_eagle3"), "cpu")
    dart = "baselines.eagle3.tiny.source=tests/golden/dart_tiny/drafter"
    config = job("drafter_comparison", "methods=[eagle3]", dart)
    with pytest.raises(
        CastError, match=r"baselines\.eagle3, tiny_eagle3, is a head of kind DART, and eagle3 needs one"
    ):
        pairs.load_baselines(config, "cpu", pairs.load(config, "cpu"))
    with pytest.raises(CastError, match="engine=graph needs a CUDA device"):
        pairs.load(job("latency_probe", "engine=graph"), "cpu")


def test_a_record_has_a_name_of_its_own(tiny_job):
    for out in ("r.json", "r"):
        with pytest.raises(CastError, match=r"give one that ends in \.parquet"):
            measuring.output_path(tiny_job("width_sweep", out=out), "decode")
    probed = tiny_job("latency_probe", domain=None, out="p.parquet").out
    over_its_provenance = tiny_job("width", f"inputs.latency={probed}", f"inputs.scores={probed}", out="p.json")
    with pytest.raises(CastError, match=r"would overwrite inputs\.latency"):
        measuring.output_path(over_its_provenance, "predict", ".json")


def test_a_place_named_by_long_overrides_fits_a_file_system(tiny_job, monkeypatch):
    named = OmegaConf.create({"job": {"override_dirname": "domain.path=" + "中" * 100}})
    monkeypatch.setattr(measuring.HydraConfig, "get", lambda: named)
    config = tiny_job("width_sweep")
    config.out = None
    assert len(measuring.output_path(config, "decode").parent.name.encode()) < 140


def test_scores_of_outputs_that_end_at_once_are_an_error_and_no_record(tiny_job, tmp_path):
    with pytest.raises(CastError, match="no prompt has a round to log"):
        scores(tiny_job("drafter_scores", "max_new_tokens=1", "rounds=3"))
    assert list(tmp_path.glob("record*")) == []
