import threading
import time

import numpy as np
import pytest
import torch

from solrl_tasks.rewards.base import Explained, NamedReward, RewardError
from solrl_tasks.rewards.scoring import score


class Fake:
    """Scores by the first pixel; ``act`` is called with the pixels of each attempt and may raise or replace them."""

    name = "fake"
    version = "1"
    range = (0.0, 255.0)

    def __init__(self, act=None):
        self.act = act
        self.calls = []

    def __call__(self, images, prompts, metadata):
        pixels = images[:, 0, 0, 0].astype(float).tolist()
        self.calls.append(pixels)
        result = self.act(pixels) if self.act else None
        return pixels if result is None else result


def batch(*pixels):
    images = np.zeros((len(pixels), 2, 2, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = pixels
    return images, [f"prompt {p}" for p in pixels], [{"pixel": p} for p in pixels]


def fails_on(pixel):
    def act(pixels):
        if pixel in pixels:
            raise KeyError(f"pixel {pixel}")

    return act


def test_scores_come_in_one_call_as_float32():
    reward = Fake()
    scores = score(reward, *batch(3, 1, 2))
    assert scores.values.dtype == np.float32
    assert scores.values.tolist() == [3, 1, 2]
    assert scores.failures == ()
    assert reward.calls == [[3, 1, 2]]


def test_prompts_and_metadata_stay_with_their_images_in_a_retry():
    seen = []

    class Seeing(Fake):
        def __call__(self, images, prompts, metadata):
            if len(images) > 1:
                raise RuntimeError("one at a time")
            seen.append((int(images[0, 0, 0, 0]), prompts[0], metadata[0]["pixel"]))
            return [1.0]

    score(Seeing(), *batch(5, 6))
    assert seen == [(5, "prompt 5", 5), (6, "prompt 6", 6)]


def test_an_exception_is_retried_image_by_image():
    reward = Fake(fails_on(2))
    scores = score(reward, *batch(1, 2, 3))
    assert reward.calls == [[1, 2, 3], [1], [2], [3]]
    assert np.array_equal(scores.values, np.array([1, np.nan, 3], dtype=np.float32), equal_nan=True)
    assert scores.failures == (
        "fake: batch of 3: KeyError: 'pixel 2'; scored image by image",
        "fake: image 1: KeyError: 'pixel 2'",
    )


def test_a_failure_that_passes_leaves_every_score():
    attempts = []

    def once(pixels):
        attempts.append(pixels)
        if len(attempts) == 1:
            raise OSError("busy")

    scores = score(Fake(once), *batch(1, 2))
    assert scores.values.tolist() == [1, 2]
    assert scores.failures == ("fake: batch of 2: OSError: busy; scored image by image",)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e39])
def test_a_score_that_is_not_finite_is_invalid_and_not_retried(bad):
    reward = Fake(lambda pixels: [bad, *pixels[1:]])
    scores = score(reward, *batch(1, 2))
    assert np.array_equal(scores.values, np.array([np.nan, 2], dtype=np.float32), equal_nan=True)
    assert scores.failures == (f"fake: image 0: score is {bad}",)
    assert len(reward.calls) == 1


@pytest.mark.parametrize("returned", [[1.0], [1.0, 2.0, 3.0], []])
def test_a_wrong_length_is_an_error(returned):
    with pytest.raises(RewardError, match=f"reward 'fake' returned {len(returned)} scores? for 2 images"):
        score(Fake(lambda _: returned), *batch(1, 2))


def test_a_wrong_length_in_a_retry_is_an_error_too():
    def act(pixels):
        if len(pixels) > 1:
            raise RuntimeError
        return [1.0, 1.0]

    with pytest.raises(RewardError, match="returned 2 scores for 1 image:"):
        score(Fake(act), *batch(1, 2))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (1.0, "returned float, expected a sequence of 2 numbers"),
        ((x for x in "ab"), "returned generator"),
        (["1", "2"], "must return numbers"),
        ([None, 1.0], "must return numbers"),
        (np.zeros((2, 2)), "must return numbers"),
        ({1.0, 2.0}, "returned a set, which has no order"),
        ({0: 1.0, 1: 2.0}, "returned a dict, which has no order"),
    ],
)
def test_what_is_not_numbers_is_an_error(returned, message):
    with pytest.raises(RewardError, match=message):
        score(Fake(lambda _: returned), *batch(1, 2))


@pytest.mark.parametrize(
    "returned", [[1, True], np.array([1, 1], dtype=np.int8), torch.tensor([1.0, 1.0], dtype=torch.bfloat16)]
)
def test_any_sequence_of_numbers_will_do(returned):
    assert score(Fake(lambda _: returned), *batch(1, 2)).values.tolist() == [1, 1]


def test_a_reward_cannot_spoil_the_metadata():
    class Counting(Fake):
        def __call__(self, images, prompts, metadata):
            for item in metadata:
                item["seen"] = item.get("seen", 0) + 1
            return [item["seen"] for item in metadata]

    images, prompts, metadata = batch(4, 5)
    for _ in range(2):
        assert score(Counting(), images, prompts, metadata).values.tolist() == [1, 1]
    assert metadata == [{"pixel": 4}, {"pixel": 5}]


