"""A device on an accelerator: overlap, exact resume, chunks by memory, and shortages, on small models."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, RewardSpec, UpdateSpec
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.runs import view_run
from solrl_tasks.store.samples import Samples
from solrl_tasks.workers import policies, training
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, Work
from solrl_tasks.workers.memory import SIZES, DeviceMemoryError
from solrl_tasks.workers.pipeline import SideStream
from solrl_tasks.workers.rollout import Rollout
from solrl_tasks.workers.state import initial_state
from tests.support.contents import run_contents
from tests.support.micro import micro_recipe, write_prompts
from tests.support.tiny import FAMILIES, tiny_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator"),
    # Compilers and libraries have advice for an H200 that says nothing about us.
    pytest.mark.filterwarnings("default"),
]
CUDA = torch.device("cuda")
EAGER = {"execution": "eager"}
TEXTS = ("a red circle", "two blue squares", "a green star above a red circle")
REWARDS = (RewardSpec(name="colourfulness"), RewardSpec(name="tests.support.rewards:DeviceDarkness", timeout=60.0))


def engine(name, **options):
    return ExtensionSpec(name=name, options=options)


def job_of(spec, chunk=8, **changes):
    job = RolloutJob(
        engine=spec,
        lora=None,
        sampler="dpm2",
        steps=4,
        prompts=PromptSet(tuple(Prompt(text) for text in TEXTS)),
        exploration_seed=11,
        rewards=REWARDS,
        chunk=chunk,
    )
    return replace(job, **changes)


def blocks_of(chunk=8, count=9, last=5):
    """Several for each prompt, the last one short."""
    sizes = [chunk] * (count - 1) + [last]
    return [
        Work(number, number % 3, tuple(range(number * chunk, number * chunk + size)), REWARDS)
        for number, size in enumerate(sizes)
    ]


def everything(results):
    return [
        (
            result.work.token,
            result.latents.numpy().tobytes(),
            result.images.tobytes(),
            {name: values.tobytes() for name, values in result.rewards.items()},
            result.failures,
        )
        for result in results
    ]


@pytest.fixture(scope="module")
def device():
    """The embedded model."""
    return Device(ModelSpec(), CUDA)


def moved(device, scale=0.02):
    """A policy whose adapters change something."""
    state = device.initial_policy(8, 16.0, "all", 0)
    generator = np.random.default_rng(1)
    weights = {
        name: value + scale * torch.from_numpy(generator.standard_normal(value.shape, dtype=np.float32))
        for name, value in state.current.weights.items()
    }
    return initial_state(replace(state.current, weights=weights))


@pytest.mark.parametrize(
    "spec",
    [engine("bf16", **EAGER), engine("nvfp4-emulated", **EAGER), engine("bf16"), engine("nvfp4-emulated")],
    ids=["bf16-eager", "nvfp4-eager", "bf16-compiled", "nvfp4-compiled"],
)
def test_overlapped_blocks_have_the_bits_of_blocks_one_after_the_other(device, spec, monkeypatch):
    job = job_of(spec, lora=moved(device).old)
    monkeypatch.setattr(device, "lane", None)
    plain = everything(device.rollout(job, blocks_of()))
    assert not any(failures for *_, failures in plain)
    monkeypatch.setattr(device, "lane", SideStream(CUDA))
    for _ in range(3):
        assert everything(device.rollout(job, blocks_of())) == plain


def test_blocks_that_bring_images_or_latents_mix_with_those_that_are_sampled(device, monkeypatch):
    job = job_of(engine("bf16", **EAGER))
    (first, *_) = device.rollout(job, blocks_of(count=2))
    sampled = blocks_of(count=4, last=8)
    blocks = [
        Work("images", 0, first.work.candidates, REWARDS, images=first.images),
        *sampled[:2],
        Work("latents", 0, first.work.candidates, REWARDS, latents=first.latents),
        *sampled[2:],
    ]
    found = {result.work.token: result for result in device.rollout(job, blocks)}
    for token in ("images", "latents"):
        assert found[token].images.tobytes() == first.images.tobytes()
        assert all(np.array_equal(found[token].rewards[name], values) for name, values in first.rewards.items())


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("execution", ["eager", "auto"])
def test_nothing_in_the_steps_waits_for_the_device(family, execution):
    device = Device(tiny_spec(family), CUDA)
    job = job_of(engine("bf16", execution=execution), sampler="euler")
    stages, (first, second, *_) = Rollout(device.resident, job), blocks_of()
    stages.prepare(first)
    stages.sample(first, stages.draw(first))  # encodes, syncs, compiles
    noise = stages.draw(replace(second, row=first.row))
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        latents = stages.sample(replace(second, row=first.row), noise)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert latents.isfinite().all()


def test_seconds_of_blocks_add_up_to_the_rollouts(device):
    job = job_of(engine("bf16", **EAGER), chunk=96)
    blocks = blocks_of(chunk=96, count=6, last=96)
    list(device.rollout(job, blocks[:1]))
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    seconds = [result.seconds for result in device.rollout(job, blocks)]
    end.record()
    end.synchronize()
    assert sum(seconds) == pytest.approx(start.elapsed_time(end) / 1000, rel=0.15, abs=0.05)


def train_job(device, samples=12, **update):
    keys = PromptSet(tuple(Prompt(text) for text in TEXTS)).keys
    rows = [index % 3 for index in range(samples)]
    return TrainJob(
        x0=initial_noise(range(samples), device.family.latent_shape),
        advantage=np.linspace(-1.0, 1.0, samples),
        texts=tuple(TEXTS[row] for row in rows),
        prompt_keys=tuple(keys[row] for row in rows),
        candidates=tuple(range(samples)),
        steps=4,
        update=UpdateSpec.model_validate({"optimizer_steps": 2, "micro_batch": 4, "times_per_sample": 2, **update}),
        run_seed=5,
        iteration=1,
    )


def bits(state):
    return {name: value.numpy().tobytes() for name, value in (*state.current.weights.items(), *state.optimizer.items())}


@pytest.mark.parametrize("family", FAMILIES)
def test_an_update_is_the_same_at_every_try_with_or_without_checkpointing(family):
    device = Device(tiny_spec(family), CUDA)
    policy = moved(device)
    plain, result = device.train(train_job(device), policy)
    assert np.isfinite(list(result.metrics.values())).all() and result.metrics["train/grad_norm"] > 0
    assert bits(device.train(train_job(device), policy)[0]) == bits(plain)
    assert bits(Device(tiny_spec(family), CUDA).train(train_job(device), policy)[0]) == bits(plain)
    assert bits(device.train(train_job(device, gradient_checkpointing=True), policy)[0]) == bits(plain)
    assert not torch.are_deterministic_algorithms_enabled()


class Interrupted(Exception):
    """Stands for a kill: nothing after it happens."""


RECIPES = {
    "eager": {
        "explore__engine": {"name": "nvfp4-emulated", "options": EAGER},
        "regenerate__engine": {"name": "bf16", "options": EAGER},
        "evaluate__sampling__engine": {"name": "bf16", "options": EAGER},
    },
    "compiled": {},
}
STOPS = [
    (Pool, "write", 1, False),
    (Pool, "write", 6, True),
    (Samples, "write", 2, False),
    (training.Trainer, "_step", 2, True),
    (policies, "save_policy", 2, False),
    (policies, "save_policy", 3, True),
]
"""What is interrupted, at which call in a run's life since it was opened, and whether only after it."""


