"""Calibration: constants are found again in times that they made, the file says what it is of, the hull is kept."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from pagedlab.core.errors import ConfigError
from pagedlab.hardware.calibration import file as files
from pagedlab.hardware.calibration.fit import fit
from pagedlab.hardware.calibration.hull import hull, warnings
from pagedlab.hardware.calibration.key import asked, machine
from pagedlab.hardware.calibration.observation import Observation, data_hash, predicted_s, work
from pagedlab.hardware.cost import CostModel
from tests.config.composed import settings_of
from tests.hardware.devices import architecture, device

MODEL, WIDTH, BLOCK = architecture("smollm2_135m"), 2, 16

# A made-up machine, as the whole step sees it, and what its engine takes of that.
TRUTH = device(
    "local",
    calibration=None,
    separate_products=True,
    roofline_norm=1.5,
    tflops_16bit=0.4,
    bandwidth_gb_s=20,
    gemm_compute_efficiency=0.7,
    gemm_memory_efficiency=0.6,
    gemm_fixed_us=30,
    decode_memory_efficiency=0.7,
    gather_half_tokens=3,
    decode_fixed_us=5,
    decode_sequence_us=6,
    decode_stream_us=20,
    prefill_compute_efficiency=0.3,
    prefill_memory_efficiency=0.05,
    prefill_fixed_us=10,
    prefill_chunk_us=40,
    prefill_skipped_share=0.4,
    elementwise_streams=40,
    elementwise_layer_us=150,
    host_step_us=900,
    host_sequence_us=70,
    host_admission_us=12,
    host_block_us=0.5,
    copy_fixed_us=15,
    pcie_gb_s=5,
)
ENGINE = replace(TRUTH, host_step_us=20, host_sequence_us=3)
EXECUTOR = replace(TRUTH, host_step_us=TRUTH.host_step_us - 20, host_sequence_us=TRUTH.host_sequence_us - 3)


def sizes_of(kind):
    """What a profile measures, a little coarser."""
    contexts = [[context] * batch for batch in (1, 2, 4, 8, 16, 32, 64) for context in (64, 256, 1024)]
    chunks = [[[new, cached]] for new in (16, 64, 128, 256, 512) for cached in (0, 512)]
    steps = [{"contexts": of, "chunks": []} for of in contexts] + [{"contexts": [], "chunks": of} for of in chunks]
    steps += [{"contexts": [256] * batch, "chunks": [[64, 0]] * batch} for batch in (1, 2, 4, 8)]
    return {
        "product": [
            {"m": m, "k": k, "n": n}
            for m in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
            for k, n in sorted({*CostModel(MODEL, TRUTH, WIDTH, BLOCK).products(), (576, 49152)})
        ],
        "decode": [{"contexts": of, "block_size": size} for of in contexts for size in (8, 16, 32)],
        "prefill": [
            {"chunks": of}
            for of in (
                *chunks,
                [[64, 0]] * 4,
                [[128, 256]] * 2,
                [[16, 0]] * 8,
                [[32, 64]] * 4,
                [[16, 256]] * 6,
                [[32, 0]] * 3,
            )
        ],
        "rest": steps,
        "step": steps,
        "engine": [
            {"sequences": r, "admitted": a, "blocks": b} for r in (1, 8, 32, 64) for a in (0, 4) for b in (0, 20)
        ],
        "copy": [{"blocks": count} for count in (1, 4, 16, 64)],
        "swap": [{"blocks": count} for count in (1, 4, 16, 64)],
    }[kind]


def observed(kind, noise=lambda i: 1.0):
    hardware = ENGINE if kind == "engine" else EXECUTOR if kind in ("rest", "step") else TRUTH
    found = []
    for i, sizes in enumerate(sizes_of(kind)):
        cost = CostModel(MODEL, hardware, WIDTH, sizes.get("block_size", BLOCK))
        seen = Observation(kind, sizes, 0.0, 0.0)
        found.append(replace(seen, seconds=noise(i) * predicted_s(cost, seen)))
    return found


KINDS = ("product", "decode", "prefill", "rest", "step", "engine", "copy", "swap")


def fitted(observations):
    return fit(observations, device("local", separate_products=True), MODEL, WIDTH, BLOCK)


@pytest.fixture(scope="module")
def exact():
    return fitted([seen for kind in KINDS for seen in observed(kind)])


# ---- the fit ---------------------------------------------------------------------------------------------------------


def test_it_finds_the_constants_that_made_the_times(exact):
    found = exact.hardware
    assert found.tflops_16bit * found.gemm_compute_efficiency == pytest.approx(0.4 * 0.7, rel=0.02)
    assert found.bandwidth_gb_s * found.gemm_memory_efficiency == pytest.approx(20 * 0.6, rel=0.02)
    assert found.bandwidth_gb_s * found.decode_memory_efficiency == pytest.approx(20 * 0.7, rel=0.02)
    assert found.tflops_16bit * found.prefill_compute_efficiency == pytest.approx(0.4 * 0.3, rel=0.02)
    for name in (
        *("gemm_fixed_us", "roofline_norm", "gather_half_tokens", "decode_sequence_us", "prefill_chunk_us"),
        *("prefill_skipped_share", "host_admission_us", "host_block_us", "pcie_gb_s"),
    ):
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.05), name


def test_what_was_held_out_is_predicted(exact):
    for kind in KINDS:
        errors = exact.errors[kind]
        assert errors.held_out >= 1
        assert errors.fitted + errors.held_out == len(sizes_of(kind))
        assert errors.held_out_worst < 0.02, kind


def test_a_step_of_a_size_that_nobody_measured_is_predicted(exact):
    sizes = {"contexts": [700] * 24, "chunks": [[200, 300]]}
    truth = CostModel(MODEL, TRUTH, WIDTH, BLOCK).step_s(work(sizes, BLOCK))
    assert CostModel(MODEL, exact.hardware, WIDTH, BLOCK).step_s(work(sizes, BLOCK)) == pytest.approx(truth, rel=0.01)


def test_one_time_in_ten_that_is_twice_too_long_hardly_matters():
    noisy = [seen for kind in KINDS for seen in observed(kind, lambda i: 2.0 if i % 10 == 3 else 1.0)]
    cost = CostModel(MODEL, fitted(noisy).hardware, WIDTH, BLOCK)
    for sizes in sizes_of("step"):
        truth = CostModel(MODEL, TRUTH, WIDTH, BLOCK).step_s(work(sizes, BLOCK))
        assert cost.step_s(work(sizes, BLOCK)) == pytest.approx(truth, rel=0.06)


def test_the_same_times_give_the_same_constants():
    seen = [seen for kind in KINDS for seen in observed(kind, lambda i: 1 + 0.05 * (i % 3))]
    assert fitted(seen) == fitted(list(seen))


def test_a_kind_that_was_not_measured_is_named():
    with pytest.raises(ConfigError, match="0 observations of kind decode: a calibration needs at least 4"):
        fitted([seen for kind in KINDS if kind != "decode" for seen in observed(kind)])


def test_the_hash_is_of_the_times():
    seen = observed("copy")
    assert data_hash(seen) == data_hash(list(seen))
    assert data_hash(seen) != data_hash([replace(seen[0], seconds=seen[0].seconds * 1.001), *seen[1:]])


# ---- the hull --------------------------------------------------------------------------------------------------------


def test_the_hull_is_the_most_of_every_whole_step():
    assert hull(observed("step")) == {"tokens": 8 + 8 * 64, "sequences": 64, "context": 1024}
    assert hull(observed("product")) == {"tokens": 0, "sequences": 0, "context": 0}


def test_a_run_beyond_the_hull_is_told_so_for_each_side():
    profiled = {"tokens": 512, "sequences": 64, "context": 1024}
    assert warnings(profiled, dict(profiled)) == []
    assert warnings(profiled, {"tokens": 513, "sequences": 64, "context": 2000}) == [
        "513 tokens in a step, calibrated up to 512: times beyond are extrapolated",
        "2000 tokens of context, calibrated up to 1024: times beyond are extrapolated",
    ]


# ---- the file --------------------------------------------------------------------------------------------------------


def run_of(*words):
    return settings_of(*words, base=("executor=simulated", "workload=synthetic"))


def calibration(settings=None, **key):
    of = asked(settings or run_of(), MODEL) | {"kernel": "cpu", "threads": 2} | machine() | key
    return files.Calibration(TRUTH, of, "0" * 64, "2026-01-01T00:00:00+00:00", hull(observed("step")), {})


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PAGEDLAB_CACHE", str(tmp_path))
    (tmp_path / "calibration").mkdir()
    return tmp_path / "calibration"


def put(folder, made):
    path = folder / files.file_name(made.key)
    path.write_text(made.text(), encoding="utf-8")
    return path


def test_a_file_is_read_as_it_was_written(tmp_path):
    made = calibration()
    path = put(tmp_path, made)
    assert files.read(path) == replace(made, file=path)


def test_local_takes_what_was_calibrated_here(cache):
    assert files.calibration_of(run_of(), MODEL) is None
    put(cache, calibration(torch="0.1"))
    assert files.calibration_of(run_of(), MODEL) is None
    put(cache, calibration(threads=1))
    found = files.calibration_of(run_of(), MODEL)
    assert found.hardware == TRUTH
    assert found.key["threads"] == 1
    assert files.calibration_of(run_of("block_size=32"), MODEL) is None
    assert files.calibration_of(run_of("kernel.name=torch"), MODEL) is None
    assert files.calibration_of(run_of("model.optimize=none"), MODEL) is None
    put(cache, calibration(run_of("model.optimize=none")))  # beside it, not in its place
    assert files.calibration_of(run_of("model.optimize=none"), MODEL).key["optimize"] == "none"
    assert files.calibration_of(run_of(), MODEL) == found
    assert files.calibration_of(run_of("hardware.calibration=null"), MODEL) is None


def test_auto_passes_over_what_an_older_version_left_in_the_cache(cache):
    older = put(cache, calibration(threads=1))
    older.write_text(older.read_text().replace("host_step_us:", "host_step_s:"))
    assert files.calibration_of(run_of(), MODEL) is None
    put(cache, calibration())
    assert files.calibration_of(run_of(), MODEL).key["threads"] == 2
    with pytest.raises(ConfigError, match=r"hardware\.host_step_us=None"):
        files.calibration_of(run_of(f"hardware.calibration={older}"), MODEL)


def test_a_constant_on_the_command_line_is_the_users_own(cache):
    put(cache, calibration())
    found = files.calibration_of(run_of("hardware.bandwidth_gb_s=123"), MODEL).hardware
    assert found == replace(TRUTH, bandwidth_gb_s=123)


def test_a_file_of_another_machine_will_do_one_of_another_model_will_not(tmp_path):
    path = put(tmp_path, calibration(cpu="another", torch="0.1"))
    assert files.calibration_of(run_of(f"hardware.calibration={path}"), MODEL).hardware == TRUTH
    for word, line in (
        ("block_size=32", "was made for block_size=16, not 32"),
        ("model.dtype=float32", "was made for dtype=bfloat16, not float32"),
        ("kernel.name=torch", "was made for kernel=cpu, not torch"),
        ("model.optimize=none", "was made for optimize=auto, not none"),
    ):
        with pytest.raises(ConfigError) as refusal:
            files.calibration_of(run_of(f"hardware.calibration={path}", word), MODEL)
        assert str(refusal.value) == f"hardware.calibration={path}: {line}"


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda found: found.pop("hull"), "hull=None, expected what `pagedlab calibrate` writes"),
        (lambda found: found["hull"].pop("tokens"), "hull.tokens=None, expected a whole number"),
        (lambda found: found["hardware"].pop("host_step_us"), "hardware.host_step_us=None, expected float"),
        (lambda found: found["hardware"].update(host_step_us="1"), "hardware.host_step_us='1', expected float"),
        (lambda found: found["hardware"].update(roofline_norm=0.5), "hardware.roofline_norm=0.5: expected null, or at"),
        (lambda found: found["hardware"].update(gemm_fixed_us=float("nan")), "hardware.gemm_fixed_us=nan: expected at"),
        (lambda found: found["hardware"].update(own=1), "hardware.own: no such constant"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line(tmp_path, change, line):
    path = put(tmp_path, calibration())
    found = yaml.safe_load(path.read_text())
    change(found)
    path.write_text(yaml.safe_dump(found))
    with pytest.raises(ConfigError) as refusal:
        files.read(path)
    assert str(refusal.value).startswith(f"{path}: {line}")


@pytest.mark.parametrize(("text", "line"), [("a: [", "no YAML"), ("3", "expected what `pagedlab calibrate` writes")])
def test_what_is_no_calibration_is_refused(tmp_path, text, line):
    (tmp_path / "x.yaml").write_text(text)
    with pytest.raises(ConfigError, match=line):
        files.read(tmp_path / "x.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        files.read(tmp_path / "none.yaml")
