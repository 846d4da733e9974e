"""All generated files, in memory, and how they compare with those on disk."""

from pathlib import Path
from typing import Final

from hlserve_api.generate.crd import crd_file_name, crd_text
from hlserve_api.generate.kind_pages import kind_page
from hlserve_api.generate.pages import (
    answers_page,
    conditions_page,
    headers_page,
    metrics_page,
    routing_table_page,
    schema_files,
)
from hlserve_api.v1alpha1 import KINDS

CRDS: Final = Path("crds")
CHART_TEMPLATES: Final = Path("charts/hlserve-crds/templates")
REFERENCE: Final = Path("docs/reference")
SCHEMAS: Final = REFERENCE / "schemas"


def generated_files() -> dict[Path, str]:
    """Every generated file by its path in the repository."""
    files: dict[Path, str] = {}
    for kind in KINDS:
        text = crd_text(kind)
        files[CRDS / crd_file_name(kind)] = text
        files[CHART_TEMPLATES / crd_file_name(kind)] = text
        files[REFERENCE / f"{kind.names.singular}.md"] = kind_page(kind)
    files[REFERENCE / "conditions.md"] = conditions_page()
    files[REFERENCE / "headers.md"] = headers_page()
    files[REFERENCE / "answers.md"] = answers_page()
    files[REFERENCE / "metrics.md"] = metrics_page()
    files[REFERENCE / "routing-table.md"] = routing_table_page()
    files.update({SCHEMAS / name: text for name, text in schema_files().items()})
    return files


def _stray(root: Path, files: dict[Path, str]) -> list[Path]:
    """CRD files that nothing generates any more: a kind that was renamed would otherwise live on in the chart."""
    found = [path.relative_to(root) for folder in (CRDS, CHART_TEMPLATES) for path in (root / folder).glob("*.yaml")]
    return [path for path in found if path not in files]


def differences(root: Path) -> list[str]:
    """One sentence for each file that differs from what would be generated; empty if all agree."""
    files = generated_files()
    found: list[str] = []
    for path, text in files.items():
        target = root / path
        if not target.is_file():
            found.append(f"{path} is missing")
        elif target.read_text(encoding="utf-8") != text:
            found.append(f"{path} differs from what its source generates")
    found.extend(f"{path} is not generated from anything: remove it" for path in _stray(root, files))
    return sorted(found)


def write(root: Path) -> list[Path]:
    """Write every generated file that differs; returns those written. Removes stray CRD files."""
    files = generated_files()
    written: list[Path] = []
    for path, text in files.items():
        target = root / path
        if not target.is_file() or target.read_text(encoding="utf-8") != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
            written.append(path)
    for path in _stray(root, files):
        (root / path).unlink()
    return written
