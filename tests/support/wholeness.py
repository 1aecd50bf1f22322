"""Whether everything that a run refers to is in the store, read and verified, not only noted."""

from pathlib import Path

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.stages.iteration import step_intact
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.evaluations import load_evaluation
from solrl_tasks.store.policies import load_policy
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.store.samples import Samples
from solrl_tasks.store.selections import load_selection


def check_whole(root: Path | str, run_id: str, recipe: Recipe) -> None:
    """Every object of every committed step is there and holds what its reference says, and references are noted.

    Raises:
        StoreError or AssertionError: something is not.
    """
    store = Store.open(root, create=False)
    view = view_run(store, run_id)
    for step, raw in view.summaries().items():
        for name, content in raw["refs"].items():
            ref = Ref.model_validate(content)
            assert _read_again(store, name, ref, recipe) == ref
            assert view.refs(step)[name] == ref
    with open_session(root, run_id, recipe) as session:
        assert all(step_intact(session, step) for step in view.summaries())
        assert session.worker.counters.loads == 0


def _read_again(store: Store, name: str, ref: Ref, recipe: Recipe) -> Ref:
    rewards = [reward_id(make_reward(reward)) for reward in recipe.rewards]
    match ref.kind:
        case "pools":
            candidates = recipe.evaluate.seeds if name == "evaluate_pool" else recipe.explore.candidates
            return Pool.load(store, ref).ref(rewards, candidates)
        case "samples":
            return Samples.load(store, ref).ref(rewards)
        case "selections":
            return load_selection(store, ref).ref
        case "policies":
            return load_policy(store, ref).ref
        case "evaluations":
            return load_evaluation(store, ref).ref
