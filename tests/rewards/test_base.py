import importlib
import math
import sys
import textwrap

import numpy as np
import pytest
import torch

from solrl_tasks.config.extensions import UnknownExtensionError
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.base import NamedReward, RewardError, reward_id
from solrl_tasks.rewards.scoring import make_reward

OWN = """
from pydantic import Field
from solrl_tasks.config.base import Frozen

LOADED = []

def length(images, prompts, metadata):
    return [float(len(text)) for text in prompts]

def versioned(images, prompts, metadata):
    return [0.0] * len(images)

versioned.version = "7"
versioned.range = (0, 1)

class Options(Frozen):
    power: float = Field(1.0, gt=0)

class Powered:
    version = "2"
    Options = Options

    def __init__(self, options):
        LOADED.append(options.power)
        self.power = options.power

    def __call__(self, images, prompts, metadata):
        return [len(text) ** self.power for text in prompts]

class Broken:
    version = "1"

    def __init__(self):
        raise OSError("no weights here")

    def __call__(self, images, prompts, metadata):
        return []

class NoCall:
    version = "1"

number = 3
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module of rewards; calling it with other text makes a new version of it."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text=OWN, name="own_rewards"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(text))
        importlib.invalidate_caches()
        return name

    write()
    yield write
    for name in ("own_rewards", "edited_rewards", "commented_rewards"):
        sys.modules.pop(name, None)


def call(reward, *prompts):
    return reward(np.zeros((len(prompts), 2, 2, 3), dtype=np.uint8), prompts, [{}] * len(prompts))


def test_the_projects_own_reward_is_found_by_name():
    reward = make_reward(RewardSpec(name="colourfulness"))
    assert reward_id(reward) == "colourfulness@1"
    assert reward.range[0] == 0
    assert call(reward, "anything") == [0.0]


def test_a_plain_function_is_a_reward(own):
    reward = make_reward(RewardSpec(name="own_rewards:length"))
    assert reward.name == "own_rewards:length"
    assert reward.version.startswith("src-")
    assert reward.range == (-math.inf, math.inf)
    assert call(reward, "a", "bcd") == [1.0, 3.0]


def test_an_unversioned_function_changes_its_version_with_its_own_source(own):
    before = make_reward(RewardSpec(name="own_rewards:length")).version
    own(OWN.replace("LOADED = []", "LOADED = []  # elsewhere"), "commented_rewards")
    own(OWN.replace("float(len(text))", "-float(len(text))"), "edited_rewards")
    assert make_reward(RewardSpec(name="commented_rewards:length")).version == before
    assert make_reward(RewardSpec(name="edited_rewards:length")).version != before


def test_a_declared_version_and_range_are_taken(own):
    reward = make_reward(RewardSpec(name="own_rewards:versioned"))
    assert reward_id(reward) == "own_rewards:versioned@7"
    assert reward.range == (0.0, 1.0)


def test_options_that_change_values_change_the_version(own):
    plain, same, squared = (
        make_reward(RewardSpec(name="own_rewards:Powered", options=options))
        for options in ({}, {"power": 1.0}, {"power": 2.0})
    )
    assert plain.version == same.version == "2"
    assert squared.version.startswith("2+")
    assert call(squared, "abc") == [9.0]


def test_identity_is_known_without_setting_the_reward_up(own):
    reward = make_reward(RewardSpec(name="own_rewards:Powered", options={"power": 3.0}))
    reward_id(reward)
    loaded = importlib.import_module("own_rewards").LOADED
    assert loaded == []
    call(reward, "a")
    call(reward, "b")
    assert loaded == [3.0]


def test_a_reward_that_cannot_be_set_up_says_so(own):
    reward = make_reward(RewardSpec(name="own_rewards:Broken"))
    with pytest.raises(RewardError, match="'own_rewards:Broken' cannot be set up: OSError: no weights here"):
        reward.prepare()


@pytest.mark.parametrize("attribute", ["NoCall", "number"])
def test_what_cannot_be_called_is_refused(own, attribute):
    with pytest.raises(RewardError, match="which cannot be called: a reward is a function of"):
        make_reward(RewardSpec(name=f"own_rewards:{attribute}"))


def test_refusals_name_the_reward_and_what_is_allowed(own):
    with pytest.raises(ValueError, match=r"options refused \(power"):
        make_reward(RewardSpec(name="own_rewards:Powered", options={"power": -1.0}))
    with pytest.raises(ValueError, match="takes no options"):
        make_reward(RewardSpec(name="own_rewards:length", options={"power": 1.0}))
    with pytest.raises(UnknownExtensionError, match=r"there is .*colourfulness"):
        make_reward(RewardSpec(name="colorfulness"))
    with pytest.raises(RewardError, match=r'set its attribute version, such as len\.version = "1"'):
        make_reward(RewardSpec(name="builtins:len"))


@pytest.mark.parametrize(
    ("name", "version"), [("a/b", "1"), ("../a", "1"), ("a@b", "1"), ("", "1"), ("a", "1 beta"), ("a", "")]
)
def test_names_that_no_file_can_have_are_refused(name, version):
    with pytest.raises(RewardError, match="cannot use in a file name"):
        NamedReward(name, version, (0, 1), lambda: lambda *_: [])


WEIGHTS = """
CALLS = []

