"""From records of a probe and a mass curve to N*, against a small case by hand."""

import json

import numpy as np
import pandas as pd
import pytest

from cast import CastError
from cast.experiments.records import LATENCY
from cast.experiments.width_prediction import MODES, predict

MASSES = np.array([0.8, 0.5, 0.3, 0.2, 0.12, 0.08, 0.05, 0.03, 0.02, 0.01, 0.005, 0.002] + [0.0005] * 116)
ALLOWED = (1, 3, 5, 7, 15, 31, 63, 127)
PACKED = (1, 16, 32, 64, 128)
DEPLOYED = ("affine", "up", "least_squares")
C0, C1, DRAFT_MS, OVERHEAD_MS = 20.0, 0.5, 4.0, 1.0


def probe(latency=lambda n: C0 + C1 * n, draft_ms=DRAFT_MS, spread=(-2.0, 0.0, 0.0, 0.0, 6.0)):
    """Five iterations around each median."""
    rows = [("target_forward", n, iteration, latency(n) + off) for n in PACKED for iteration, off in enumerate(spread)]
    rows += [("draft", 8, iteration, draft_ms + off / 10) for iteration, off in enumerate(spread)]
    frame = pd.DataFrame(rows, columns=["component", "packed_tokens", "iteration", "latency_ms"])
    return frame.assign(prefix_tokens=256, status="measured", reason="")


def predicted(frame=None, **changes):
    arguments = {"allowed_widths": ALLOWED, "deployed": DEPLOYED, "overhead_ms": OVERHEAD_MS, **changes}
    return predict(probe() if frame is None else frame, MASSES, **arguments)


def throughput(width):
    return (MASSES[:width].sum() + 1) / (DRAFT_MS + OVERHEAD_MS + C0 + C1 * (width + 1))


def crossing_by_hand():
    """The first N at which node N + 1 would not pay for itself."""
    for width in range(len(MASSES)):
        if throughput(width) * C1 > MASSES[width]:
            return width
    return len(MASSES)


def test_the_affine_rule_by_hand():
    result = predicted()
    assert crossing_by_hand() == 6  # 0.05 is below 3.0 / 28.5 * 0.5
    default = result["predictions"][result["default"]]
    assert default["crossing"] == 6
    assert result["width"] == default["width"] == 7  # the next allowed width
    assert default["slope_ms_per_token"] == pytest.approx(C1)
    assert default["intercept_ms"] == pytest.approx(C0)
    assert default["threshold"] == pytest.approx(throughput(6) * C1)
    assert default["throughput"] == pytest.approx({str(width): throughput(width) for width in ALLOWED})


def test_every_mode_is_there_and_the_deployed_one_is_the_default():
    result = predicted()
    found = [(p["cost"], p["rounding"], p["slope_estimator"]) for p in result["predictions"]]
    assert found == list(MODES)
    assert len(set(MODES)) == 5
    best = max(ALLOWED, key=throughput)
    for index, mode in enumerate(MODES):
        other = predicted(deployed=mode)
        assert other["default"] == index
        assert other["width"] == result["predictions"][index]["width"]
        assert other["width"] == (7 if mode[1] == "up" else best)


def test_inputs_are_kept():
    result = predicted()
    assert result["draft_ms"] == DRAFT_MS
    assert result["overhead_ms"] == OVERHEAD_MS
    assert result["prefix_tokens"] == 256
    assert result["allowed_widths"] == list(ALLOWED)
    assert result["latency"]["packed_tokens"] == list(PACKED)
    assert result["latency"]["latency_ms"] == pytest.approx([C0 + C1 * n for n in PACKED])  # medians
    assert result["latency"]["iqr_ms"] == pytest.approx([0.0] * 5)
    assert result["masses"] == MASSES.tolist()
    assert json.loads(json.dumps(result)) == result


def test_medians_and_quartiles_of_the_iterations():
    result = predicted(probe(spread=(-2.0, -1.0, 0.0, 3.0, 50.0)))
    assert result["latency"]["latency_ms"] == pytest.approx([C0 + C1 * n for n in PACKED])
    assert result["latency"]["iqr_ms"] == pytest.approx([4.0] * 5)


def test_the_order_of_the_rows_does_not_matter():
    assert predicted(probe().sample(frac=1, random_state=0)) == predicted()


def test_estimators_and_costs_differ_on_a_bent_curve():
    def bent(n):
        return C0 + (0.05 * n if n <= 64 else 0.05 * 64 + 0.3 * (n - 64))

    result = predicted(probe(bent))
    by_mode = dict(zip(MODES, result["predictions"], strict=True))
    slopes = {estimator: by_mode["affine", "up", estimator]["slope_ms_per_token"] for estimator in
              ("least_squares", "endpoints")}  # fmt: skip
    assert slopes["endpoints"] == pytest.approx((bent(128) - bent(16)) / 112)
    points = np.array([[n, bent(n)] for n in PACKED if 16 <= n <= 128])
    assert slopes["least_squares"] == pytest.approx(np.polyfit(*points.T, 1)[0])
    measured = by_mode["measured", "best", None]
    assert measured["throughput"]["63"] == pytest.approx((MASSES[:63].sum() + 1) / (5 + bent(64)))


def refusal(*arguments, **changes):
    with pytest.raises(CastError) as error:
        predicted(*arguments, **changes)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_probe_behind_several_prefixes():
    both = pd.concat([probe(), probe(lambda n: 2 * n).assign(prefix_tokens=4096)])
    assert "prefixes of 256, 4096 tokens" in refusal(both)


def test_a_failed_probe():
    failed = probe().head(1).assign(status="failed", reason="out of memory at 128", latency_ms=np.nan)
    assert "out of memory at 128" in refusal(failed)
    assert "out of memory at 128" in refusal(pd.concat([probe(), failed]))


def test_an_empty_probe():
    refusal(probe().head(0))


def test_a_probe_without_drafts():
    frame = probe()
    assert "draft" in refusal(frame[frame["component"] != "draft"])


def test_an_unknown_mode():
    assert "mode" in refusal(deployed=("affine", "sideways", "least_squares"))


def test_a_width_without_a_mass():
    assert "200" in refusal(allowed_widths=(7, 200))


def test_records_read_back_predict_the_same(as_records):
    """Nullable dtypes of stored records must not change a number."""
    stored = as_records(probe().drop(columns=["status", "reason"]).to_dict("records"), LATENCY)
    assert predicted(stored) == predicted()
