"""Actors of a real Ray cluster on this machine: two or three processes with one thread each."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, WorkersSpec
from solrl_tasks.engines.base import EngineError
from solrl_tasks.stages.iteration import run_all, run_step
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.stages.session import open_session
from solrl_tasks.workers import ray_cluster, ray_parcels, ray_update
from solrl_tasks.workers.jobs import Work
from solrl_tasks.workers.ray_cluster import ClusterLostError, WorkersError
from solrl_tasks.workers.ray_rollout import Spread
from solrl_tasks.workers.ray_worker import hired
from solrl_tasks.workers.training import TrainingError
from tests.support.contents import run_contents
from tests.support.micro import micro_recipe, write_prompts

pytestmark = [pytest.mark.slow]
ray = pytest.importorskip("ray")
pytestmark.append(pytest.mark.skipif(torch.cuda.is_available(), reason="the cluster would have GPUs"))


@pytest.fixture(autouse=True)
def one_thread(monkeypatch):
    threads = torch.get_num_threads()
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION", "0.02")
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def end(actor):
    """As the kernel does when memory is short."""
    os.kill(actor.facts["pid"], signal.SIGKILL)


def blocks(rewards, count=8):
    return [Work(token=f"block {n}", row=n % 3, candidates=(4 * n, 4 * n + 1), rewards=rewards) for n in range(count)]


class Checked:
    """What one device makes, and whether workers make the same."""

    def __init__(self, device, rollout_job, train_job, policy):
        self.job = replace(rollout_job, lora=policy.old)
        self.works = blocks(rollout_job.rewards)
        self.expected = {result.work.token: result for result in device.rollout(self.job, self.works)}
        self.policy = policy
        self.train_job = train_job(samples=9, micro_batch=2, optimizer_steps=2, times_per_sample=2)
        self.trained = device.train(self.train_job, policy)

    def rollout(self, worker, disturb=lambda done: None):
        found = {}
        for result in worker.rollout(self.job, iter(self.works)):
            found[result.work.token] = result
            disturb(len(found))
        assert found.keys() == self.expected.keys()
        for token, result in found.items():
            mine = self.expected[token]
            assert torch.equal(result.latents, mine.latents) and np.array_equal(result.images, mine.images)
            assert all(np.array_equal(value, mine.rewards[name]) for name, value in result.rewards.items())
            assert result.work is self.works[int(token.split()[1])] and result.seconds > 0
        return {result.actor for result in found.values()}

    def train(self, worker):
        state, result = worker.train(self.train_job, self.policy)
        wanted, mine = self.trained[0].tensors(), state.tensors()
        assert [name for name, value in wanted.items() if not torch.equal(value, mine[name])] == []
        assert result.metrics == self.trained[1].metrics
        return result


def test_work_is_the_same_by_three_actors_by_two_and_by_one(
    device, micro_model, rollout_job, train_job, moved_policy, monkeypatch, capfd
):
    checked, told, given = Checked(device, rollout_job, train_job, moved_policy), [], []
    give = Spread._give
    monkeypatch.setattr(Spread, "_give", lambda spread, actor: (given.append(actor.name), give(spread, actor)))
    spec = WorkersSpec(kind="ray", actors=3, cpus=0.5, replacements=0)
    model = ModelSpec(source=str(micro_model), resolution=32)
    with hired(spec, model, None, told.append) as worker:
        before = signal.getsignal(signal.SIGTERM)
        crew = worker.crew
        assert worker.counters.loads == 0
        assert str(worker.site.device) == "cpu" and worker.site.environment()["threads"] == 1
        with pytest.raises(EngineError, match="Available here"):
            worker.site.require_engine("nvfp4")
        with pytest.raises(RuntimeError, match="open"):
            first = worker.rollout(checked.job, iter(checked.works))
            next(first)
            worker.sync(checked.job.engine, moved_policy.old)
            next(worker.rollout(checked.job, iter(checked.works)))
        first.close()

        assert len(checked.rollout(worker)) == 3
        assert len(checked.train(worker).actors) == 3
        report = worker.sync(checked.job.engine, moved_policy.old)
        assert "held" in report.note or report.synced >= 0
        assert worker.record(ExtensionSpec(name="bf16")).name == "bf16"
        latents = next(iter(checked.expected.values())).latents
        assert np.array_equal(worker.decode(latents), device.decode(latents)[0])
        fresh = worker.initial_policy(4, 8.0, "all", 0)
        assert fresh.current.digest == device.initial_policy(4, 8.0, "all", 0).current.digest

        given.clear()
        dead = crew.actors[1]
        names = checked.rollout(worker, lambda done: end(dead) if done == 2 else None)
        assert len(names) >= 2 and len(given) <= len(checked.works) + 2
        assert len(crew.actors) == 2 and any("not replaced" in said and dead.name in said for said in told)
        assert len(checked.train(worker).actors) == 2

        end(crew.actors[0])
        assert checked.train(worker).actors == {}
        checked.rollout(worker)
        spoiled = replace(checked.train_job, x0=torch.full_like(checked.train_job.x0, float("nan")))
        with pytest.raises(TrainingError, match="previous policy is intact"):
            worker.train(spoiled, moved_policy)
        end(crew.actors[0])
        with pytest.raises(WorkersError, match=r"no actor is left.*workers\.replacements.*same run id"):
            checked.rollout(worker)
        assert signal.getsignal(signal.SIGTERM) is before
    said = capfd.readouterr()
    assert "raylet" not in said.out + said.err and "Ray" not in said.out + said.err


def test_a_policy_that_actors_came_to_is_not_sent_to_them_again(
    device, micro_model, rollout_job, train_job, moved_policy, monkeypatch
):
    checked, sent = Checked(device, rollout_job, train_job, moved_policy), []

    def counted(module, name):
        pack = getattr(module, name)
        monkeypatch.setattr(module, name, lambda policy: (sent.append(name), pack(policy))[1])

    for module, name in ((ray_update, "pack_state"), (ray_parcels, "pack_lora")):
        counted(module, name)
    following, _ = device.train(checked.train_job, checked.trained[0])
    with hired(
        WorkersSpec(kind="ray", actors=2, cpus=0.5), ModelSpec(source=str(micro_model), resolution=32), None, print
    ) as worker:

        def train(policy, wanted):
            state, _ = worker.train(checked.train_job, policy)
            assert state.digest == wanted.digest
            return state

        state = train(moved_policy, checked.trained[0])
        assert sent == ["pack_state"]
        # Its adapters, for sampling, and all of it, for the next update.
        worker.sync(checked.job.engine, state.old)
        job = replace(checked.job, lora=state.old)
        plain = [result.images.tobytes() for result in device.rollout(job, checked.works[:3])]
        found = {result.work.token: result.images.tobytes() for result in worker.rollout(job, checked.works[:3])}
        assert [found[work.token] for work in checked.works[:3]] == plain
        state = train(state, following)
        # After an update that fails nobody knows who holds what.
        spoiled = replace(checked.train_job, x0=torch.full_like(checked.train_job.x0, float("nan")))
        with pytest.raises(TrainingError):
            worker.train(spoiled, state)
        assert sent == ["pack_state"]
        last, _ = device.train(checked.train_job, following)
        state = train(state, last)
        assert sent == ["pack_state"] * 2
        # And a replaced actor holds nothing.
        end(worker.crew.actors[0])
        train(state, device.train(checked.train_job, last)[0])
        assert sent == ["pack_state"] * 3


class Disturbing(SilentReporter):
    """Calls once when some blocks of a stage are done."""

    def __init__(self, step, stage, done, call):
        self._when, self._call, self.notes = (step, stage, done), call, []

    def progress(self, step, stage, done, total, unit):
        if self._call is not None and (step, stage, done) == self._when:
            call, self._call = self._call, None
            call()

    def note(self, message):
        self.notes.append(message)


@pytest.fixture(scope="module")
def reference(micro_model, tmp_path_factory):
    """A recipe, and what its run comes to on one device in this process."""
    folder = tmp_path_factory.mktemp("reference")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    recipe = micro_recipe(micro_model, write_prompts(folder), update__micro_batch=3, audit__every=0)
    with open_session(folder / "store", "run", recipe) as session:
        list(run_all(session))
    torch.set_num_threads(threads)
    return recipe, run_contents(folder / "store", "run")


def by_actors(recipe, **fields):
    return recipe.model_copy(update={"workers": WorkersSpec(kind="ray", **{"cpus": 0.5, **fields})})


def test_a_run_whose_actors_die_ends_as_one_of_a_single_device(reference, tmp_path, monkeypatch):
    """One dies while it explores, one over an update; the run began inline."""
    recipe, expected = reference
    with open_session(tmp_path / "store", "run", recipe) as session:
        run_step(session, 0)
    seats, workers = ray_update._seats, []
    reporter = Disturbing(1, "explore", 2, lambda: end(workers[0].crew.actors[0]))

    def seated(crew, actors):
        found = seats(crew, actors)
        if len(workers) == 1:
            workers.append("once")
            wait = crew.cluster.wait

            def struck(refs, *rest):
                crew.cluster.wait = wait
                end(actors[1])
                return wait(refs, *rest)

            crew.cluster.wait = struck
        return found

    monkeypatch.setattr(ray_update, "_seats", seated)
    with open_session(tmp_path / "store", "run", by_actors(recipe, actors=2), reporter) as session:
        workers.append(session.worker)
        list(run_all(session))
        assert len(session.worker.crew.actors) == 2
    died = [note for note in reporter.notes if "died" in note]
    assert len(died) == 2 and all("It is replaced" in note for note in died)
    assert run_contents(tmp_path / "store", "run") == expected


def stop(crew, actor, seconds):
    """Alive, and does nothing: as one whose driver does not come back."""
    crew.limits.stall = seconds
    os.kill(actor.facts["pid"], signal.SIGSTOP)


def test_work_of_an_actor_that_hangs_is_done_by_others(
    device, micro_model, rollout_job, train_job, moved_policy, monkeypatch
):
    checked, told, given = Checked(device, rollout_job, train_job, moved_policy), [], []
    give = Spread._give
    monkeypatch.setattr(Spread, "_give", lambda spread, actor: (given.append(actor.name), give(spread, actor)))

    def tell(said):
        told.append(said)
        # Who comes has to load, which takes longer than a test should wait for one that hangs.
        crew.limits.stall = "auto"

    spec = WorkersSpec(kind="ray", actors=2, cpus=0.5, replacements=2)
    with hired(spec, ModelSpec(source=str(micro_model), resolution=32), None, tell) as worker:
        crew = worker.crew
        checked.rollout(worker)
        checked.train(worker)
        assert told == []

        given.clear()
        stopped = crew.actors[1]
        checked.rollout(worker, lambda done: stop(crew, stopped, 5.0) if done == 2 else None)
        assert len(given) <= len(checked.works) + 2
        (said,) = told
        assert (
            said.startswith(stopped.where) and "a block (prompt" in said and "the limit is 5 s (workers.stall" in said
        )
        assert "It is replaced" in said and not psutil.pid_exists(stopped.facts["pid"])

        checked.train(worker)
        told.clear()
        stopped = crew.actors[0]
        stop(crew, stopped, 4.0)
        assert len(checked.train(worker).actors) == 2
        (said,) = told
        assert said.startswith(stopped.where) and "update was not finished" in said and "workers.stall" in said
        assert not psutil.pid_exists(stopped.facts["pid"])


@pytest.mark.parametrize("what", ["raylet/raylet", "gcs_server"])
def test_a_lost_cluster_is_an_error_that_says_so_and_the_run_goes_on_inline(reference, tmp_path, monkeypatch, what):
    recipe, expected = reference

    def lose():
        (process,) = [one for one in psutil.Process().children() if any(what in word for word in one.cmdline()[:1])]
        process.kill()
        process.wait()
        # Actors go on for as long as they need nothing of the cluster, which may be for all of a run so short.
        monkeypatch.setattr(ray_cluster, "TICK", 0.0)
        monkeypatch.setattr(ray_cluster, "GRACE", -1.0 if what == "gcs_server" else 3.0)
        time.sleep(1)

    reporter = Disturbing(1, "explore", 1, lose)
    with (
        pytest.raises(ClusterLostError, match=r"the Ray cluster at .* is lost: .*same run id"),
        open_session(tmp_path / "store", "run", by_actors(recipe, actors=1, patience=60), reporter) as session,
    ):
        list(run_all(session))
    with open_session(tmp_path / "store", "run", recipe) as session:
        list(run_all(session))
    assert run_contents(tmp_path / "store", "run") == expected


FLOW = """
import time
from solrl_tasks.config.recipe import ModelSpec, WorkersSpec
from solrl_tasks.workers.ray_worker import hired

