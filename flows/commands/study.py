"""``solrl study``: questions asked of pools and runs; each command is a module of its own."""

import typer

app = typer.Typer(help="Ask a question of pools and runs; what is there already is not paid for again.")


@app.callback()
def study() -> None:
    """Ask a question of pools and runs; what is there already is not paid for again."""
