import math

import numpy as np
import pytest

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.base import RewardError, reward_id
from solrl_tasks.rewards.protocol import ScoreRequest, decode_image, encode_image, read_identity, read_score
from solrl_tasks.rewards.remote import Remote, RemoteOptions
from solrl_tasks.rewards.scoring import make_reward, score
from solrl_tasks.selection.best_worst import BestWorst
from solrl_tasks.selection.groups import NoValidCandidateError, select_groups
from solrl_tasks.selection.scores import weighted_scores
from tests.support.scripted import Say, Scripted


def pictures(*pixels):
    images = np.random.default_rng(0).integers(0, 256, (len(pixels), 5, 7, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = pixels
    return images


def first_pixels(asked):
    """The answer of a server that scores by the first pixel."""
    scores = [float(decode_image(image)[0, 0, 0]) for image in asked.body["images"]]
    return Say({"protocol": 1, "reward": "pixel", "version": "7", "scores": scores})


def answer(*scores, **changes):
    return Say({"protocol": 1, "reward": "pixel", "version": "7", "scores": list(scores), **changes})


def spec(url, **options):
    plain = {"url": url, "reward": "pixel", "version": "7", "retries": 2, "backoff": 0.01, "timeout": 5.0}
    return RewardSpec(name="remote", options={**plain, **options})


def scored(server, *pixels, **options):
    images = pictures(*pixels)
    return score(make_reward(spec(server.url, **options)), images, ["p"] * len(images), [{}] * len(images))


def test_images_prompts_and_metadata_arrive_as_they_are():
    images = pictures(3, 1, 2)
    with Scripted(first_pixels).running() as server:
        reward = make_reward(spec(server.url, batch=2))
        found = score(reward, images, ["a", "b", "ü"], [{"n": 1}, {}, {"list": [1, None]}])
        reward.unload()
    assert found.values.tolist() == [3, 1, 2]
    assert found.failures == ()
    bodies = [asked.body for asked in server.asked]
    assert [len(body["images"]) for body in bodies] == [2, 1]
    assert [text for body in bodies for text in body["prompts"]] == ["a", "b", "ü"]
    assert [item for body in bodies for item in body["metadata"]] == [{"n": 1}, {}, {"list": [1, None]}]
    assert {(body["protocol"], body["reward"], body["version"]) for body in bodies} == {(1, "pixel", "7")}
    assert all(asked.path == "/v1/score" for asked in server.asked)
    sent = [decode_image(image) for body in bodies for image in body["images"]]
    assert np.array_equal(np.stack(sent), images)


def test_twice_500_and_then_right():
    with Scripted(Say(b"", 500), Say(b"", 500), first_pixels).running() as server:
        assert scored(server, 4, 5).values.tolist() == [4, 5]
    assert len(server.asked) == 3


def test_what_the_server_cannot_score_is_invalid_with_its_reason():
    step = answer(None, 0.5, float("nan"), 10**400, failures={"0": "no face in it"})
    with Scripted(step).running() as server:
        found = scored(server, 1, 2, 3, 4)
    assert np.array_equal(found.values, np.array([np.nan, 0.5, np.nan, np.nan], np.float32), equal_nan=True)
    assert found.failures == (
        "remote: image 0: no face in it",
        "remote: image 2: score is nan",
        "remote: image 3: score is inf",
    )
    assert len(server.asked) == 1


def test_reasons_stay_with_their_images_over_several_requests():
    with Scripted(answer(1.0, 2.0), answer(3.0, None, failures={"1": "blurred"})).running() as server:
        found = scored(server, 1, 2, 3, 4, batch=2)
    assert found.reasons == {3: "blurred"}
    assert found.values[:3].tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (answer(1.0), "answered 1 score for 2 images: it must answer one each"),
        (answer(1.0, 2.0, 3.0), "answered 3 scores for 2 images"),
        (answer(1.0, 2.0, version="8"), "is of version '8' now, but scores of version '7' are expected"),
        (answer(1.0, 2.0, reward="other"), "serves the reward 'other', not 'pixel'"),
        (Say({"error": "who?"}, 401), "status 401: who"),
        (Say({"error": "version '7' is asked for"}, 409), "status 409: version '7'"),
    ],
)
def test_answers_that_must_stop_the_run(step, message):
    with Scripted(step).running() as server, pytest.raises(RewardError, match=message):
        scored(server, 1, 2)
    assert len(server.asked) == 1