class Heavy:
    version = "1"

    def __init__(self, device):
        self.device = device
        self.loaded = False

    def load(self):
        CALLS.append(("load", str(self.device), self.loaded))
        self.loaded = True

    def memory(self):
        return 100 if self.loaded else 0

    def unload(self):
        self.loaded = False

    def __call__(self, images, prompts, metadata):
        assert self.loaded
        return [1.0] * len(images)
"""


def test_a_class_with_weights_gets_the_device_and_gives_memory_back(own):
    own(WEIGHTS, "edited_rewards")
    reward = make_reward(RewardSpec(name="edited_rewards:Heavy"), torch.device("meta"))
    reward.unload()
    assert reward.memory() == 0
    assert call(reward, "a") == [1.0]
    assert reward.memory() == 100
    reward.unload()
    assert reward.memory() == 0
    assert call(reward, "a") == [1.0]
    calls = importlib.import_module("edited_rewards").CALLS
    assert calls == [("load", "meta", False), ("load", "meta", False)]


def test_without_a_device_weights_go_to_the_cpu_and_the_identity_is_the_same(own):
    own(WEIGHTS, "edited_rewards")
    plain = make_reward(RewardSpec(name="edited_rewards:Heavy"))
    assert reward_id(plain) == reward_id(make_reward(RewardSpec(name="edited_rewards:Heavy"), torch.device("meta")))
    call(plain, "a")
    assert importlib.import_module("edited_rewards").CALLS[0][1] == "cpu"


def test_what_has_no_weights_holds_no_memory(own):
    for name in ("own_rewards:length", "colourfulness"):
        reward = make_reward(RewardSpec(name=name), torch.device("meta"))
        call(reward, "a")
        reward.unload()
        assert reward.memory() == 0


def test_a_class_says_which_options_decide_scores(own):
    own(
        """
        from solrl_tasks.config.base import Frozen

        class Options(Frozen):
            url: str = "here"
            model: str = "small"

        class Remote:
            version = "1"
            Options = Options

            @classmethod
            def identity(cls, options):
                return {"model": options.model} if options.model != "small" else {}

            def __call__(self, images, prompts, metadata):
                return [0.0] * len(images)
        """,
        "edited_rewards",
    )
    plain, elsewhere, large = (
        make_reward(RewardSpec(name="edited_rewards:Remote", options=options)).version
        for options in ({}, {"url": "there"}, {"model": "large"})
    )
    assert plain == elsewhere == "1"
    assert large.startswith("1+")


def test_one_extension_can_stand_under_several_labels(own):
    plain = make_reward(RewardSpec(name="own_rewards:Powered", options={"power": 2.0}))
    first, second, other = (
        make_reward(RewardSpec(name=name, use=use, options=options))
        for name, use, options in (
            ("squares", "own_rewards:Powered", {"power": 2.0}),
            ("cubes", "own_rewards:Powered", {"power": 3.0}),
            ("squares", "own_rewards:versioned", {}),
        )
    )
    assert (first.name, second.name) == ("squares", "cubes")
    assert (call(first, "abc"), call(second, "abc")) == ([9.0], [27.0])
    assert len({first.version, second.version, other.version, plain.version}) == 4
    with pytest.raises(UnknownExtensionError, match="'nothing'"):
        make_reward(RewardSpec(name="squares", use="nothing"))
