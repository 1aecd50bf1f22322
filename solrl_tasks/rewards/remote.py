"""A reward that another process computes, perhaps in an environment or on a machine of its own."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, ClassVar

from pydantic import Field, JsonValue

from solrl_tasks.config.words import counted
from solrl_tasks.rewards.base import Explained, Images, RewardError, presentable
from solrl_tasks.rewards.endpoint import Endpoint, EndpointOptions, UnavailableError
from solrl_tasks.rewards.protocol import (
    IDENTITY_PATH,
    SCORE_PATH,
    IdentityAnswer,
    ScoreAnswer,
    ScoreRequest,
    encode_image,
    read_identity,
    read_score,
)


class RemoteOptions(EndpointOptions):
    """A server that speaks the protocol, and what it is to serve.

    ``reward`` is the name there. ``version`` is the one that is expected; None asks the server once and keeps to what
    it says. ``batch`` images go into one request.
    """

    reward: Annotated[str, Field(min_length=1)]
    version: Annotated[str, Field(min_length=1)] | None = None
    batch: Annotated[int, Field(ge=1, le=1024)] = 16


class Remote:
    """Scores from a server, such as ``solrl reward serve``.

    Scores belong to the reward's name and version on the server, wherever it runs: a server that changes its version is
    an error, as its scores must not be mixed with those before. See ``endpoint`` for what is tried again.
    """

    name: ClassVar[str] = "remote"
    version: ClassVar[str] = "1"
    range: ClassVar[tuple[float, float]] = (-math.inf, math.inf)
    Options: ClassVar[type[RemoteOptions]] = RemoteOptions

    def __init__(self, options: RemoteOptions) -> None:
        self.options = options
        self._endpoint = Endpoint(options, options.reward)
        self._expected = expected_version(options)

    @classmethod
    def identity(cls, options: RemoteOptions) -> dict[str, JsonValue]:
        """Name and version on the server; where it listens and how it is asked decides nothing.

        Raises:
            RewardError: the options name no version, and the server cannot be asked.
        """
        return {"reward": options.reward, "version": expected_version(options)}

    def unload(self) -> None:
        """Close the connections."""
        self._endpoint.close()

    def __call__(
        self, images: Images, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> Explained:
        """See ``Reward``.

        Raises:
            RewardError: the server refuses, answers with a wrong number of scores or another version, or, where it is
                required, does not answer.
        """
        scores: list[float] = []
        reasons: dict[int, str] = {}
        size = self.options.batch
        for start in range(0, len(images), size):
            rows = slice(start, start + size)
            try:
                answer = self._score(images[rows], prompts[rows], metadata[rows])
            except UnavailableError as error:
                # The rest is not asked for: it would only wait as long again.
                missing, reason = range(start, len(images)), self._endpoint.unanswered(error)
                return Explained([*scores, *[math.nan] * len(missing)], reasons | dict.fromkeys(missing, reason))
            scores += answer.values()
            reasons |= {start + row: self._endpoint.repeated(why) for row, why in answer.failures.items()}
        return Explained(scores, reasons)

    def _score(
        self, images: Images, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> ScoreAnswer:
        request = ScoreRequest(
            reward=self.options.reward,
            version=self._expected,
            images=tuple(encode_image(image) for image in images),
            prompts=tuple(prompts),
            metadata=tuple(dict(item) for item in metadata),
        )
        answer = self._endpoint.ask(SCORE_PATH, request.model_dump(mode="json"), read_score)
        _require_reward(self.options, answer.reward)
        where = f"reward {self.options.reward!r} at {self.options.url}"
        if answer.version != self._expected:
            found = self._endpoint.repeated(answer.version)
            raise RewardError(
                f"{where} is of version {found!r} now, but scores of version {self._expected!r} are expected: "
                "start the server with that version again, or begin another run (with the option version, if it is set)"
            )
        if len(answer.scores) != len(images):
            raise RewardError(
                f"{where} answered {counted(len(answer.scores), 'score')} for {counted(len(images), 'image')}: it "
                "must answer one each"
            )
        return answer


def expected_version(options: RemoteOptions) -> str:
    """The version that the options name, or else what the server says when it is asked for the first time.

    Raises:
        RewardError: the server does not say, or serves another reward.
    """
    return options.version or _asked(options).version


@cache
def _asked(options: RemoteOptions) -> IdentityAnswer:
    """Once a process: a server that changes meanwhile is found out by its answers."""
    reward = options.reward
    endpoint = Endpoint(options, reward)
    try:
        answer = endpoint.ask(IDENTITY_PATH, None, read_identity)
    except UnavailableError as error:
        raise RewardError(
            f"the version of reward {reward!r} is not in the recipe, and {error}: start its server, or set the option "
            "version"
        ) from error
    finally:
        endpoint.close()
    _require_reward(options, answer.reward)
    return answer


def _require_reward(options: RemoteOptions, found: str) -> None:
    if found != options.reward:
        raise RewardError(
            f"{options.url} serves the reward {presentable(found)!r}, not {options.reward!r}: check url and reward"
        )


REWARD = Remote
