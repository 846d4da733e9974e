"""Reading a folder of manifests: what is read, and which sentence each unreadable thing gets."""

from pathlib import Path

import pytest

from hlserve_local.manifests import FolderMissingError, Kind, read_folder

POOL = "apiVersion: serving.hlserve.io/v1alpha1\nkind: ServingPool\nmetadata: {name: chat}\n"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {key: 2026-01-01}\n"


def test_reads_files_in_order_of_their_names_and_all_their_documents(tmp_path: Path) -> None:
    (tmp_path / "b.yaml").write_text(f"{SECRET}---\n---\n{POOL}")
    (tmp_path / "a.yml").write_text(POOL.replace("chat", "first"))
    (tmp_path / "c.json").write_text(
        '{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "in-list"}}]}'
    )
    (tmp_path / "README.md").write_text("not a manifest")
    folder = read_folder(tmp_path)
    assert folder.problems == ()
    assert [(item.place.file, item.place.document, item.name) for item in folder.manifests] == [
        ("a.yml", 1, "first"),
        ("b.yaml", 1, "s"),
        ("b.yaml", 3, "chat"),
        ("c.json", 1, "in-list"),
    ]
    assert [item.name for item in folder.of_kind(Kind.SERVING_POOL)] == ["first", "chat"]


def test_reads_a_single_file(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text(POOL)
    assert [item.name for item in read_folder(tmp_path / "one.yaml").manifests] == ["chat"]


@pytest.mark.parametrize("text", ["2026-01-01", "2026-01-01T00:00:00Z", "1:30"])
def test_times_stay_strings_as_on_a_cluster(tmp_path: Path, text: str) -> None:
    (tmp_path / "s.yaml").write_text(SECRET.replace("2026-01-01", text))
    (manifest,) = read_folder(tmp_path).manifests
    assert manifest.body["stringData"] == {"key": text}


BAD_DOCUMENTS = {
    "broken YAML": ("kind: [", "is not valid YAML at line"),
    "a tab for indentation": ("kind:\n\tname: x", "is not valid YAML at line 2"),
    "a key twice": (POOL + "kind: Secret\n", "the key 'kind' stands twice in one mapping: remove one"),
    "a nested key twice": (POOL + "spec:\n  mode: a\n  mode: b\n", "the key 'mode' stands twice"),
    "a list": ("- a\n- b\n", "is a list, not an object"),
    "a string": ("hello\n", "is a string, not an object"),
    "no kind": ("apiVersion: v1\n", "has no kind: write `kind: ServingPool`"),
    "an unknown kind": (
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\n",
        "the kind Deployment is none of ServingPool",
    ),
    "a wrong version": (POOL.replace("v1alpha1", "v1"), "has `apiVersion: serving.hlserve.io/v1alpha1`"),
    "no apiVersion": ("kind: Secret\nmetadata: {name: x}\n", "has `apiVersion: v1`"),
    "no metadata": ("apiVersion: v1\nkind: Secret\n", "has no name"),
    "a number as name": (
        "apiVersion: v1\nkind: Secret\nmetadata: {name: 7}\n",
        "must be a string, not 7: put it in quotes.",
    ),
    "an empty name": ("apiVersion: v1\nkind: Secret\nmetadata: {name: ''}\n", "has no name"),
    "a NUL character": ("a: \x00\n", "special characters are not allowed in "),
    "a number as namespace": ("apiVersion: v1\nkind: Secret\nmetadata: {name: x, namespace: 7}\n", "must be a string"),
}


@pytest.mark.parametrize(("text", "sentence"), BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS)
def test_bad_document_gets_one_sentence_and_nothing_else_is_lost(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.yaml").write_text(POOL)
    folder = read_folder(tmp_path)
    (problem,) = folder.problems
    assert sentence in problem.message
    assert problem.place.file == "a.yaml"
    assert problem.place.document == 1
    assert [item.name for item in folder.manifests] == ["chat"]


def test_document_before_broken_yaml_is_kept(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{POOL}---\nkind: [\n")
    folder = read_folder(tmp_path)
    assert [item.name for item in folder.manifests] == ["chat"]
    assert [problem.place.document for problem in folder.problems] == [2]


def test_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe\x00")
    (problem,) = read_folder(tmp_path).problems
    assert str(problem) == "error: a.yaml: is not UTF-8 text: save it as UTF-8."


def test_missing_and_empty_folders_say_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(FolderMissingError, match="does not exist: give -f a folder"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(FolderMissingError, match=r"holds no \*\.yaml"):
        read_folder(tmp_path)
    with pytest.raises(FolderMissingError, match=r"cannot be read \(File name too long\): check the path"):
        read_folder(tmp_path / ("x" * 300))
