"""The update: what must hold whatever the objective learns."""

from copy import copy
from dataclasses import replace

import pytest
import torch

from solrl_tasks.objectives.decay import ema_decay
from solrl_tasks.store.policies import load_policy
from solrl_tasks.store.root import Store
from solrl_tasks.workers import training
from solrl_tasks.workers.lessons import Endpoints
from solrl_tasks.workers.policies import load_lora, load_state, policy_intact, save_state
from solrl_tasks.workers.state import ROLES
from solrl_tasks.workers.training import TrainingError


def tensors(state):
    """Every tensor of a policy by name."""
    named = {f"{role}/{name}": value for role in ROLES for name, value in state.role(role).weights.items()}
    return named | {f"optimizer/{name}": value for name, value in state.optimizer.items()}


def assert_same(one, other):
    """Bit for bit."""
    mine, theirs = tensors(one), tensors(other)
    assert mine.keys() == theirs.keys()
    assert [name for name, value in mine.items() if not torch.equal(value, theirs[name])] == []
    assert (one.iteration, one.optimizer_step) == (other.iteration, other.optimizer_step)


def gradient(state):
    """The gradient of a first step, from AdamW's first moment: (1 - beta1) g."""
    parts = [value.flatten() / 0.1 for name, value in sorted(state.optimizer.items()) if name.endswith(".exp_avg")]
    return torch.cat(parts)


def metric(result, name):
    return result.metrics[f"train/{name}"]


@pytest.mark.parametrize("times", [1, 2])
def test_accumulation_does_not_change_the_policy(device, moved_policy, train_job, times):
    job = train_job(optimizer_steps=2, times_per_sample=times)
    whole, large = device.train(job, moved_policy)
    parted, small = device.train(replace(job, update=job.update.model_copy(update={"micro_batch": 3})), moved_policy)
    for name, value in tensors(whole).items():
        torch.testing.assert_close(tensors(parted)[name], value, rtol=1e-4, atol=1e-6)
    for name in ("loss", "grad_norm", "policy_loss"):
        assert metric(small, name) == pytest.approx(metric(large, name), rel=1e-4)


def test_an_update_is_a_function_of_its_job(device, new_device, moved_policy, train_job):
    job = train_job(optimizer_steps=2)
    torch.manual_seed(1)
    one, _ = device.train(job, moved_policy)
    torch.manual_seed(2)
    device.train(train_job(samples=5), moved_policy)
    two, _ = device.train(job, moved_policy)
    assert_same(one, two)
    fresh, _ = new_device().train(job, moved_policy)
    assert_same(one, fresh)


def test_training_does_not_touch_the_global_generator(device, moved_policy, train_job):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    device.train(train_job(), moved_policy)
    assert torch.equal(torch.get_rng_state(), before)


def test_where_all_roles_agree_the_loss_says_nothing_and_the_gradient_all(device, first_policy, train_job):
    job = train_job()
    liked, loss = device.train(job, first_policy)
    disliked, same_loss = device.train(replace(job, advantage=-job.advantage), first_policy)
    indifferent, also_same_loss = device.train(replace(job, advantage=0.0 * job.advantage), first_policy)
    for other in (same_loss, also_same_loss):
        assert metric(other, "loss") == pytest.approx(metric(loss, "loss"), rel=1e-5)
    size = gradient(liked).norm()
    assert size > 1e-4
    torch.testing.assert_close(gradient(disliked), -gradient(liked), rtol=1e-3, atol=1e-4 * float(size))
    assert gradient(indifferent).norm() < 1e-4 * size


def test_a_micro_batch_that_is_not_a_number_is_skipped_counted_and_harmless(device, moved_policy, train_job):
    policy = replace(moved_policy, optimizer={}, optimizer_step=0)
    job = train_job(samples=9, micro_batch=3)
    spoiled = replace(job, x0=torch.cat([job.x0[:4], torch.full_like(job.x0[:1], float("nan")), job.x0[5:]]))
    state, result = device.train(spoiled, policy)
    assert metric(result, "skipped_micro_batches") == 1
    assert all(bool(value.isfinite().all()) for value in tensors(state).values())
    rows = [0, 1, 2, 6, 7, 8]
    rest = replace(
        job,
        x0=job.x0[rows],
        advantage=job.advantage[rows],
        texts=tuple(job.texts[row] for row in rows),
        prompt_keys=tuple(job.prompt_keys[row] for row in rows),
        candidates=tuple(rows),
    )
    clean, clean_result = device.train(rest, policy)
    assert metric(clean_result, "skipped_micro_batches") == 0
    torch.testing.assert_close(gradient(state), gradient(clean) * 6 / 9, rtol=1e-4, atol=1e-6)
    assert metric(result, "loss") == pytest.approx(metric(clean_result, "loss"), rel=1e-4)


def no_numbers(job):
    return replace(job, x0=torch.full_like(job.x0, float("inf")))


def infinite_norm(*arguments):
    return torch.tensor(float("inf"))


@pytest.mark.parametrize("failure", ["loss", "gradient"])
def test_an_update_that_fails_leaves_nothing_behind(
    device, new_device, moved_policy, train_job, tmp_path, monkeypatch, failure
):
    store = Store.open(tmp_path / "store")
    ref = save_state(store, {"policy": 1}, moved_policy, {}, 0.0)
    job = train_job(optimizer_steps=2)
    with (
        pytest.raises(TrainingError, match=r"update\.optimizer\.lr.*previous policy is intact"),
        monkeypatch.context() as patch,
    ):
        if failure == "gradient":
            patch.setattr(torch.nn.utils, "clip_grad_norm_", infinite_norm)
        device.train(no_numbers(job) if failure == "loss" else job, load_state(store, ref))
    assert policy_intact(store, ref)
    assert_same(load_state(store, ref), moved_policy)
    assert_same(device.train(job, moved_policy)[0], new_device().train(job, moved_policy)[0])


