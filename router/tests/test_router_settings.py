"""The settings: options, environment, and the sentences for what does not fit."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from hlserve_router.__main__ import main
from hlserve_router.errors import StartError
from hlserve_router.options import arguments_of, read_settings, unknown_variables
from hlserve_router.settings import Settings, flag, variable
from hlserve_router.supervisor import WORKER_VARIABLE
from hlserve_router.testing.logbook import logbook

SERVICE_LINK = "tcp://10.96.0.7:8080"


@pytest.mark.parametrize(
    ("arguments", "environment", "sentence"),
    [
        pytest.param((), {}, "Give either --table FILE or --kubernetes", id="neither a table nor a cluster"),
        pytest.param(("--table", "t", "--kubernetes"), {}, "Give either --table FILE or", id="both"),
        pytest.param(("--kubernetes", "--keyring", "k"), {}, "belong to --table", id="a keyring file beside a cluster"),
        pytest.param(("--table", "t", "--tls-cert", "c"), {}, "give both or neither", id="a certificate without a key"),
        pytest.param(
            ("--table", "t", "--cors-origin", "https://a.example/app"), {}, "--cors-origin (or HLSERVE_ROUTER_CORS_ORIGINS): "
            "'https://a.example/app' is no origin", id="an origin with a path",
        ),
        pytest.param(("--table", "t"), {"KEYRINGS": "a.json"}, "must be a JSON list", id="a list that is none"),
        pytest.param(("--table", "t"), {"PORT": "http"}, "--port (or HLSERVE_ROUTER_PORT): ", id="a port that is no number"),
        pytest.param(("--table", "t"), {"PORT": SERVICE_LINK}, "enableServiceLinks: false", id="B81 a Service hlserve-router"),
        pytest.param(
            ("--table", "t"), {"ADMIN_PORT": SERVICE_LINK}, "--admin-port (or HLSERVE_ROUTER_ADMIN_PORT): tcp://10.96.0.7:8080 comes "
            "from a Service", id="B81 a Service hlserve-router-admin",
        ),
        pytest.param(("--kubernetes",), {}, "give --kubernetes-server", id="a cluster, outside of any"),
        pytest.param(
            ("--kubernetes", "--workers", "2"), {}, "give --kubernetes-server", id="a cluster, outside of any, said once for all workers"
        ),
        pytest.param(("--table", "t"), {}, "Give at least one --keyring FILE", id="a table without keys"),
        pytest.param(("--table", "t", "--drain-seconds", "inf"), {}, "'inf' does not fit: give a number ≥ 0", id="a time without end"),
        pytest.param(("--table", "t"), {"TICK_SECONDS": "nan"}, "'nan' does not fit: give a number > 0", id="a time that is no number"),
        pytest.param(("--table", "t"), {"WORKERS": "two"}, "'two' does not fit: give a whole number ≥ 1, ≤ 64", id="a word for a number"),
        pytest.param(("--table", "t"), {"FACE": "both"}, "'both' does not fit: give one of `splice`, `asgi`", id="a wrong choice"),
        pytest.param(("--table", "t", "--host", ""), {}, "it is empty: give a value, or leave it out", id="an empty address"),
        pytest.param(("--table", "t"), {"ADMIN_TOKEN_FILE": ""}, "it is empty: give a value", id="an empty name of a file"),
        pytest.param(("--table", "t"), {"KEYRINGS": "{}"}, "'{}' does not fit: give a JSON list", id="an object for a list"),
        pytest.param(("--table", "t"), {"KEYRINGS": '[""]'}, "it is empty: give a value", id="an empty name in a list"),
        pytest.param(
            ("--table", "t", "--keyring", "k", "--limits-store", "sqlite:/"), {}, "name a file, like sqlite:", id="a folder for a database"
        ),
        pytest.param(
            ("--table", "t", "--keyring", "k", "--limits-store", "sqlite:/proc/limits.db"), {}, "--limits-store sqlite:/proc/limits.db: it "
            "cannot be used (unable to open database file): name a file that this process may write", id="a folder that takes no file",
        ),
        pytest.param(
            ("--table", "t", "--keyring", "k", "--limits-store", f"sqlite:{__file__}"), {}, "it cannot be used (file is not a database)",
            id="a file that is no database",
        ),
        pytest.param(
            ("--table", "t", "--keyring", "k", "--workers", "2", "--limits-store", f"sqlite:{__file__}"), {}, "file is not a database",
            id="a file that is no database, said once for all workers",
        ),
        pytest.param(
            ("--table", "t", "--keyring", "k", "--limits-store", "valkey://h/one"), {}, "write memory, valkey://HOST:PORT/DB",
            id="a database without a number",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_sentence_and_exit_code_2(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], environment: dict[str, str], sentence: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(f"HLSERVE_ROUTER_{name}", value)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert sentence in result.output
    assert result.output.count("\n") == 1


def test_b81_what_service_links_add_beside_the_port_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    links = {
        "SERVICE_HOST": "10.96.0.7",
        "SERVICE_PORT": "8080",
        "PORT_8080_TCP": SERVICE_LINK,
        "PORT_8080_TCP_PROTO": "tcp",
    }
    for name, value in links.items():
        monkeypatch.setenv(f"HLSERVE_ROUTER_{name}", value)
    assert read_settings({"table": Path("t")}).port == 8080
    monkeypatch.setenv("HLSERVE_ROUTER_PORT", SERVICE_LINK)
    assert read_settings({"table": Path("t"), "port": 9000}).port == 9000
    with pytest.raises(StartError, match="comes from a Service"):
        read_settings({"table": Path("t")})


NAMES = {
    "HLSERVE_ROUTER_WORKER": "HLSERVE_ROUTER_WORKER is no setting and changes nothing: did you mean HLSERVE_ROUTER_WORKERS?",
    "HLSERVE_ROUTER_DRAIN_SECOND": "did you mean HLSERVE_ROUTER_DRAIN_SECONDS?",
    "hlserve_router_keyring": "hlserve_router_keyring is no setting and changes nothing: did you mean HLSERVE_ROUTER_KEYRINGS?",
    "HLSERVE_ROUTER_COLOUR": "see hlserve-router --help",
    "HLSERVE_ROUTER_WORKERS": "",
    "hlserve_router_workers": "",
    "HLSERVE_SIM_PORT": "",
}


@pytest.mark.parametrize(("name", "words"), NAMES.items(), ids=NAMES.keys())
def test_a_variable_that_is_no_setting_is_told_with_the_nearest_that_is(name: str, words: str) -> None:
    told = list(unknown_variables({name: "2"}))
    assert len(told) == (words != "")
    assert words in "".join(told)


LINKS = [
    f"HLSERVE_ROUTER{service}_{name}"
    for service in ("", "_ADMIN", "_ADMIN_V2")
    for name in (
        "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8080_TCP", "PORT_8080_TCP_PROTO", "PORT_8080_TCP_PORT",
        "PORT_8080_TCP_ADDR", "PORT_53_UDP", "PORT_9_SCTP_ADDR",
    )
]  # fmt: skip


def test_b81_service_links_are_not_told() -> None:
    assert list(unknown_variables(dict.fromkeys(LINKS, "10.96.0.7"))) == []
    assert list(unknown_variables({"HLSERVE_ROUTER_ADMIN_V2_PORT": SERVICE_LINK})) == []


@pytest.mark.parametrize("worker", [False, True], ids=["who is started by hand", "a worker, whose parent told it"])
def test_an_unknown_variable_is_in_the_log_of(monkeypatch: pytest.MonkeyPatch, worker: bool) -> None:
    monkeypatch.setenv("HLSERVE_ROUTER_TLS_CRT", "x")
    if worker:
        monkeypatch.setenv(WORKER_VARIABLE, "1")
    with logbook():
        result = CliRunner().invoke(main, ["--table", "t"])
    assert result.exit_code == 2
    assert ("did you mean HLSERVE_ROUTER_TLS_CERT?" in result.output) is not worker


def test_every_setting_has_an_option_and_a_variable() -> None:
    options = {option for each in main.params if isinstance(each, click.Option) for option in each.opts}
    assert options == {flag(name) for name in Settings.model_fields} | {"--version"}
    assert (flag("keyrings"), variable("keyrings")) == ("--keyring", "HLSERVE_ROUTER_KEYRINGS")


def test_workers_get_the_settings_of_the_command_line_and_inherit_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A password in the address of a store must not get from the environment into a list of processes."""
    monkeypatch.setenv("HLSERVE_ROUTER_LIMITS_STORE", "valkey://:secret@store:6379/0")
    given = {
        "table": Path("t"), "keyrings": (Path("a"), Path("b")), "workers": 3, "cors_origins": ("https://a.example",),
        "log_level": "debug", "tls_cert": Path("c"), "tls_key": Path("k"), "body_max_bytes": 1234, "session_idle_seconds": 0.0,
    }  # fmt: skip
    settings = read_settings(given)
    seen: list[Settings] = []

    @click.command()
    def again(**options: object) -> None:
        seen.append(read_settings(options))

    again.params = [each for each in main.params if each.name != "version"]
    arguments = arguments_of(settings, given.keys())
    result = CliRunner().invoke(again, arguments)
    assert result.output == ""
    assert seen == [settings]
    assert "secret" not in " ".join(arguments)