@contextmanager
def stopped(owner, name, nth, after) -> Iterator[None]:
    """Raise at the nth call."""
    call, calls = getattr(owner, name), [0]

    def counted(*arguments, **named):
        calls[0] += 1
        if calls[0] == nth and not after:
            raise Interrupted
        result = call(*arguments, **named)
        if calls[0] == nth:
            raise Interrupted
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, counted)
        yield


@pytest.mark.parametrize("execution", RECIPES)
def test_a_run_that_was_interrupted_ends_with_the_bytes_of_one_that_was_not(micro_model, tmp_path, execution):
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), iterations=2, **RECIPES[execution])
    with open_session(tmp_path / "whole", "run", recipe) as session:
        assert session.device.type == "cuda"
        whole = [summary.step for summary in run_all(session)]
    assert whole == [0, 1, 2]
    fallen = 0
    for stop in STOPS:
        try:
            with open_session(tmp_path / "broken", "run", recipe) as session, stopped(*stop):
                list(run_all(session))
        except Interrupted:
            fallen += 1
    assert fallen >= 3, "hardly anything was interrupted"
    with open_session(tmp_path / "broken", "run", recipe) as session:
        list(run_all(session))
    assert run_contents(tmp_path / "broken", "run") == run_contents(tmp_path / "whole", "run")


