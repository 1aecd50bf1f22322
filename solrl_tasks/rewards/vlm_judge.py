"""A vision-language model as judge: one question an image, asked of a server that speaks OpenAI's chat protocol."""

import math
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, ClassVar, Final, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from solrl_tasks.rewards.base import Explained, Images, presentable
from solrl_tasks.rewards.endpoint import Endpoint, EndpointOptions, UnavailableError
from solrl_tasks.rewards.protocol import encode_image

CHAT_PATH: Final = "/chat/completions"
QUESTION: Final = (
    'The image was made for this description: "{prompt}"\n'
    "How well does it show what the description says, from 0 (not at all) to 10 (in every detail)? "
    "Answer with the number alone."
)
NUMBER: Final = (
    r"[^\w-]*(?:(?:final\s+)?(?:score|rating|answer)[^\w-]*)?(-?\d+(?:\.\d+)?)(?:\s*(?:/|out\s+of)\s*\d+)?\W*"
)
"""The whole last line of an answer: a number, perhaps named before and with its scale behind, such as Score: 7/10."""
_TOP: Final = 20


class JudgeOptions(EndpointOptions):
    """A server, a model there, and what it is asked.

    ``url`` ends before ``/chat/completions``. In ``question`` (None is ``QUESTION``), ``{prompt}`` stands for the
    prompt. ``low`` and ``high`` are the ends of the scale that it asks for. ``pattern`` (None is ``NUMBER``) matches
    the last line of the answer, with the number in its one group. With ``expectation`` the score is the mean over the
    whole numbers that the model might have answered, by their probabilities. ``revision`` is a note of one's own on
    what the server runs: raise it with the model.
    """

    model: Annotated[str, Field(min_length=1)]
    revision: str | None = None
    question: Annotated[str, Field(min_length=1)] | None = None
    low: float = 0.0
    high: float = 10.0
    pattern: str | None = None
    expectation: bool = False
    max_tokens: Annotated[int, Field(ge=1, le=32_768)] = 16
    seed: int | None = 0
    parallel: Annotated[int, Field(ge=1, le=256)] = 4

    @model_validator(mode="after")
    def _scale_and_pattern_are_fit(self) -> Self:
        if not self.low < self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}: the scale must rise")
        if self.pattern is None:
            return self
        try:
            groups = re.compile(self.pattern).groups
        except re.error as error:
            raise ValueError(f"pattern {self.pattern!r} is no regular expression: {error}") from error
        if groups != 1:
            raise ValueError(f"pattern {self.pattern!r} has {groups} groups: it must have one, around the number")
        return self


class _Part(BaseModel):
    # Servers say much more than is read here.
    model_config = ConfigDict(frozen=True, extra="ignore")


class _Token(_Part):
    token: str
    logprob: float


class _TokenChoice(_Token):
    top_logprobs: tuple[_Token, ...] = ()


class _Logprobs(_Part):
    content: tuple[_TokenChoice, ...] | None = None


class _Message(_Part):
    content: str | None


class _Choice(_Part):
    message: _Message
    logprobs: _Logprobs | None = None


class _Completion(_Part):
    choices: Annotated[tuple[_Choice, ...], Field(min_length=1)]


