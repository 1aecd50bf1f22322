"""``chunk: auto``: one number for a run's whole life, the same for runs that should share pools."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.engines.base import EngineError
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.stages import chunks
from solrl_tasks.stages import session as sessions
from solrl_tasks.stages.chunks import HOST_CHUNK, MeasuredFit, UnmeasuredError, balanced, settle_chunks
from solrl_tasks.stages.iteration import run_step
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.store.errors import ConfigChangedError
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.workers import site as sites
from solrl_tasks.workers.memory import SIZES
from solrl_tasks.workers.site import LocalSite

AUTO = Recipe()


@given(st.integers(1, 5000), st.integers(1, 96))
def test_blocks_are_as_few_as_fit_and_as_even_as_can_be(count, fit):
    size = balanced(count, fit)
    blocks = -(-count // size)
    assert 1 <= size <= min(fit, count)
    assert blocks == -(-count // fit)
    assert blocks * size - count < blocks


@pytest.mark.parametrize("fit", [size for size in SIZES if size >= 4])
@pytest.mark.parametrize("times", [2, 3, 10])
def test_more_candidates_fill_the_blocks_that_exist_and_others(fit, times):
    assert balanced(96, fit) == balanced(96 * times, fit) == fit


def numbers(recipe):
    return recipe.explore.chunk, recipe.regenerate.chunk, recipe.evaluate.sampling.chunk


def never(sampling):
    raise AssertionError("nothing is to be measured")


def test_every_auto_becomes_a_number_that_fits_what_is_sampled():
    assert numbers(settle_chunks(AUTO, None, lambda sampling: 96)) == (96, 24, 4)
    assert numbers(settle_chunks(AUTO, None, lambda sampling: 32)) == (32, 24, 4)
    assert numbers(settle_chunks(AUTO, None, chunks.host_fit)) == (HOST_CHUNK, 24, 4)
    by_engine = {"nvfp4-emulated": 16, "bf16": 8}
    assert numbers(settle_chunks(AUTO, None, lambda sampling: by_engine[sampling.engine.name])) == (16, 8, 4)


def test_guidance_of_the_evaluation_alone_halves_what_fits_there():
    evaluate = AUTO.evaluate.model_copy(update={"guidance_scale": 4.0, "seeds": 16})
    guided = AUTO.model_copy(update={"evaluate": evaluate})
    assert numbers(settle_chunks(guided, None, lambda sampling: 16)) == (16, 12, 8)
    assert numbers(settle_chunks(guided, None, lambda sampling: 1))[2] == 1
    trained = guided.model_copy(update={"model": AUTO.model.model_copy(update={"guidance_scale": 4.0})})
    assert numbers(settle_chunks(trained, None, lambda sampling: 16)) == (16, 12, 16)


def test_what_a_run_recorded_is_not_measured_again_and_what_was_named_is_not_touched():
    recorded = settle_chunks(AUTO, None, lambda sampling: 16)
    stored = recorded.model_dump(mode="json")
    assert settle_chunks(AUTO, stored, never) == recorded
    named = AUTO.model_copy(update={"explore": AUTO.explore.model_copy(update={"chunk": 20})})
    assert numbers(settle_chunks(named, stored, never)) == (20, 12, 4)


def test_a_run_that_goes_on_keeps_its_chunks_whatever_would_be_chosen_now(opened, monkeypatch):
    auto = {"explore__chunk": "auto", "regenerate__chunk": "auto", "evaluate__sampling__chunk": "auto"}
    with opened("run", **auto) as session:
        assert numbers(session.recipe) == (8, 4, 2)
        first = run_step(session, 0)
    with monkeypatch.context() as patch:
        patch.setattr(sessions, "host_fit", never)
        with opened("run", **auto) as session:
            assert numbers(session.recipe) == (8, 4, 2)
            assert run_step(session, 0) == first and session.worker.counters.loads == 0
    with (
        pytest.raises(ConfigChangedError, match=r"explore\.chunk: 8 -> 4"),
        opened("run", **{**auto, "explore__chunk": 4}),
    ):
        pass
    assert view_run(session.store, "run").recorded()["explore"]["chunk"] == 8
    assert view_run(session.store, "run").recorded() == session.recipe.model_dump(mode="json")


class Asked:
    """A worker that holds what it is told to."""

    def __init__(self, fit):
        self.fit, self.jobs, self.beside = fit, [], []
        self.site = Pretended(80 * 2**30)

    def fitting_chunk(self, job, beside):
        self.jobs.append(job)
        self.beside.append([engine.name for engine in beside])
        return self.fit


class Pretended(LocalSite):
    """A CPU with a memory of its own."""

    def __init__(self, memory):
        super().__init__(torch.device("cpu"))
        self.__dict__["memory"] = memory

    @property
    def total_memory(self):
        return self.memory


class Notes(SilentReporter):
    """Keeps what is said."""

    def __init__(self):
        self.notes = []

    def note(self, message):
        self.notes.append(message)


@pytest.fixture
def measured(tmp_path, micro_model):
    """Makes a measurement on a pretended CUDA device of so many gigabytes."""
    store = Store.open(tmp_path / "store", create=True)
    prompts = PromptSet((Prompt("a red circle"), Prompt("a blue one")))

    def make(worker, properties=80, **overrides):
        worker.site = Pretended(properties * 2**30)
        model = AUTO.model.model_copy(update={"source": str(micro_model), "resolution": 32, **overrides})
        recipe = AUTO.model_copy(update={"model": model})
        return MeasuredFit(store, worker, recipe, prompts, Notes())

    return make


def test_a_device_is_measured_once_for_an_engine_with_all_engines_beside_it(measured):
    worker = Asked(48)
    fit = measured(worker)
    assert [fit(AUTO.explore), fit(AUTO.regenerate), fit(AUTO.evaluate.sampling)] == [48, 48, 48]
    assert [job.engine.name for job in worker.jobs] == ["nvfp4-emulated", "bf16"]
    assert worker.beside == [["nvfp4-emulated", "bf16", "bf16"]] * 2
    job = worker.jobs[0]
    assert (job.lora, job.steps, job.rows, job.rewards) == (None, 1, (0,), AUTO.rewards)
    assert any("48 images of 32 px" in note for note in fit.reporter.notes)
    assert measured(Asked(0))(AUTO.explore) == 48


def test_another_device_model_or_engine_is_measured_for_itself(measured):
    assert measured(Asked(48))(AUTO.explore) == 48
    assert measured(Asked(16), properties=40)(AUTO.explore) == 16
    assert measured(Asked(4), resolution=64)(AUTO.explore) == 4
    row = {"engine": {"name": "nvfp4-emulated", "options": {"activation_scale": "row"}}}
    assert measured(Asked(32))(AUTO.explore.model_validate({**AUTO.explore.model_dump(), **row})) == 32
    assert measured(Asked(1))(AUTO.explore) == 48


def test_a_lower_resolution_is_measured_for_itself_as_it_is_sampled(measured):
    worker = Asked(48)
    fit = measured(worker)
    fit(AUTO.explore)
    lowered = AUTO.explore.model_copy(update={"resolution": 16})
    assert replace(fit, worker=Asked(96))(lowered) == 96
    assert fit.reporter.notes[-1].startswith("chunk auto: 96 images of 16 px")
    assert (worker.jobs[0].resolution, worker.jobs[0].scored_at) == (None, None)
    job = fit._job(lowered)
    assert (job.resolution, job.scored_at) == (16, 32)
    assert fit(AUTO.explore.model_copy(update={"resolution": 32})) == 48 and len(worker.jobs) == 1


def test_a_damaged_measurement_is_made_again(measured):
    fit = measured(Asked(48))
    fit(AUTO.explore)
    (kept,) = (fit.store.root / "cache" / "chunks").iterdir()
    kept.write_bytes(kept.read_bytes().replace(b"48", b"96"))
    assert replace(fit, worker=Asked(24))(AUTO.explore) == 24


def test_a_plan_reads_what_was_measured_and_measures_nothing(measured):
    with pytest.raises(UnmeasuredError, match=r"nvfp4-emulated on .* was never measured"):
        measured(Asked(48)).recorded(AUTO.explore)
    measured(Asked(48))(AUTO.explore)
    assert measured(Asked(0)).recorded(AUTO.explore) == 48


def test_the_engine_of_the_evaluation_is_checked_at_the_door(opened, monkeypatch):
    require = sites.require_engine

    def only_some(name, device):
        if name == "bf16":
            raise EngineError("not here")
        return require(name, device)

    monkeypatch.setattr(sites, "require_engine", only_some)
    emulated = {"name": "nvfp4-emulated"}
    with (
        pytest.raises(EngineError, match="not here"),
        opened("run", explore__engine=emulated, regenerate__engine=emulated),
    ):
        pass