def test_a_failure_in_the_middle_of_accumulation_leaves_no_gradient(
    device, new_device, moved_policy, train_job, monkeypatch
):
    job = train_job(micro_batch=2)
    calls = []
    loss = training.Tally.add

    def interrupted(self, place, rows, values):
        calls.append(place)
        if len(calls) == 3:
            raise KeyboardInterrupt
        loss(self, place, rows, values)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(training.Tally, "add", interrupted)
        device.train(job, moved_policy)
    assert_same(device.train(job, moved_policy)[0], new_device().train(job, moved_policy)[0])


def test_two_and_two_steps_through_the_store_are_four(
    device, new_device, first_policy, train_job, tmp_path, monkeypatch
):
    """The optimizer goes on exactly; noise and times are held still, as they are named by iteration and step."""
    rows, batch = Endpoints.rows, Endpoints.batch

    def still(lesson):
        held = copy(lesson)
        held._job = replace(lesson._job, iteration=1)
        return held

    monkeypatch.setattr(Endpoints, "rows", lambda self, inner: rows(still(self), 0))
    monkeypatch.setattr(Endpoints, "batch", lambda self, part, inner: batch(still(self), part, 0))
    monkeypatch.setattr(training, "old_decay", lambda *_: 1.0)
    whole, _ = device.train(train_job(optimizer_steps=4), first_policy)
    half, _ = device.train(train_job(optimizer_steps=2), first_policy)
    store = Store.open(tmp_path / "store")
    ref = save_state(store, {"policy": "half"}, half, {}, 0.0)
    again, _ = new_device().train(train_job(optimizer_steps=2, iteration=2), load_state(Store(store.root), ref))
    assert_same(replace(again, iteration=1), whole)
    assert again.iteration == 2


def test_a_policy_comes_back_from_the_store_exactly(moved_policy, tmp_path):
    store = Store.open(tmp_path / "store")
    ref = save_state(store, {"policy": 2}, moved_policy, {"train/loss": 0.5}, 3.0)
    assert_same(load_state(store, ref), moved_policy)
    stored = load_policy(store, ref)
    assert stored.meta["metrics"] == {"train/loss": 0.5} and stored.making == {"seconds": 3.0}
    for role in ROLES:
        assert load_lora(store, ref, role).digest == moved_policy.role(role).digest == stored.meta["digests"][role]
    (store.root / ref.path / "ema.safetensors").unlink()
    assert not policy_intact(store, ref)


@pytest.mark.parametrize(
    ("old", "decay"),
    [
        ({"schedule": "constant", "decay": 0.3}, 0.3),
        ({"schedule": "copy"}, 0.0),
        ({"schedule": "ramp"}, 0.005),
        ({"schedule": "delayed"}, 0.0),
    ],
    ids=lambda value: value.get("schedule") if isinstance(value, dict) else None,
)
def test_the_old_policy_lags_by_its_decay_exactly(device, moved_policy, train_job, old, decay):
    state, result = device.train(train_job(optimizer_steps=2, old=old), moved_policy)
    assert metric(result, "old_decay") == pytest.approx(decay)
    for name, value in state.old.weights.items():
        before, current = moved_policy.old.weights[name], state.current.weights[name]
        expected = decay * before + (1.0 - decay) * current if decay else current
        assert torch.equal(value, expected)


def test_the_evaluated_average_follows_its_schedule_step_by_step(device, moved_policy, train_job):
    state, expected = moved_policy, moved_policy.ema
    for iteration in range(1, 4):
        state, _ = device.train(train_job(iteration=iteration), state)
        decay = ema_decay(3 + iteration)
        expected = expected.lerp(state.current, decay)
        assert state.optimizer_step == 3 + iteration
    for name, value in expected.weights.items():
        assert torch.equal(state.ema.weights[name], value)


def test_only_the_current_weights_of_a_policy_are_trained_and_its_parent_stays(device, moved_policy, train_job):
    before = {name: value.clone() for name, value in tensors(moved_policy).items()}
    base = {name: value.clone() for name, value in device.family.transformer.state_dict().items()}
    state, _ = device.train(train_job(optimizer_steps=2), moved_policy)
    assert all(torch.equal(value, before[name]) for name, value in tensors(moved_policy).items())
    assert all(torch.equal(value, base[name]) for name, value in device.family.transformer.state_dict().items())
    assert state.current.digest != moved_policy.current.digest


def test_the_gradient_is_clipped_to_the_global_norm(device, first_policy, train_job):
    job = train_job()
    free, result = device.train(job, first_policy)
    bound = metric(result, "grad_norm") / 4
    clipped, again = device.train(train_job(optimizer={"grad_clip": bound}), first_policy)
    assert metric(again, "grad_norm") == pytest.approx(metric(result, "grad_norm"))
    assert float(gradient(clipped).norm()) == pytest.approx(bound, rel=1e-3)
    assert float(gradient(free).norm()) == pytest.approx(metric(result, "grad_norm"), rel=1e-3)
