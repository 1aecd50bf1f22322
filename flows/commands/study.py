"""``solrl study``: questions asked of pools and runs; each command is a module of its own."""

import typer

from flows.commands.stopping import goes_on
from flows.commands.study_arms import ablation, controls
from flows.commands.study_ranks import rank_fidelity
from flows.commands.study_theory import cost_split, theory

app = typer.Typer(help="Ask a question of pools and runs; what is there already is not paid for again.")


@app.callback()
def study() -> None:
    """Ask a question of pools and runs; what is there already is not paid for again."""


app.command()(goes_on(rank_fidelity))
app.command()(goes_on(controls))
app.command()(goes_on(ablation))
app.command()(goes_on(theory))
app.command()(cost_split)
