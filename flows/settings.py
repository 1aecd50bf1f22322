"""Where a run writes and which servers it speaks to."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal, Self
from urllib.parse import urlsplit

from flows.errors import UserError
from solrl_tasks.config.base import Frozen
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.places import place_of
from solrl_tasks.tracking import telemetry

LOOPBACK: Final = "127.0.0.1"
PREFECT_PORT: Final = 4200
MLFLOW_PORT: Final = 5000
DEFAULT_CONFIG: Final = "configs/embedded.yaml"
PROJECT: Final = Path(__file__).resolve().parent.parent

Origin = Literal["default", "option", "environment"]


class Address(Frozen):
    """A server's address and who chose it. ``chosen_by`` is the option or variable, for messages."""

    url: str
    origin: Origin
    chosen_by: str

    @property
    def is_http(self) -> bool:
        """Whether a server stands behind it, rather than a database file."""
        return urlsplit(self.url).scheme in ("http", "https")

    @property
    def is_local(self) -> bool:
        """Whether it names this machine's loopback interface, so that a server may be started there."""
        return self.is_http and urlsplit(self.url).hostname in (LOOPBACK, "localhost", "::1")

    @property
    def port(self) -> int:
        """The port of an HTTP address."""
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "https" else 80)


class Settings(Frozen):
    """Everything the command line and the flows must agree on.

    ``home`` is absolute and holds all that is written: ``store``, ``prefect`` and ``mlflow``. ``store_url`` is where
    the store is instead, a folder or ``s3://bucket/prefix``; empty where it is in the home.
    """

    home: Path
    store_url: str = ""
    prefect: Address
    mlflow: Address
    prefect_home: Path

    @classmethod
    def read(
        cls,
        home: Path | None = None,
        prefect_port: int | None = None,
        mlflow_port: int | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Self:
        """The settings in force: options first, then the environment, then the defaults.

        Args:
            home: SOLRL_HOME by option. The store within gives way to SOLRL_STORE.
            prefect_port, mlflow_port: ports by option.
            environ: the environment, by default the process's own.

        Raises:
            UserError: a port or an address is not usable; the message names the variable.
        """
        env = os.environ if environ is None else environ
        root = (home or Path(env.get("SOLRL_HOME") or ".solrl")).expanduser().absolute()
        prefect = _address(
            "--prefect-port",
            prefect_port,
            "SOLRL_PREFECT_PORT",
            ("PREFECT_API_URL",),
            env,
            "/api",
            PREFECT_PORT,
        )
        mlflow = _address(
            "--mlflow-port",
            mlflow_port,
            "SOLRL_MLFLOW_PORT",
            ("SOLRL_MLFLOW_URL", "MLFLOW_TRACKING_URI"),
            env,
            "",
            MLFLOW_PORT,
        )
        if not prefect.is_http:
            raise UserError(
                f"{prefect.chosen_by} is {prefect.url!r}: a Prefect API has an address such as "
                f"http://{LOOPBACK}:{PREFECT_PORT}/api"
            )
        # A server elsewhere may need the key that the user's own profile holds.
        prefect_home = root / "prefect" if prefect.is_local else Path.home() / ".prefect"
        return cls(
            home=root,
            store_url=_store_url(env.get("SOLRL_STORE", "").strip()),
            prefect=prefect,
            mlflow=mlflow,
            prefect_home=Path(env.get("PREFECT_HOME") or prefect_home),
        )

    @property
    def store_root(self) -> Place:
        """The root of the store: pools, samples, policies, runs."""
        return place_of(self.store_url or self.home / "store")

    @property
    def logs(self) -> Path:
        """The folder of the logs of the servers that were started."""
        return self.home / "logs"

    def environment(self) -> dict[str, str]:
        """The variables that put these settings in force, here and in children, and report nothing home."""
        return {
            **telemetry.SETTINGS,
            "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
            "SOLRL_HOME": str(self.home),
            **({"SOLRL_STORE": self.store_url} if self.store_url else {}),
            "PREFECT_HOME": str(self.prefect_home),
            "PREFECT_API_URL": self.prefect.url,
            "MLFLOW_TRACKING_URI": self.mlflow.url,
        }

    def apply(self) -> None:
        """Put :meth:`environment` in force in this process. Call it before Prefect or MLflow is imported.

        Raises:
            UserError: where the home is to be, something else is.
        """
        try:
            self.home.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise UserError(
                f"{self.home} cannot be the home: it, or what it is to lie in, is a file or a link to nothing. Name a "
                "folder with --home or SOLRL_HOME"
            ) from error
        os.environ.update(self.environment())


def _address(
    option: str,
    port: int | None,
    port_variable: str,
    url_variables: tuple[str, ...],
    env: Mapping[str, str],
    path: str,
    default: int,
) -> Address:
    if port is not None:
        return Address(url=_local(port, path, option), origin="option", chosen_by=option)
    if env.get(port_variable):
        return Address(
            url=_local(env[port_variable], path, port_variable), origin="environment", chosen_by=port_variable
        )
    for variable in url_variables:
        if env.get(variable):
            return _given(env[variable], variable, _local(default, path, ""))
    return Address(url=_local(default, path, option), origin="default", chosen_by="the default")


def _store_url(given: str) -> str:
    try:
        place = place_of(given) if given else None
    except StoreError as error:
        raise UserError(f"SOLRL_STORE: {error}") from error
    if place is None:
        return ""
    return str(place.expanduser().absolute() if isinstance(place, Path) else place)


def _given(url: str, variable: str, usual: str) -> Address:
    url = url.rstrip("/")
    address = Address(url=url, origin="default" if url == usual else "environment", chosen_by=variable)
    try:
        parts = urlsplit(url)
        usable = bool(parts.scheme) and (not address.is_http or bool(parts.hostname)) and address.port > 0
    except ValueError:
        usable = False
    if not usable:
        raise UserError(f"{variable} is {url!r}, which is no address: expected something like {usual}")
    return address


def _local(port: int | str, path: str, chosen_by: str) -> str:
    try:
        number = int(port)
    except ValueError:
        number = 0
    if not 1 <= number <= 65535:
        raise UserError(f"{chosen_by} is {port!r}: a port is a whole number from 1 to 65535")
    return f"http://{LOOPBACK}:{number}{path}"


def find_config(name: str | Path) -> Path:
    """A recipe by the path given, from the current directory or else from the project's folder.

    A path that exists in neither is returned as it is: reading it then says so.
    """
    path = Path(name).expanduser()
    if path.exists() or path.is_absolute():
        return path
    own = PROJECT / path
    return own if own.exists() else path


def profile_url(environ: Mapping[str, str] | None = None) -> tuple[str, str] | None:
    """The name and API URL of the user's active Prefect profile, where it names one.

    Prefect's own loader is not used: it takes seconds to import and writes a profile file of its own.
    """
    env = os.environ if environ is None else environ
    folder = Path(env.get("PREFECT_HOME") or Path.home() / ".prefect")
    path = Path(env.get("PREFECT_PROFILES_PATH") or folder / "profiles.toml")
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        return None
    name = env.get("PREFECT_PROFILE") or tree.get("active")
    profiles = tree.get("profiles", {})
    profile = profiles.get(name, {}) if isinstance(profiles, dict) else {}
    url = profile.get("PREFECT_API_URL") if isinstance(profile, dict) else None
    return (str(name), str(url)) if url else None
