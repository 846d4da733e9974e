"""`hlserve-operator render`: YAML on stdout, or one sentence and exit 1."""

from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from hlserve_operator.__main__ import main

POOL = (Path(__file__).parent / "golden" / "humanless.pool.yaml").read_text(encoding="utf-8")


def run(folder: Path, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, ["render", "-f", str(folder), *options])
    return result.exit_code, result.output


def test_operator_render_prints_the_objects_of_every_pool(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(POOL + "---\n" + POOL.replace("name: agents", "name: more"), encoding="utf-8")
    (tmp_path / "b.yaml").write_text("apiVersion: v1\nkind: Secret\nmetadata: {name: s}\n", encoding="utf-8")
    code, output = run(tmp_path, "--engine-image", "registry.example/e@sha256:" + "0" * 64)
    assert code == 0, output
    names = [(m["kind"], m["metadata"]["name"].split("-")[0]) for m in yaml.safe_load_all(output)]
    kinds = ["NetworkPolicy", "Service", "PodDisruptionBudget", "ScaledObject", "Deployment"]
    assert names == [(kind, pool) for pool in ("agents", "more") for kind in kinds]
    assert "&id" not in output


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(POOL, "no engine image. Set engine.image, or give --engine-image.", id="no image"),
        pytest.param("a: [", "is no valid YAML", id="broken YAML"),
        pytest.param("- a\n", "a document is no mapping", id="a list"),
        pytest.param("kind: Secret\n", "holds no ServingPool", id="no pool"),
        pytest.param(POOL + "---\n" + POOL, "ServingPool agents is there twice", id="a pool twice"),
        pytest.param(POOL.replace("mode: HumanLess", "mode: Fast"), "spec.mode: Input should be", id="an unknown mode"),
    ],
)
def test_operator_render_explains_bad_input(tmp_path: Path, text: str, want: str) -> None:
    (tmp_path / "a.yaml").write_text(text, encoding="utf-8")
    code, output = run(tmp_path)
    assert code == 1
    assert output.startswith("Error: ")
    assert want in output
    assert "Traceback" not in output


def test_operator_render_explains_a_missing_folder(tmp_path: Path) -> None:
    code, output = run(tmp_path / "nowhere")
    assert code == 1
    assert "does not exist. Give -f a folder or file with manifests." in output
