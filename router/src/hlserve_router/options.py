"""The command line of the settings: one option for each, and the way back, for processes that are started with the same."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, get_args, get_origin

import click
from pydantic import ValidationError
from pydantic_settings import SettingsError

from hlserve_router.errors import StartError
from hlserve_router.settings import VARIABLE_PREFIX, Settings, flag, variable

_SERVICE_LINK: Final = re.compile(r".*(_SERVICE_(HOST|PORT)(_.*)?|_PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_LINK_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://.*", re.IGNORECASE)
"""What Kubernetes puts into a pod's environment for each Service of its namespace, which may have the router's name."""

Command = Callable[..., None]


def with_options(command: Command) -> Command:
    """Gives `command` an option for every setting."""
    for name, field in reversed(Settings.model_fields.items()):
        kind, many = kind_of(field.annotation)
        shown: dict[str, Any] = {"is_flag": True} if kind is bool else {"type": _click_type(kind), "multiple": many}
        unset = () if many else None
        known = "" if field.default in (None, (), False) else f"  [default: {default_of(field.default)}]"
        command = click.option(flag(name), name, default=unset, help=f"{field.description}{known}", **shown)(command)
    return command


def kind_of(annotation: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several."""
    if get_origin(annotation) is tuple:
        return get_args(annotation)[0], True
    if get_origin(annotation) is UnionType:
        return next(kind for kind in get_args(annotation) if kind is not NoneType), False
    return annotation, False


def values_of(name: str) -> str:
    """The values that the setting `name` may have, in words."""
    field = Settings.model_fields[name]
    kind, many = kind_of(field.annotation)
    repeated = ", repeated" if many else ""
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind)) + repeated
    words = {Path: "file", str: "text", bool: "yes or no", int: "whole number", float: "number"}[kind]
    limits = []
    for bound in field.metadata:
        for attribute, sign in (("gt", ">"), ("ge", "≥"), ("lt", "<"), ("le", "≤")):
            value = getattr(bound, attribute, None)
            if value is not None:
                limits.append(f"{sign} {value:g}")
    return f"{words} {', '.join(limits)}".strip() + repeated


def _wanted(name: str) -> str:
    """The values of a setting, as a sentence asks for them."""
    values = values_of(name)
    if values.endswith("repeated"):
        return 'a JSON list of texts, like ["one", "two"]'
    article = {"number": "a ", "whole": "a ", "file": "a ", "yes": "", "text": ""}
    return article.get(values.split()[0], "one of ") + values


def default_of(value: object) -> str:
    """A default as it is shown to people."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else f"{value}"


def _click_type(kind: Any) -> Any:
    if get_origin(kind) is Literal:
        return click.Choice(get_args(kind))
    return click.Path(path_type=Path) if kind is Path else kind


def read_settings(given: dict[str, Any]) -> Settings:
    """The settings of these options and the environment. Raises StartError, in one sentence."""
    try:
        return Settings(**given_of(given))
    except ValidationError as error:
        first = error.errors()[0]
        ours = first["type"] == "value_error"
        sentence = first["msg"].removeprefix("Value error, ").rstrip(".")
        if not first["loc"]:
            raise StartError(f"{sentence}.") from error
        name = str(first["loc"][0])
        if not ours:
            sentence = f"{str(first['input'])[:64]!r} does not fit: give {_wanted(name)}"
        raise StartError(f"{flag(name)} (or {variable(name)}): {sentence}.") from error
    except SettingsError as error:  # a list that is no JSON
        name = next((name for name in Settings.model_fields if f'"{name}"' in str(error)), "")
        where = f"{flag(name)} (or {variable(name)})" if name else "The environment"
        raise StartError(f'{where}: the variable must be a JSON list, like ["one", "two"].') from error


def arguments_of(settings: Settings, names: Collection[str]) -> list[str]:
    """The command line that gives these settings again: those named, which are those that a command line gave.

    What came from the environment stays there: a process inherits it, and nobody sees it in a list of processes.
    """
    arguments: list[str] = []
    for name in Settings.model_fields:
        value = getattr(settings, name)
        if name not in names or value is None or value is False:
            continue
        if value is True:
            arguments.append(flag(name))
            continue
        for each in value if isinstance(value, tuple) else (value,):
            arguments += [flag(name), str(each)]
    return arguments


def given_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None and value != ()}


def unknown_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable that is named like a setting and is none: with a slip in its name it would change nothing."""
    known = {name.upper() for name in Settings.model_fields}
    for given, value in sorted(environment.items()):
        name = given.upper()
        setting = name.removeprefix(VARIABLE_PREFIX)
        if setting == name or setting in known:
            continue
        if _SERVICE_LINK.fullmatch(name) or _LINK_ADDRESS.fullmatch(value):
            continue
        near = get_close_matches(setting, known, 1)
        advice = f"did you mean {variable(near[0])}?" if near else "see hlserve-router --help for those that there are."
        yield f"{given} is no setting and changes nothing: {advice}"
