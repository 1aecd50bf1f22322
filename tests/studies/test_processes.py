"""Tasks in processes: all are done, one death is one failure, and nobody is left behind."""

import os
import time

import psutil
import torch

from solrl_tasks.studies.processes import ProcessDiedError, in_processes, one_thread, orphaned, sharing, visible_devices
from tests.support.work import die_at_two, double, raise_at_two, see_device, sleep_long


def test_all_tasks_are_done_by_as_many_processes_with_one_thread_each():
    found = dict(in_processes(double, range(6), 2))
    assert {task: answer[0] for task, answer in found.items()} == {n: 2 * n for n in range(6)}
    processes = {answer[1] for answer in found.values()}
    assert 1 <= len(processes) <= 2 and os.getpid() not in processes
    assert {answer[2] for answer in found.values()} == {1}
    assert not any(psutil.pid_exists(process) for process in processes)


def test_no_task_needs_no_process():
    assert list(in_processes(double, [], 3)) == []


def test_a_process_that_dies_is_one_failure_and_the_next_tasks_have_another(capfd):
    for work, told in ((die_at_two, "exit code -9"), (raise_at_two, "exit code 1")):
        found = dict(in_processes(work, range(4), 1))
        assert [found[n] for n in (0, 1, 3)] == [0, 1, 3]
        assert isinstance(found[2], ProcessDiedError) and told in str(found[2])
    capfd.readouterr()


def test_leaving_early_ends_what_is_running(tmp_path, monkeypatch):
    monkeypatch.setattr("solrl_tasks.studies.processes.TICK_SECONDS", 0.05)
    file = tmp_path / "process"

    def stop():
        if file.exists() and file.read_text():
            raise KeyboardInterrupt

    started = time.monotonic()
    try:
        for _ in in_processes(sleep_long, [(file, 600), (file, 600)], 1, stop):
            raise AssertionError("it cannot have ended")
    except KeyboardInterrupt:
        pass
    assert time.monotonic() - started < 60
    assert not psutil.pid_exists(int(file.read_text()))


def test_threads_are_given_back():
    before = torch.get_num_threads()
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before and not orphaned()


def test_processes_are_spread_over_the_gpus_that_are_visible(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices() == ["0", "1"] and [sharing(n) for n in (1, 2, 3, 8)] == [1, 1, 2, 4]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-5")
    assert visible_devices() == ["3", "GPU-5"]
    found = dict(in_processes(see_device, range(6), 2))
    assert set(found.values()) == {"3", "GPU-5"}
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "3, GPU-5"


def test_without_a_gpu_no_process_is_told_of_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_devices() == [] and sharing(3) == 3
    assert dict(in_processes(see_device, range(1), 1)) == {0: None}