def test_chunks_left_to_auto_are_measured_once_and_kept_with_the_run(micro_model, tmp_path, monkeypatch):
    auto = {"explore__chunk": "auto", "regenerate__chunk": "auto", "evaluate__sampling__chunk": "auto"}
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), iterations=1, explore__candidates=48, **auto)
    with open_session(tmp_path / "store", "run", recipe) as session:
        chosen = session.recipe.explore.chunk
        assert chosen == 48 and session.recipe.regenerate.chunk == recipe.select.keep
        assert session.worker.counters.forwards == 0
        list(run_all(session))
        assert session.worker.counters.forwards > 0
    assert view_run(session.store, "run").recorded()["explore"]["chunk"] == chosen

    def never(*_):
        raise AssertionError("measured again")

    monkeypatch.setattr(Device, "fitting_chunk", never)
    with open_session(tmp_path / "store", "run", recipe) as session:
        assert session.recipe.explore.chunk == chosen
    with open_session(tmp_path / "store", "another", recipe) as session:
        assert session.recipe.explore.chunk == chosen


@contextmanager
def memory_left(amount) -> Iterator[None]:
    """Let this process have only so many bytes more than it holds."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(CUDA).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + amount) / total)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()


def test_measuring_stops_where_memory_ends():
    device = Device(ModelSpec(resolution=512), CUDA)
    job = job_of(engine("nvfp4-emulated"))
    device.sync(job.engine, None)
    assert device.fitting_chunk(job, [engine("bf16")]) == SIZES[-1]
    with memory_left(512 * 2**20):
        assert device.fitting_chunk(job, [engine("bf16")]) < SIZES[-1]


def test_a_rollout_that_runs_out_of_memory_names_a_chunk_that_fits(device):
    chunk = 16_384
    spec = engine("bf16", **EAGER)
    list(device.rollout(job_of(spec), blocks_of(count=2)))
    big = job_of(spec, chunk=chunk, field="explore.chunk", steps=2)
    works = [Work(0, 0, tuple(range(8)), REWARDS[:1]), Work(1, 0, tuple(range(chunk)), REWARDS[:1])]
    taken = []
    with memory_left(256 * 2**20):
        with pytest.raises(DeviceMemoryError, match=r"explore\.chunk is 16384: .*set explore\.chunk to \d+") as caught:
            taken.extend(result.work.token for result in device.rollout(big, works))
        # The block before may have run short as well, beside the one that did.
        assert taken in ([], [0])
        fits = int(str(caught.value).split("set explore.chunk to ")[1].split(";")[0])
        assert fits < chunk
        small = Work(2, 0, tuple(range(fits // 2)), REWARDS[:1])
        assert len(list(device.rollout(replace(big, chunk=fits // 2), [small]))) == 1


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_that_runs_out_of_memory_names_a_micro_batch_that_fits(device, checkpointing):
    policy = moved(device)
    device.train(train_job(device), policy)
    size = 8192
    job = train_job(device, samples=size, micro_batch=size, times_per_sample=1, gradient_checkpointing=checkpointing)
    with memory_left(256 * 2**20):
        with pytest.raises(
            DeviceMemoryError, match=r"update\.micro_batch is 8192: .*set update\.micro_batch"
        ) as caught:
            device.train(job, policy)
        fits = int(str(caught.value).split("set update.micro_batch to ")[1].split(";")[0].split(",")[0])
        assert 0 < fits < size
        less = train_job(device, samples=fits, micro_batch=max(1, fits // 2), gradient_checkpointing=checkpointing)
        device.train(less, policy)


def test_memory_is_reported_with_what_the_device_has(device):
    list(device.rollout(job_of(engine("bf16", **EAGER)), blocks_of(count=2)))
    report = device.memory()
    assert report["transformer"] > 0 and report["vae"] > 0 and report["engine bf16"] > 0
    assert 0 < report["allocated"] <= report["peak"] <= report["total"]
    assert report["allocated"] >= report["transformer"] + report["vae"]
