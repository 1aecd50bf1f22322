"""The study of noise: exact without it, worse with it, and paid for once."""

import math

from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.studies.noise import measure_noise
from solrl_tasks.studies.rank_fidelity import held_out_job


def noise(eta):
    return Stochastic(step="flow-sde", eta=eta, window=Window(size=2, start=0, stop=2))


def test_noise_costs_ranks_and_a_study_is_paid_for_once(opened):
    with opened("study", explore__engine={"name": "bf16"}, explore__candidates=12) as session:
        explored = held_out_job(session, 2)
        plain, little, much = measure_noise(session, explored, [noise(1e-4), noise(1.4)])
        done = session.worker.counters.forwards
        again = measure_noise(session, explored, [noise(1.4)])
        assert session.worker.counters.forwards == done
    assert again[1] == much
    assert plain.noise is None
    assert plain.noiseless["spearman"].mean == 1.0
    assert little.noiseless["spearman"].mean > 0.9
    assert much.noiseless["spearman"].mean < little.noiseless["spearman"].mean
    assert len({one.pool.key for one in (plain, little, much)}) == 3
    assert all(math.isfinite(one.explored["spearman"].mean) for one in (plain, little, much))
