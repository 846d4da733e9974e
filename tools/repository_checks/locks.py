"""Checks of locks/: they satisfy what the members ask for, and every pin has a hash."""

import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel

from repository_checks.tree import DISTRIBUTIONS, MEMBERS, Tree

LOCKS: Mapping[str, tuple[str, ...]] = {
    "locks/dev.txt": MEMBERS,
    "locks/router.txt": ("router", "crds"),
    "locks/operator.txt": ("operator", "capacity", "crds"),
    "locks/sim.txt": ("engine-image/sim", "capacity", "crds"),
}
"""Each lock and the members whose third-party dependencies it holds."""

_GROUPS = re.compile(r"client-(?P<name>[a-z0-9-]+)")
"""Dependency groups of real clients: each has a lock of its own, locks/clients-<name>.txt."""

Pins = Mapping[str, Sequence[Version]]


class _Project(BaseModel):
    """The part of a pyproject.toml's [project] that the checks read."""

    name: str
    version: str
    dependencies: list[str] = []


def locks_satisfy_members(tree: Tree) -> list[str]:
    """Every third-party dependency of a lock's members is pinned in it, within the range that the member gives."""
    problems = []
    for lock, members in LOCKS.items():
        if lock not in tree.files:
            problems.append(f"{lock} is missing. Run: make lock.")
            continue
        pins = parse_pins(tree.text(lock))
        wanted = [(folder, r) for folder in members for r in _dependencies(tree, folder)]
        if lock == "locks/dev.txt":
            wanted += [("the dev group", r) for r in _group(tree, "dev")]
        problems += [f"{lock}: {problem}" for folder, r in wanted for problem in unmet(folder, r, pins)]
    for group, lock in _client_locks(tree).items():
        if lock not in tree.files:
            problems.append(f"{lock} is missing. Run: make lock.")
            continue
        pins = parse_pins(tree.text(lock))
        problems += [
            f"{lock}: {problem}" for r in _group(tree, group) for problem in unmet(f"the group {group}", r, pins)
        ]
    return problems


def pins_have_hashes(tree: Tree) -> list[str]:
    """pip's --require-hashes would refuse the lock otherwise."""
    problems = []
    for lock in (*LOCKS, *_client_locks(tree).values()):
        if lock in tree.files:
            entries = re.split(r"\n(?=\S)", tree.text(lock).strip())
            problems += [
                f"{lock}: {entry.splitlines()[0].split()[0]} has no hash. Run: make lock."
                for entry in entries
                if "--hash=sha256:" not in entry
            ]
    return problems


def versions_are_equal(tree: Tree) -> list[str]:
    """All distributions carry one version, ask for each other by it, and the changelog names it."""
    projects = {folder: _project(tree, folder) for folder in DISTRIBUTIONS}
    version = projects[MEMBERS[0]].version
    problems = [
        f"{folder} has version {project.version}, {MEMBERS[0]} has {version}. Make them equal."
        for folder, project in projects.items()
        if project.version != version
    ]
    problems += [
        f"{folder} asks for {r}. Ask for =={version}: the members are released together."
        for folder, project in projects.items()
        for r in map(Requirement, project.dependencies)
        if _is_ours(r) and str(r.specifier) != f"=={version}"
    ]
    if f"## {version}" not in tree.text("CHANGELOG.md"):
        problems.append(f"CHANGELOG.md has no section '## {version}'. Add it.")
    return problems


def parse_pins(lock: str) -> Pins:
    """Versions by canonical name; a name may have several, each under its own environment marker."""
    pins: defaultdict[str, list[Version]] = defaultdict(list)
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)(?:\[[^]]*\])?==([^\s;\\]+)", lock, flags=re.MULTILINE):
        pins[canonicalize_name(name)].append(Version(version))
    return pins


def unmet(asker: str, requirement: Requirement, pins: Pins) -> list[str]:
    """Why the pins do not satisfy one requirement."""
    pinned = pins.get(canonicalize_name(requirement.name), ())
    if not pinned:
        return [f"{asker} needs {requirement}, which is not pinned. Run: make lock."]
    return [
        f"{asker} needs {requirement}, and {version} is pinned. Run: make lock."
        for version in pinned
        if not requirement.specifier.contains(version, prereleases=True)
    ]


def _project(tree: Tree, folder: str) -> _Project:
    return _Project.model_validate(tomllib.loads(tree.text(f"{folder}/pyproject.toml"))["project"])


def _dependencies(tree: Tree, folder: str) -> list[Requirement]:
    return [r for r in map(Requirement, _project(tree, folder).dependencies) if not _is_ours(r)]


def _is_ours(requirement: Requirement) -> bool:
    return requirement.name == "hlserve" or requirement.name.startswith("hlserve-")


def _groups(tree: Tree) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = tomllib.loads(tree.text("pyproject.toml"))["dependency-groups"]
    return groups


def _group(tree: Tree, name: str) -> list[Requirement]:
    return [Requirement(text) for text in _groups(tree)[name]]


def _client_locks(tree: Tree) -> dict[str, str]:
    found = {group: _GROUPS.fullmatch(group) for group in _groups(tree)}
    return {group: f"locks/clients-{match['name']}.txt" for group, match in found.items() if match is not None}