@pytest.mark.parametrize("step", [Say(b"{"), answer("high", 1.0), answer(1.0, True), answer(1.0, 1.0, protocol=2)])
def test_a_malformed_answer_is_asked_for_again_and_then_stops_the_run(step):
    with (
        Scripted(step).running() as server,
        pytest.raises(RewardError, match=r"'pixel' is required, .* failed 3 times, at last: its answer is malformed"),
    ):
        scored(server, 1, 2)
    assert len(server.asked) == 3


def test_a_required_server_that_is_gone_stops_the_run_and_not_image_by_image():
    with (
        Scripted(Say(b"", 503)).running() as server,
        pytest.raises(RewardError, match="start the run again, which goes on where it stopped"),
    ):
        scored(server, 1, 2, 3)
    assert len(server.asked) == 3


def test_an_optional_server_that_is_gone_leaves_holes_with_reasons():
    with Scripted(first_pixels, Say(b"", 503)).running() as server:
        found = scored(server, 1, 2, 3, 4, 5, batch=2, required=False)
    assert np.array_equal(found.values, np.array([1, 2, np.nan, np.nan, np.nan], np.float32), equal_nan=True)
    assert [text.split(": ")[1] for text in found.failures] == ["image 2", "image 3", "image 4"]
    assert all("failed 3 times, at last: status 503" in text for text in found.failures)
    # One request was answered, one was tried three times, the third was not even begun.
    assert len(server.asked) == 4


def test_holes_of_a_watched_reward_do_no_harm_and_those_of_a_weighted_one_do():
    """Why an optional reward must have the weight 0."""
    values = {"main": np.arange(8.0).reshape(1, 8), "far": np.full((1, 8), np.nan)}
    seeds = np.arange(8, dtype=np.uint64).reshape(1, 8)
    watched = weighted_scores(values, {"main": 1.0, "far": 0.0})
    assert select_groups(watched, seeds, 4, BestWorst()).indices.tolist() == [[7, 6, 1, 0]]
    with pytest.raises(NoValidCandidateError):
        select_groups(weighted_scores(values, {"main": 1.0, "far": 0.1}), seeds, 4, BestWorst())


# Identity


def test_the_identity_is_the_name_and_version_on_the_server_and_nothing_else():
    ids = [
        reward_id(make_reward(spec(url, **options)))
        for url, options in (
            ("http://127.0.0.1:1", {}),
            ("https://elsewhere.example/x", {"token_env": "T", "timeout": 1.0, "retries": 0, "batch": 3}),
            ("http://127.0.0.1:1", {"required": False, "backoff": 2.0}),
            ("http://127.0.0.1:1", {"version": "8"}),
            ("http://127.0.0.1:1", {"reward": "other"}),
        )
    ]
    assert ids[0] == ids[1] == ids[2]
    assert len(set(ids)) == 3


def test_without_a_version_the_server_is_asked_once():
    identity = Say({"protocol": 1, "reward": "pixel", "version": "7", "range": [0, None]})
    with Scripted(identity, first_pixels).running() as server:
        reward = make_reward(spec(server.url, version=None))
        assert reward_id(reward) == reward_id(make_reward(spec(server.url, version=None)))
        assert reward_id(reward) == reward_id(make_reward(spec(server.url)))
        assert score(reward, pictures(9), ["p"], [{}]).values.tolist() == [9]
    assert [(asked.method, asked.path) for asked in server.asked] == [("GET", "/v1/reward"), ("POST", "/v1/score")]
    assert server.asked[1].body["version"] == "7"


def test_a_server_that_changes_its_version_while_it_runs_is_an_error():
    identity = Say({"protocol": 1, "reward": "pixel", "version": "7"})
    with Scripted(identity, first_pixels, answer(1.0, version="8")).running() as server:
        reward = make_reward(spec(server.url, version=None))
        assert score(reward, pictures(9), ["p"], [{}]).values.tolist() == [9]
        with pytest.raises(RewardError, match="is of version '8' now, but scores of version '7' are expected"):
            score(reward, pictures(9), ["p"], [{}])


