"""Rollouts of tiny models of every family, measured as large ones are."""

import pytest
import torch

from solrl_tasks.bench.arms import DEFAULT_ARMS, parse_arm
from solrl_tasks.bench.profile import group_of
from solrl_tasks.bench.reports.rollout import RolloutReport
from solrl_tasks.bench.rollout import RolloutBench
from solrl_tasks.bench.rollout_request import require_engines
from solrl_tasks.bench.sampling import SamplingBench
from solrl_tasks.bench.tables import tables_of
from solrl_tasks.engines.base import EngineError
from solrl_tasks.workers.device import Device

CPU = torch.device("cpu")
ARMS = ("eager-pipeline", "bf16-full", "bf16-two-stage", "nvfp4-emulated-full", "nvfp4-emulated-two-stage")


def measure(request) -> RolloutReport:
    *_, report = RolloutBench(request, CPU, lambda text: None).run()
    return report


# diffusers' own DPM-Solver, which SANA's pipeline has
@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("family", ["flux", "sd3", "sana"])
def test_every_arm_of_every_family_is_measured(request_of, family):
    report = measure(request_of(family, arms=ARMS, complete=ARMS))
    assert [arm.error for arm in report.arms if arm.error] == []
    assert set(report.samplings) == {
        "eager-pipeline@3x2",
        "bf16@3x2",
        "bf16@2x2",
        "nvfp4-emulated@3x2",
        "nvfp4-emulated@2x2",
    }
    for arm in report.arms:
        assert arm.seconds > 0 and arm.complete.seconds > 0
        assert arm.images == (8 if parse_arm(arm.name).two_stage else 5)
    assert report.overhead("nvfp4-emulated") is not None
    assert {s.execution for s in report.samplings.values()} == {"eager"}
    assert report.samplings["nvfp4-emulated@2x2"].kind == "emulated"
    assert set(report.sync_seconds) == {"bf16", "nvfp4-emulated"}


def test_parts_and_overlap_make_up_the_whole(request_of):
    report = measure(request_of(arms=("bf16-two-stage",)))
    split = report.arms[0].split
    parts = split.text + split.sync + split.denoise_explore + split.denoise_regenerate + split.decode + split.score
    assert parts - split.overlap == pytest.approx(report.arms[0].seconds)
    assert min(split.text, split.sync, split.denoise_explore, split.denoise_regenerate, split.decode, split.score) > 0


def test_arms_share_what_they_have_in_common(request_of, monkeypatch):
    measured = []
    original = SamplingBench._measure_engine

    def counted(self, *arguments):
        measured.append(arguments)
        return original(self, *arguments)

    monkeypatch.setattr(SamplingBench, "_measure_engine", counted)
    measure(request_of(arms=("bf16-full", "bf16-two-stage", "nvfp4-emulated-two-stage")))
    assert measured == [("bf16", 3, 2), ("bf16", 2, 2), ("nvfp4-emulated", 2, 2)]


def test_an_arm_that_fails_is_told_of_and_does_not_stop_the_others(request_of, monkeypatch):
    original = Device.sync

    def sync(self, spec, lora):
        if spec.name == "nvfp4-emulated":
            raise RuntimeError("the card fell out")
        return original(self, spec, lora)

    monkeypatch.setattr(Device, "sync", sync)
    said: list[str] = []
    request = request_of(arms=("nvfp4-emulated-two-stage", "bf16-full"))
    first, second = RolloutBench(request, CPU, said.append).run()
    assert [arm.name for arm in first.arms] == ["nvfp4-emulated-two-stage"]
    failed, measured = second.arms
    assert "the card fell out" in failed.error and failed.seconds is None
    assert measured.error is None and measured.seconds > 0
    assert any("Traceback" in text and "the card fell out" in text for text in said)


def test_the_kept_are_sampled_in_chunks_of_their_own(request_of):
    report = measure(request_of(arms=("bf16-two-stage",), chunk=3, keep_chunk=1, keep=2))
    assert set(report.samplings) == {"bf16@2x3", "bf16@3x1"}
    arm = report.arms[0]
    explored, again = (report.samplings[key] for key in (arm.explored, arm.regenerated))
    scaled = explored.seconds_of(2) + again.seconds_of(2) + report.sync_seconds["bf16"] + report.text_seconds
    assert arm.seconds == pytest.approx(scaled)


def test_guidance_is_not_compared_with_the_plain_call(request_of):
    request = request_of("sd3", arms=("eager-pipeline", "bf16-full"))
    guided = request.model.model_copy(update={"guidance_scale": 3.0})
    report = measure(request.model_copy(update={"model": guided}))
    assert "guidance_scale" in report.arms[0].error
    assert report.arms[1].error is None


def test_a_profile_says_where_the_time_goes(request_of):
    report = measure(request_of(arms=("bf16-full",), profile=True))
    (sampling,) = report.samplings.values()
    found = sampling.profile
    assert sum(found.groups.values()) == pytest.approx(1.0)
    assert found.seconds > 0 and "matrix multiplication" in found.groups
    shares = [kernel.share for kernel in found.kernels]
    assert shares == sorted(shares, reverse=True) and sum(shares) <= 1.0 + 1e-9
    titles = [table.title for table in tables_of(report)]
    assert titles[-1] == "Where the time of bf16 goes, chunk 2"


@pytest.mark.parametrize(
    ("kernel", "group"),
    [
        ("nvjet_sm90_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNT", "matrix multiplication"),
        ("void cutlass::device_kernel<flash::FlashAttnFwd>", "attention"),
        ("triton_red_fused__scaled_mm_gelu_3", "fused or own kernel"),
        ("triton_tem_fused_mm_3", "matrix multiplication"),
        ("triton_poi_fused_add_mul_7", "fused or own kernel"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop", "attention"),
        ("sm90_xmma_fprop_implicit_gemm_conv2d", "convolution"),
        ("Memcpy DtoD (Device -> Device)", "copy"),
        ("something_else", "other"),
    ],
)
def test_kernels_are_grouped_by_name(kernel, group):
    assert group_of(kernel) == group


@pytest.mark.parametrize("name", ["full", "-full", "bf16", "bf16-half", "pipeline"])
def test_an_unknown_arm_is_refused(request_of, name):
    with pytest.raises(ValueError, match=r"unknown arm .* there is eager-pipeline, ENGINE-full and ENGINE-two-stage"):
        request_of(arms=(name,))


def test_any_engine_makes_two_arms():
    assert parse_arm("my-own-two-stage").engine == "my-own"
    assert parse_arm("my-own-full").two_stage is False
    assert all(parse_arm(name) for name in DEFAULT_ARMS)


def test_an_engine_that_is_not_for_this_device_is_refused_at_once():
    with pytest.raises(EngineError, match=r"engine 'nvfp4' cannot run .* Available here: .*bf16"):
        require_engines(("bf16-full", "nvfp4-two-stage"), CPU)
