"""Does the image show exactly the objects that are asked for? All or nothing, as GenEval counts."""

from typing import ClassVar

from solrl_tasks.rewards.composition import Composition


class CompositionStrict(Composition):
    """1 where every object, count, colour and position is right, else 0; meant for evaluation.

    A recipe with the partial reward and this one, with equal options, looks at each image once.
    """

    name: ClassVar[str] = "composition-strict"
    version: ClassVar[str] = "1"
    strict: ClassVar[bool] = True


REWARD = CompositionStrict