class VlmJudge:
    """What a vision-language model answers when it is asked about each image, scaled to 0..1.

    Asked at temperature 0 with a fixed seed; a server may still answer differently from one day to the next. An answer
    that holds no number on the scale leaves the image without a score, and says so. What the server calls its model
    decides the reward's identity, as does the question; that it is the same model still cannot be seen from here.
    """

    name: ClassVar[str] = "vlm-judge"
    version: ClassVar[str] = "1"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    Options: ClassVar[type[JudgeOptions]] = JudgeOptions

    def __init__(self, options: JudgeOptions) -> None:
        self.options = options
        self._endpoint = Endpoint(options, self.name)
        self._pool = ThreadPoolExecutor(options.parallel, thread_name_prefix="judge")

    @classmethod
    def identity(cls, options: JudgeOptions) -> dict[str, JsonValue]:
        """The model and what it is asked; where it listens and how often it is asked decides nothing."""
        incidental = {*EndpointOptions.model_fields, "parallel"}
        return {"model": options.model} | options.model_dump(mode="json", exclude_defaults=True, exclude=incidental)

    def unload(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def __call__(
        self,
        images: Images,
        prompts: Sequence[str],
        metadata: Sequence[Mapping[str, JsonValue]],  # noqa: ARG002 (the interface's)
    ) -> Explained:
        """See ``Reward``.

        Raises:
            RewardError: the server refuses, or, where it is required, does not answer.
        """
        answers = list(self._pool.map(self._judged, images, prompts))
        reasons = {row: answer for row, answer in enumerate(answers) if isinstance(answer, str)}
        return Explained([math.nan if isinstance(answer, str) else answer for answer in answers], reasons)

    def _judged(self, image: Images, prompt: str) -> float | str:
        """The score of one image, or why it has none."""
        try:
            choice = self._endpoint.ask(CHAT_PATH, self._request(image, prompt), _read)
        except UnavailableError as error:
            return self._endpoint.unanswered(error)
        read = expected_number if self.options.expectation else stated_number
        value = read(choice, self.options)
        low, high = self.options.low, self.options.high
        if isinstance(value, float) and not low <= value <= high:
            return f"the answer {value:g} is not on the scale from {low:g} to {high:g}"
        return (value - low) / (high - low) if isinstance(value, float) else value

    def _request(self, image: Images, prompt: str) -> dict[str, JsonValue]:
        options = self.options
        content: list[JsonValue] = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{encode_image(image)}"}},
            # Not str.format: a question may hold other braces.
            {"type": "text", "text": (options.question or QUESTION).replace("{prompt}", prompt)},
        ]
        request: dict[str, JsonValue] = {
            "model": options.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": options.max_tokens,
        }
        if options.seed is not None:
            request["seed"] = options.seed
        if options.expectation:
            request |= {"logprobs": True, "top_logprobs": _TOP}
        return request


def stated_number(choice: _Choice, options: JudgeOptions) -> float | str:
    """The number in the last line of an answer that is not blank, or why there is none."""
    lines = [line for line in (choice.message.content or "").splitlines() if line.strip()]
    found = re.fullmatch(options.pattern or NUMBER, lines[-1], re.IGNORECASE) if lines else None
    try:
        return float(found[1] if found else "")
    except (TypeError, ValueError):
        return f"the answer ends with no number: {presentable(lines[-1] if lines else '')!r}"


def expected_number(choice: _Choice, options: JudgeOptions) -> float | str:
    """The mean of the whole numbers on the scale that stood to be said at the first place where one was said.

    Each counts by its probability among those, the 20 likeliest tokens at most; a token is a number if it is one but
    for blanks around it. Where an answer begins with anything but a number, that is passed over.
    """
    tokens = choice.logprobs.content if choice.logprobs is not None else None
    if not tokens:
        return "the server gives no probabilities: set the option expectation to false"
    for said in tokens:
        if _whole(said.token, options) is None:
            continue
        chances: dict[float, float] = {}
        for token in said.top_logprobs or (said,):
            number = _whole(token.token, options)
            if number is not None:
                chances[number] = chances.get(number, 0.0) + math.exp(token.logprob)
        total = sum(chances.values())
        if total > 0:
            return sum(number * chance for number, chance in chances.items()) / total
    return f"the answer holds no whole number on the scale: {presentable(choice.message.content or '')!r}"


def _whole(token: str, options: JudgeOptions) -> float | None:
    text = token.strip()
    if not (text.isascii() and text.isdigit()):
        return None
    return float(text) if options.low <= float(text) <= options.high else None


def _read(body: Any) -> _Choice:
    return _Completion.model_validate(body).choices[0]


REWARD = VlmJudge
