"""``solrl reward``: a reward in a process of its own."""

import json
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.console import say
from flows.errors import UserError

if TYPE_CHECKING:
    from solrl_tasks.config.recipe import RewardSpec

app = typer.Typer(help="Serve a reward to runs elsewhere.", no_args_is_help=True)
MEBIBYTE = 2**20


@app.callback()
def about() -> None:
    """Serve a reward to runs elsewhere."""


@app.command()
def serve(
    name: Annotated[str, typer.Argument(help="A reward, or module:function.")],
    options: Annotated[str, typer.Option("--options", help="The reward's options, as JSON.")] = "{}",
    host: Annotated[str, typer.Option("--host", help="Address to listen on; others than loopback need a token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option("--port", min=1, max=65_535, help="Port to listen on.")] = 8710,
    token_env: Annotated[
        str | None, typer.Option("--token-env", help="Environment variable with the token that clients must bring.")
    ] = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:N.  [default: cuda where there is one]")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", help="A name that requests may come under, besides loopback's; others get 421."),
    ] = None,
    batch: Annotated[int, typer.Option("--batch", min=1, help="Most images of one request.")] = 64,
    max_mb: Annotated[int, typer.Option("--max-mb", min=1, help="Most MiB of one request.")] = 256,
) -> None:
    """Serve a reward over HTTP, for the reward remote of a recipe. Ends with Ctrl-C."""
    from flows.reward_server import Limits, address_of, bracketed, known_names, require_token, serve
    from solrl_tasks.rewards.scoring import make_reward

    token = _token(token_env)
    require_token(host, token)
    allowed = tuple(allow_host or ())
    known_names(host, allowed)
    reward = make_reward(_spec(name, options), _device(device))
    reward.prepare()
    recipe = {"url": address_of(host, port, allowed), "reward": reward.name, "version": reward.version}
    if token_env is not None:
        recipe["token_env"] = token_env
    say(f"Serving {reward.name}, version {reward.version}, at http://{bracketed(host)}:{port}. In a recipe:")
    say(f"  - {{name: remote, options: {json.dumps(recipe)}}}")
    serve(reward, host, port, token, Limits(batch=batch, body=max_mb * MEBIBYTE), allowed)


def _token(variable: str | None) -> str | None:
    if variable is None:
        return None
    token = os.environ.get(variable, "")
    if not token:
        raise UserError(f"--token-env {variable}: this environment variable is not set: put the token into it")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise UserError(f"--token-env {variable}: what it holds is no token: it has blanks or unusual characters")
    return token


def _spec(name: str, options: str) -> "RewardSpec":
    from solrl_tasks.config.recipe import RewardSpec

    try:
        parsed: Any = json.loads(options)
    except ValueError as error:
        raise UserError(f"--options {options!r} is no JSON: {error}; give for instance '{{\"batch\": 4}}'") from error
    if not isinstance(parsed, dict):
        raise UserError(f"--options {options!r} must be a JSON object, such as '{{\"batch\": 4}}'")
    return RewardSpec(name=name, options=parsed)


def _device(name: str | None) -> Any:
    import torch

    from solrl_tasks.workers.numerics import default_device

    if name is None:
        return default_device()
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name!r} is no device: name cpu, cuda or cuda:N") from error
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: there are {torch.cuda.device_count()} CUDA devices here")
    return device