def test_a_reward_cannot_spoil_the_images():
    class Spoiling(Fake):
        def __call__(self, images, prompts, metadata):
            scores = images[:, 0, 0, 0].astype(float)
            images[:] = 0
            if len(images) > 1:
                raise RuntimeError
            return scores

    images, prompts, metadata = batch(4, 5)
    assert score(Spoiling(), images, prompts, metadata).values.tolist() == [4, 5]
    assert images[:, 0, 0, 0].tolist() == [4, 5]


def test_a_time_out_is_retried_and_then_invalid():
    release = threading.Event()

    def act(pixels):
        if 2 in pixels:
            release.wait(30)

    reward = Fake(act)
    started = time.perf_counter()
    scores = score(reward, *batch(1, 2, 3), timeout=0.2)
    assert time.perf_counter() - started < 10
    release.set()
    assert np.array_equal(scores.values, np.array([1, np.nan, 3], dtype=np.float32), equal_nan=True)
    assert scores.failures[0].startswith("fake: batch of 3: TimeoutError: no scores within 0.2 s")
    assert scores.failures[1] == "fake: image 1: TimeoutError: no scores within 0.2 s"


def test_an_exception_inside_the_time_limit_is_itself():
    assert score(Fake(fails_on(1)), *batch(1), timeout=30).failures[-1] == "fake: image 0: KeyError: 'pixel 1'"


@pytest.mark.parametrize("kind", [MemoryError, torch.OutOfMemoryError])
def test_memory_that_ran_out_is_no_fault_of_an_image(kind):
    """A score is kept for good: what another day would have one must not be stored as invalid."""

    def at(most):
        def act(pixels):
            if len(pixels) > most:
                raise kind("tried to allocate too much")

        return act

    scores = score(Fake(at(1)), *batch(3, 4))
    assert scores.values.tolist() == [3.0, 4.0] and "tried to allocate" in scores.failures[0]
    with pytest.raises(
        RewardError, match=r"'fake' found no memory for a single image \(tried .*free some, and start again"
    ):
        score(Fake(at(0)), *batch(3, 4))


def test_interruption_is_not_a_failure_of_the_reward():
    def act(_):
        raise KeyboardInterrupt

    for timeout in (None, 30.0):
        with pytest.raises(KeyboardInterrupt):
            score(Fake(act), *batch(1), timeout=timeout)


def test_setting_up_does_not_count_against_the_time_limit():
    def build():
        time.sleep(0.3)
        return Fake()

    reward = NamedReward("slow", "1", (0, 1), build)
    assert score(reward, *batch(1), timeout=0.2).failures == ()


def test_setting_up_is_not_retried():
    built = []

    def build():
        built.append(1)
        raise OSError("no weights")

    with pytest.raises(RewardError, match="cannot be set up: OSError: no weights"):
        score(NamedReward("broken", "1", (0, 1), build), *batch(1, 2))
    assert built == [1]


def test_a_reward_can_say_that_retrying_is_useless():
    def act(_):
        raise RewardError("the reward server refuses this key")

    with pytest.raises(RewardError, match="refuses this key"):
        score(Fake(act), *batch(1, 2))


def test_inputs_of_different_lengths_are_refused():
    images, prompts, metadata = batch(1, 2)
    with pytest.raises(ValueError, match="as many prompts and metadata"):
        score(Fake(), images, prompts[:1], metadata)


def test_a_reward_may_say_why_an_image_has_no_score():
    def act(pixels):
        if pixels == [9]:
            raise OSError("never together")
        if 9 in pixels:
            raise RuntimeError
        return Explained(
            [float("nan") if p == 2 else p for p in pixels], {pixels.index(2): "no face"} if 2 in pixels else {}
        )

    scores = score(Fake(act), *batch(1, 2, 3))
    assert scores.failures == ("fake: image 1: no face",)
    assert scores.reasons == {1: "no face"}
    one_by_one = score(Fake(act), *batch(1, 2, 9))
    assert np.array_equal(one_by_one.values, np.array([1, np.nan, np.nan], dtype=np.float32), equal_nan=True)
    assert one_by_one.reasons == {1: "no face", 2: "OSError: never together"}
    assert one_by_one.failures[1:] == ("fake: image 1: no face", "fake: image 2: OSError: never together")


def test_a_huge_prompt_in_an_error_is_cut():
    def picky(images, prompts, metadata):
        raise ValueError(f"cannot read {prompts[0]!r}")

    picky.version = "1"
    images = np.zeros((1, 4, 4, 3), dtype=np.uint8)
    failures = score(NamedReward("picky", "1", (0, 1), lambda: picky), images, ["word " * 100_000], [{}]).failures
    assert failures and all(len(failure) < 500 for failure in failures)


def test_what_a_reward_says_of_an_image_is_made_fit_for_messages():
    found = score(Fake(lambda pixels: Explained([float("nan"), 1.0], {0: "\x1b[2J\ud800\n" * 100_000})), *batch(1, 2))
    assert len(found.failures[0]) < 400
    assert found.failures[0].isprintable()
    assert found.reasons == {0: found.failures[0].removeprefix("fake: image 0: ")}


def test_a_number_beyond_all_floats_is_invalid():
    assert np.isnan(score(Fake(lambda pixels: [10**400, -(10**400)]), *batch(1, 2)).values).all()