def test_without_a_version_nobody_listening_is_said_at_once():
    with pytest.raises(RewardError, match="version of reward 'pixel' is not in the recipe, and http://"):
        make_reward(spec("http://127.0.0.1:1", version=None, required=False))
    other = Say({"protocol": 1, "reward": "other", "version": "7"})
    with (
        Scripted(other).running() as server,
        pytest.raises(RewardError, match="serves the reward 'other', not 'pixel'"),
    ):
        make_reward(spec(server.url, version=None))


def test_two_servers_in_one_recipe():
    with Scripted(first_pixels).running() as near, Scripted(answer(1.0)).running() as far:
        near_spec, far_spec = (
            spec(server.url).model_copy(update={"name": name, "use": "remote"})
            for server, name in ((near, "near"), (far, "far"))
        )
        rewards = [make_reward(each) for each in (near_spec, far_spec)]
        values = [score(reward, pictures(5), ["p"], [{}]).values.tolist() for reward in rewards]
    assert [reward.name for reward in rewards] == ["near", "far"]
    assert values == [[5], [1]]


def test_no_images_ask_nothing():
    assert Remote(RemoteOptions(url="http://127.0.0.1:1", reward="x", version="1"))(pictures(), [], []) == []


# The protocol


def test_images_survive_the_way():
    image = pictures(1)[0]
    assert np.array_equal(decode_image(encode_image(image)), image)


@pytest.mark.parametrize("text", ["", "no base64!", "aGVsbG8=", "iVBORw0KGgo="])
def test_what_is_no_png_is_refused(text):
    with pytest.raises(ValueError, match="no PNG in base64"):
        decode_image(text)


def test_other_formats_and_huge_images_are_refused(monkeypatch):
    import base64
    import io

    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pictures(1)[0]).save(buffer, format="GIF")
    with pytest.raises(ValueError, match="no PNG in base64"):
        decode_image(base64.b64encode(buffer.getvalue()).decode())
    monkeypatch.setattr("solrl_tasks.rewards.protocol.MOST_PIXELS", 34)
    with pytest.raises(ValueError, match="7 x 5 pixels, at most 34"):
        decode_image(encode_image(pictures(1)[0]))


def test_messages():
    with pytest.raises(ValueError, match=r"must be equally many, found \(2, 1, 1\)"):
        ScoreRequest(reward="x", images=("a", "b"), prompts=("p",), metadata=({},))
    assert read_identity({"protocol": 1, "reward": "x", "version": "1", "more": 2}).range == (None, None)
    found = read_score({"protocol": 1, "reward": "x", "version": "1", "scores": [1, 0.5, None]}).values()
    assert found[:2] == [1.0, 0.5]
    assert math.isnan(found[2])
    for wrong in ({}, [], {"protocol": 1, "reward": "x", "version": "", "scores": []}):
        with pytest.raises(ValueError, match="validation error"):
            read_score(wrong)


# In a run


@pytest.mark.slow
def test_a_run_whose_server_went_away_goes_on_when_it_is_back(micro_model, tmp_path):
    from solrl_tasks.stages.iteration import run_step
    from solrl_tasks.stages.session import open_session
    from tests.support.micro import micro_recipe, write_prompts

    prompts = write_prompts(tmp_path)

    def metrics(server, store, run_id="run"):
        far = spec(server.url, version="7").model_dump(mode="json")
        recipe = micro_recipe(micro_model, prompts, rewards=[far], iterations=2)
        with open_session(tmp_path / store, run_id, recipe) as session:
            return [run_step(session, step).metrics for step in (0, 1)]

    with Scripted(first_pixels).running() as server:
        whole = metrics(server, "whole")
    with Scripted(first_pixels, first_pixels, first_pixels, Say(b"", 503)).running() as server:
        with pytest.raises(RewardError, match="'pixel' is required"):
            metrics(server, "broken")
        before = len(server.asked)
        server.steps[:] = [first_pixels]
        again = metrics(server, "broken")
        assert len(server.asked) > before
    timeless = [
        {name: value for name, value in step.items() if name.startswith(("reward/", "select/", "train/", "eval/"))}
        for step in whole
    ]
    assert any(name.startswith("train/") for name in timeless[1])
    for step, other in zip(timeless, again, strict=True):
        assert step == {name: other[name] for name in step}
