"""Run the checks: `python -m repository_checks [NAME…]` from the repository root; without names all of them.

Exit status: 0 nothing wrong, 1 something wrong (a sentence each on stderr), 2 an unknown name.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from repository_checks import acceptance, cases, documents, locks, makefile, sources
from repository_checks.tree import Tree

CHECKS: Mapping[str, Callable[[Tree], list[str]]] = {
    "file-sizes": sources.file_sizes,
    "operator-folder": sources.no_shadowing_package,
    "test-names": sources.tests_have_unique_names,
    "typed": sources.members_are_typed,
    "machine-addresses": sources.no_machine_addresses,
    "locks": locks.locks_satisfy_members,
    "hashes": locks.pins_have_hashes,
    "versions": locks.versions_are_equal,
    "links": documents.links_resolve,
    "make-mentions": documents.make_targets_exist,
    "make-help": makefile.targets_are_explained,
    "generators": makefile.generators_exist,
    "members": makefile.members_agree,
    "acceptance": acceptance.promises_have_tests,
    "cases": cases.cases_have_tests,
}
"""Every check by the name one may run it by."""


def main(names: Sequence[str]) -> int:
    """Run the named checks on the working copy in the current folder, print what is wrong, return the exit status."""
    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.stderr.write(f"There is no check {unknown[0]!r}. The checks are: {', '.join(CHECKS)}.\n")
        return 2
    tree = Tree(Path())
    problems = [(name, problem) for name in names or CHECKS for problem in CHECKS[name](tree)]
    sys.stderr.write("".join(f"{name}: {problem}\n" for name, problem in problems))
    sys.stdout.write(f"{len(names or CHECKS)} repository checks, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
