"""Read the Makefile, and check that each target is explained and each generator is there."""

import re
from dataclasses import dataclass

from repository_checks.tree import MEMBERS, Tree

_TARGET = re.compile(r"^([a-z][a-z0-9-]*):(?![=:])([^\n]*?)(?:## (.+))?$", flags=re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Target:
    """A target that one may name on the command line; `help` is None if it is not explained."""

    name: str
    help: str | None


def targets(makefile: str) -> tuple[Target, ...]:
    """The Makefile's named targets in their order."""
    return tuple(Target(name, text.strip() if text else None) for name, _, text in _TARGET.findall(makefile))


def variable(makefile: str, name: str) -> list[str]:
    """Words of a variable that is set on one line; empty if it is not."""
    found = re.search(rf"^{name} :?= (.+)$", makefile, flags=re.MULTILINE)
    return found.group(1).split() if found else []


def targets_are_explained(tree: Tree) -> list[str]:
    """`make help` lists every target: a phony one without `## text` would be invisible."""
    makefile = tree.text("Makefile")
    phony = re.search(r"^\.PHONY: (.+)$", makefile, flags=re.MULTILINE)
    declared = (
        set(phony.group(1).replace("$(VERIFY_PARTS)", " ".join(variable(makefile, "VERIFY_PARTS"))).split())
        if phony
        else set()
    )
    found = targets(makefile)
    problems = [
        f"Makefile: target {t.name} has no '## explanation'. Add it on the target's line."
        for t in found
        if t.help is None
    ]
    problems += [f"Makefile: target {t.name} is not in .PHONY. Add it." for t in found if t.name not in declared]
    problems += [
        f"Makefile: .PHONY names {name}, which is no target." for name in sorted(declared - {t.name for t in found})
    ]
    return problems


def generators_exist(tree: Tree) -> list[str]:
    """Each module in GENERATORS has a file; a misspelt one would leave its output unchecked."""
    problems = []
    for module in variable(tree.text("Makefile"), "GENERATORS"):
        path = module.replace(".", "/")
        folders = ("tools", *(f"{member}/src" for member in MEMBERS))
        if not any(f"{folder}/{path}{end}" in tree.files for folder in folders for end in (".py", "/__main__.py")):
            problems.append(f"Makefile: GENERATORS names {module}, and no member has that module. Correct the name.")
    return problems


def members_agree(tree: Tree) -> list[str]:
    """The Makefile, the workspace and these checks name the same members."""
    named = variable(tree.text("Makefile"), "MEMBERS")
    if tuple(named) != MEMBERS:
        return [f"Makefile: MEMBERS is {' '.join(named)}, the checks know {' '.join(MEMBERS)}. Make them equal."]
    return []
