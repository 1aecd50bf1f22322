import math
import threading

import numpy as np
import pytest

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.protocol import decode_image
from solrl_tasks.rewards.scoring import make_reward, score
from solrl_tasks.rewards.vlm_judge import JudgeOptions, _Choice, expected_number, stated_number
from tests.support.scripted import Say, Scripted


def says(text, logprobs=None):
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return Say({"id": "x", "model": "m", "choices": [choice | ({"logprobs": logprobs} if logprobs else {})]})


def spec(url, **options):
    return RewardSpec(name="vlm-judge", options={"url": url, "model": "m", "retries": 2, "backoff": 0.01, **options})


def pictures(count):
    images = np.random.default_rng(1).integers(0, 256, (count, 6, 4, 3), dtype=np.uint8)
    images[:, 0, 0, 0] = range(count)
    return images


def judged(server, count=1, **options):
    prompts = [f"prompt {i} with {{braces}}" for i in range(count)]
    return score(make_reward(spec(server.url, **options)), pictures(count), prompts, [{}] * count)


def image_of(asked):
    url = asked.body["messages"][0]["content"][0]["image_url"]["url"]
    return decode_image(url.removeprefix("data:image/png;base64,"))


def by_first_pixel(asked):
    return says(str(image_of(asked)[0, 0, 0]))


def test_each_image_is_asked_about_with_its_prompt():
    with Scripted(by_first_pixel).running() as server:
        found = judged(server, 5, parallel=3)
    assert found.values.tolist() == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4])
    assert found.failures == ()
    bodies = {int(image_of(asked)[0, 0, 0]): asked.body for asked in server.asked}
    assert sorted(bodies) == list(range(5))
    for index, body in bodies.items():
        (message,) = body["messages"]
        assert f'"prompt {index} with {{braces}}"' in message["content"][1]["text"]
        assert (body["model"], body["temperature"], body["seed"], body["max_tokens"]) == ("m", 0, 0, 16)
        assert "logprobs" not in body
    assert all(asked.path == "/chat/completions" for asked in server.asked)


def test_the_question_and_the_scale_are_ones_own():
    with Scripted(says("Rating: 4")).running() as server:
        found = judged(server, question='{prompt}? As {"n": 1}', low=1, high=5, seed=None, max_tokens=5)
    assert found.values.tolist() == [0.75]
    body = server.asked[0].body
    assert body["messages"][0]["content"][1]["text"] == 'prompt 0 with {braces}? As {"n": 1}'
    assert "seed" not in body


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", 7.0),
        (" 7.5 \n", 7.5),
        ("**8**", 8.0),
        ("Score: 7/10", 7.0),
        ("score = 3.", 3.0),
        ("Final answer: 10 out of 10.", 10.0),
        ("There are 2 cats where 3 were asked for.\n\nRating: 6", 6.0),
        ("0", 0.0),
    ],
)
def test_a_number_is_the_whole_last_line(text, number):
    choice = _Choice.model_validate({"message": {"content": text}})
    assert stated_number(choice, JudgeOptions(url="http://127.0.0.1:1", model="m")) == number


@pytest.mark.parametrize(
    "text", ["I would give it a 7 or an 8", "7 of the 10 cats are there", "seven", "", "\n", "8-9", None]
)
def test_anything_else_is_no_number(text):
    choice = _Choice.model_validate({"message": {"content": text}})
    found = stated_number(choice, JudgeOptions(url="http://127.0.0.1:1", model="m"))
    assert isinstance(found, str)
    assert found.startswith("the answer ends with no number: ")


def test_a_pattern_of_ones_own():
    options = JudgeOptions(url="http://127.0.0.1:1", model="m", pattern=r".*<score>(\d+)</score>.*")
    assert stated_number(_Choice.model_validate({"message": {"content": "so <score>4</score>!"}}), options) == 4.0
    odd = JudgeOptions(url="http://127.0.0.1:1", model="m", pattern=r"(\w+)?.*")
    assert "no number: 'good'" in str(stated_number(_Choice.model_validate({"message": {"content": "good"}}), odd))


