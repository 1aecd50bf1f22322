"""What a crew says, without a cluster."""

import pytest
import torch

from solrl_tasks.config.recipe import ModelSpec, WorkersSpec
from solrl_tasks.store.records import environment_record
from solrl_tasks.workers import ray_crew
from solrl_tasks.workers.numerics import host_threads
from solrl_tasks.workers.ray_cluster import WorkersError
from solrl_tasks.workers.ray_crew import Actor, Crew


def test_who_waits_for_actors_is_told_so_and_in_the_end_what_the_cluster_has(monkeypatch):
    """A cluster with nobody to give."""

    class Empty:
        def resources(self):
            return {"CPU": 32.0, "GPU": 2.0, "object_store_memory": 1.0}

        def wait(self, refs):
            now[0] += 10.0

    now, told = [0.0], []
    monkeypatch.setattr(ray_crew.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(Crew, "_hire", lambda crew: crew._coming.update({len(crew._coming): (None, now[0])}))
    monkeypatch.setattr(Crew, "settle", lambda crew: None)
    spec = WorkersSpec(kind="ray", actors=2, patience=150)
    crew = Crew(Empty(), spec, ModelSpec(), None, told.append)
    with pytest.raises(WorkersError, match=r"0 of 2 actors.*1 GPU each, came within 150 s.*logs.*2 GPU"):
        crew.hire()
    assert len(told) == 2 and all("0 of 2 actors" in said and said.endswith("waiting on") for said in told)


def test_actors_beside_gpus_may_have_other_threads_and_on_cpus_may_not():
    crew = object.__new__(Crew)
    for device_class, alike in (("cpu", False), ("sm_90", True)):
        crew.actors, crew.generation = [], 0
        common = {"pid": 1, "node": "here", "device": "a device", "hardware": "an Abacus", "total_memory": 0}
        one, other = (
            Actor(None, f"actor-{threads}", common | {"environment": environment})
            for threads in (1, 16)
            for environment in [{**environment_record(), "device_class": device_class, "threads": threads}]
        )
        crew._admit(one)
        if alike:
            crew._admit(other)
        else:
            with pytest.raises(WorkersError, match=r"threads: 1 -> 16"):
                crew._admit(other)


def test_a_host_has_one_thread_beside_a_gpu_unless_the_user_chose():
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert host_threads(gpu, 32, {}) == 1
    assert host_threads(gpu, 32, {"OMP_NUM_THREADS": "32"}) == 32
    assert host_threads(cpu, 32, {}) == host_threads(cpu, 32, {"OMP_NUM_THREADS": "32"}) == 32