if __name__ == "__main__":
    spec = WorkersSpec(kind="ray", actors=1, cpus=0.5)
    with hired(spec, ModelSpec(source="random:tiny-flux", resolution=32), None, print) as worker:
        print(worker.crew.actors[0].facts["pid"], flush=True)
        time.sleep(600)
"""


def test_what_a_killed_run_had_started_ends_with_it():
    with subprocess.Popen([sys.executable, "-c", FLOW], stdout=subprocess.PIPE, text=True) as flow:
        actor = psutil.Process(int(flow.stdout.readline()))
        # Ray's agents, which compute nothing, take a minute or two to notice.
        others = [one for one in psutil.Process(flow.pid).children(recursive=True) if "Agent" not in one.name()]
        assert actor in others
        flow.kill()
    _, alive = psutil.wait_procs(others, timeout=60)
    assert alive == []


def test_what_the_cluster_does_not_have_is_said(micro_model, monkeypatch):
    spec = WorkersSpec(kind="ray", actors=1, cpus=0.5, address="127.0.0.1:1")
    model = ModelSpec(source=str(micro_model), resolution=32)
    with (
        pytest.raises(WorkersError, match=r"no Ray cluster answers at 127.0.0.1:1.*workers\.address"),
        hired(spec, model, None, print),
    ):
        pass

    def nowhere(_):
        raise ConnectionError("no cluster was found")

    monkeypatch.setattr(ray._private.services, "canonicalize_bootstrap_address", nowhere)
    with (
        pytest.raises(WorkersError, match=r"address is auto, and no Ray cluster runs on this machine.*ray start"),
        hired(spec.model_copy(update={"address": "auto"}), model, None, print),
    ):
        pass
    monkeypatch.setattr(ray._private.services, "canonicalize_bootstrap_address", lambda _: "127.0.0.1:1")
    with (
        pytest.raises(WorkersError, match=r"no Ray cluster answers at 127.0.0.1:1"),
        hired(spec.model_copy(update={"address": "auto"}), model, None, print),
    ):
        pass
    with (
        pytest.raises(WorkersError, match="Ray Client"),
        hired(spec.model_copy(update={"address": "ray://head:10001"}), model, None, print),
    ):
        pass