def test_answers_without_a_number_leave_the_image_without_a_score():
    def step(asked):
        return says({0: "6", 1: "I cannot judge this.", 2: "-3"}[int(image_of(asked)[0, 0, 0])])

    with Scripted(step).running() as server:
        found = judged(server, 3)
    assert np.array_equal(found.values, np.array([0.6, np.nan, np.nan], np.float32), equal_nan=True)
    assert found.failures == (
        "vlm-judge: image 1: the answer ends with no number: 'I cannot judge this.'",
        "vlm-judge: image 2: the answer -3 is not on the scale from 0 to 10",
    )
    assert len(server.asked) == 3


def token(text, *others):
    tops = [{"token": t, "logprob": math.log(p)} for t, p in others]
    return {"token": text, "logprob": math.log(0.5), "top_logprobs": tops}


def test_the_expected_number_by_hand():
    options = JudgeOptions(url="http://127.0.0.1:1", model="m", expectation=True)

    def expected(*tokens):
        return expected_number(
            _Choice.model_validate({"message": {"content": "7"}, "logprobs": {"content": list(tokens)}}), options
        )

    # 0.5 * 7 + 0.25 * 8 + 0.125 * 2, over 0.875; words and what is off the scale do not count.
    tops = [("7", 0.5), (" 8", 0.25), ("good", 0.05), ("2", 0.125), ("11", 0.05), ("7.5", 0.025)]
    assert expected(token("7", *tops)) == pytest.approx(5.75 / 0.875)
    assert expected(token("Score"), token(":"), token(" 4", ("4", 0.5), (" 4", 0.25), ("6", 0.25))) == pytest.approx(
        4.5
    )
    assert expected(token("3")) == 3.0
    assert "holds no whole number" in str(expected(token("bad", ("7", 0.5))))
    assert "gives no probabilities" in str(expected())


def test_the_expectation_is_asked_for():
    logprobs = {"content": [token("7", ("7", 0.75), ("9", 0.25))]}
    with Scripted(says("7", logprobs)).running() as server:
        assert judged(server, expectation=True).values.tolist() == pytest.approx([0.75])
    assert server.asked[0].body["logprobs"] is True
    assert server.asked[0].body["top_logprobs"] == 20


def test_faults_are_those_of_every_endpoint():
    with Scripted(Say(b"", 500), Say({"choices": []}), says("5")).running() as server:
        assert judged(server).values.tolist() == [0.5]
    gone = Say({"error": {"message": "no such model"}}, 404)
    with Scripted(gone).running() as server, pytest.raises(RewardError, match="status 404: no such model"):
        judged(server)
    with Scripted(Say(b"", 500)).running() as server:
        with pytest.raises(RewardError, match=r"'vlm-judge' is required, but .* failed 3 times"):
            judged(server)
        found = judged(server, 2, required=False, parallel=1)
    assert np.isnan(found.values).all()
    assert len(found.failures) == 2


def test_requests_run_side_by_side():
    meeting = threading.Barrier(3)

    def step(_):
        meeting.wait(10)
        return says("5")

    with Scripted(step).running() as server:
        assert judged(server, 3, parallel=3).values.tolist() == [0.5] * 3


def test_the_identity_is_the_model_and_the_question():
    versions = [
        make_reward(spec(url, **options)).version
        for url, options in (
            ("http://127.0.0.1:1", {}),
            ("https://elsewhere.example", {"parallel": 9, "timeout": 1.0, "token_env": "T", "required": False}),
            ("http://127.0.0.1:1", {"model": "n"}),
            ("http://127.0.0.1:1", {"revision": "2"}),
            ("http://127.0.0.1:1", {"question": "?"}),
            ("http://127.0.0.1:1", {"expectation": True}),
            ("http://127.0.0.1:1", {"high": 5}),
        )
    ]
    assert versions[0] == versions[1]
    assert len(set(versions)) == len(versions) - 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"low": 5, "high": 5}, "low is 5 and high 5: the scale must rise"),
        ({"pattern": "("}, "is no regular expression"),
        ({"pattern": r"(\d)(\d)"}, "has 2 groups: it must have one"),
        ({"pattern": r"\d"}, "has 0 groups"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        JudgeOptions(url="http://127.0.0.1:1", model="m", **options)
