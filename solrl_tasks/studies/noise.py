"""How much of the rank that exploration sees is left when the final images are sampled with noise in the steps."""

from collections.abc import Sequence
from dataclasses import replace

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.analysis.ranks import Floats, whole_groups
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.stochastic import Stochastic
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import Call, direct
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.scores import proxy_scores
from solrl_tasks.stages.session import Session
from solrl_tasks.store.refs import Ref
from solrl_tasks.studies.rank_fidelity import precise_job


class NoisyRanks(Frozen):
    """Final images of one kind against what is known without noise: estimates over prompts.

    Attributes:
        noise: in the final images; None is none.
        explored: exploration as the proxy, with the measures of ``analysis.ranks.whole_groups``.
        noiseless: the same seeds at the same precision and steps, without noise, as the proxy.
    """

    noise: Stochastic | None
    explored: dict[str, Estimate]
    noiseless: dict[str, Estimate]
    pool: Ref


def measure_noise(
    session: Session, explored: PoolJob, noises: Sequence[Stochastic], call: Call = direct
) -> list[NoisyRanks]:
    """Whole groups sampled with each kind of noise, against exploration and against images without noise.

    Args:
        explored: prompts, seeds and exploration. Final images are sampled as the recipe regenerates, but by the
            ``euler`` sampler, of which steps without noise are.
        noises: settled for the steps of the recipe's regeneration.

    Returns:
        Without noise first, then as asked. What the store holds is used again.
    """
    precise, keep = session.recipe.regenerate, session.recipe.select.keep
    final = precise_job(explored, precise.model_copy(update={"sampler": "euler"}), precise.steps)
    proxy, plain = _scores(session, explored, call), _scores(session, final, call)
    found = []
    for noise in (None, *noises):
        job = replace(final, noise=noise)
        true = _scores(session, job, call)
        found.append(
            NoisyRanks(
                noise=noise,
                explored=whole_groups(proxy[0], true[0], keep),
                noiseless=whole_groups(plain[0], true[0], keep),
                pool=true[1],
            )
        )
    return found


def _scores(session: Session, job: PoolJob, call: Call) -> tuple[Floats, Ref]:
    outcome = call(explore, session, job)
    assert outcome.ref is not None
    session.run.note_ref(0, f"pool-{outcome.ref.key}", outcome.ref)
    return proxy_scores(job, job.open(session), job.rewards), outcome.ref
