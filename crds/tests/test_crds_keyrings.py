"""ClientKeys and Secrets compile to keyring shards: digests only, duplicates and weak keys refused, order of no account."""

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hlserve_api.compile import (
    CompiledKeys,
    KeyProblemReason,
    compile_keyrings,
    digest,
    document_json,
    fingerprint,
    shard_of,
)
from hlserve_api.compile.keyring import LONGEST_KEY_CHARACTERS, entropy_bits
from hlserve_api.routing import parse_keyring
from hlserve_api.testing import a_client_key, changed, without
from hlserve_api.v1alpha1 import ClientKey

NOW = datetime(2027, 1, 1, tzinfo=UTC)
STRONG = "hls_u0mJY2oQnVh3LwZ8sTq4RkXb7cPd1eFgAiNvBxCyDzE"
OTHER = "hls_Qm9vdHN0cmFwcGVkLWJ5LWEtdGVzdC0wMTIzNDU2Nzg"


def _key(name: str = "crawler", **spec: Any) -> ClientKey:
    manifest = a_client_key(name)
    for path, value in spec.items():
        manifest = changed(manifest, f"spec.{path}", value)
    return ClientKey.model_validate(manifest)


def _compile(*keys: ClientKey, secrets: dict[str, str] | None = None, shards: int = 4) -> CompiledKeys:
    texts = {(f"{key.name}-keys", "a"): STRONG for key in keys} if secrets is None else {}
    texts.update({(f"{name}-keys", "a"): text for name, text in (secrets or {}).items()})
    return compile_keyrings(keys, texts, now=NOW, shards=shards)


def _reasons(compiled: CompiledKeys) -> list[tuple[str, KeyProblemReason, bool]]:
    return [(problem.client, problem.reason, problem.refused) for problem in compiled.problems]


def _clients(compiled: CompiledKeys) -> list[str]:
    return sorted(entry.client for keyring in compiled.keyrings for entry in keyring.keys)


def test_digest_is_the_sha256_of_the_utf8_bytes() -> None:
    assert digest("hls_grün") == "8eabf5b32a53fdff9e13e3e36792883f4b7014630ac890b8a2dc9cd8a83cc1a1"
    assert fingerprint("0123456789abcdef") == "01234567"


def test_entry_carries_the_rights_and_never_the_key() -> None:
    start, end = "2026-12-31T00:00:00Z", "2027-12-31T00:00:00+01:00"
    key = _key(
        tenant="research", models=["llama-3.1-8b"], allowedClasses=["batch"], limits={"maxConcurrent": 8}, suspended=True,
        budget={"tokens": 1000, "period": "Month", "onExhausted": "Demote"},
        credentials=[{"id": "a", "secretRef": {"name": "crawler-keys", "key": "a"}, "notBefore": start, "notAfter": end}],
    )  # fmt: skip
    compiled = _compile(key)
    (entry,) = [entry for keyring in compiled.keyrings for entry in keyring.keys]
    assert entry.digest == digest(STRONG)
    assert (entry.client, entry.credential, entry.tenant, entry.class_name) == ("crawler", "a", "research", "agent")
    assert (entry.models, entry.allowed_classes, entry.suspended) == (("llama-3.1-8b",), ("batch",), True)
    assert (entry.limits.max_concurrent, entry.limits.tokens_per_minute) == (8, None)
    assert entry.budget is not None
    assert (entry.budget.tokens, entry.budget.period, entry.budget.on_exhausted) == (1000, "Month", "Demote")
    assert (entry.not_before, entry.not_after) == (datetime.fromisoformat(start), datetime.fromisoformat(end))
    assert all(STRONG not in document_json(keyring) for keyring in compiled.keyrings)
    assert compiled.problems == ()


def test_documents_survive_being_written_and_read() -> None:
    compiled = _compile(_key(**{"credentials.0.notAfter": "2028-01-01T00:00:00+02:00"}))
    assert [parse_keyring(document_json(keyring)) for keyring in compiled.keyrings] == list(compiled.keyrings)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        pytest.param(STRONG, [], id="a key that we made"),
        pytest.param(STRONG + "\n", [], id="a key with its file's newline"),
        pytest.param("k3Yq9Zt1LmXw7Rb", [(KeyProblemReason.WEAK_KEY, True)], id="15 characters"),
        pytest.param("k3Yq9Zt1LmXw7Rb5", [(KeyProblemReason.WEAK_KEY, False)], id="16 characters"),
        pytest.param("k3Yq9Zt1LmXw7Rb5Dn2Gp6H", [(KeyProblemReason.WEAK_KEY, False)], id="23 characters"),
        pytest.param("k3Yq9Zt1LmXw7Rb5Dn2Gp6Hc", [], id="24 characters"),
        pytest.param("ab" * 20, [(KeyProblemReason.WEAK_KEY, False)], id="two characters repeated"),
        pytest.param("", [(KeyProblemReason.WEAK_KEY, True)], id="an empty Secret"),
        pytest.param("a key with some spaces in it", [(KeyProblemReason.MALFORMED_KEY, True)], id="spaces"),
        pytest.param("schlüssel-mit-umlauten-darin", [(KeyProblemReason.MALFORMED_KEY, True)], id="not ASCII"),
        pytest.param(
            "x" * (LONGEST_KEY_CHARACTERS + 1),
            [(KeyProblemReason.MALFORMED_KEY, True)],
            id="longer than a router reads",
        ),
    ],
)
def test_judges_the_key_itself(text: str, want: list[tuple[KeyProblemReason, bool]]) -> None:
    compiled = _compile(_key(), secrets={"crawler": text})
    assert [(problem.reason, problem.refused) for problem in compiled.problems] == want
    assert len(_clients(compiled)) == (0 if any(refused for _, refused in want) else 1)


def test_two_clients_with_one_key_are_both_refused() -> None:
    compiled = _compile(
        _key("first"), _key("second"), _key("third"), secrets={"first": STRONG, "second": STRONG, "third": OTHER}
    )
    assert _clients(compiled) == ["third"]
    assert _reasons(compiled) == [(name, KeyProblemReason.DUPLICATE_KEY, True) for name in ("first", "second")]
    assert "second/a" in compiled.problems_of("first")[0].message


def test_a_plain_key_and_its_digest_are_the_same_key() -> None:
    hashed = _key("second", **{"credentials.0.encoding": "SHA256"})
    compiled = _compile(_key("first"), hashed, secrets={"first": STRONG, "second": digest(STRONG)})
    assert _clients(compiled) == []
    assert {problem.reason for problem in compiled.problems} == {KeyProblemReason.DUPLICATE_KEY}


def test_a_stored_digest_works_like_its_key() -> None:
    compiled = _compile(_key(**{"credentials.0.encoding": "SHA256"}), secrets={"crawler": digest(STRONG) + "\n"})
    assert [entry.digest for keyring in compiled.keyrings for entry in keyring.keys] == [digest(STRONG)]


def test_something_else_than_a_digest_is_refused() -> None:
    compiled = _compile(_key(**{"credentials.0.encoding": "SHA256"}), secrets={"crawler": STRONG})
    assert _reasons(compiled) == [("crawler", KeyProblemReason.MALFORMED_KEY, True)]


def test_a_missing_secret_stops_only_its_own_credential() -> None:
    compiled = _compile(_key("first"), _key("second"), secrets={"second": OTHER})
    assert _clients(compiled) == ["second"]
    assert _reasons(compiled) == [("first", KeyProblemReason.SECRET_MISSING, True)]
    assert "first-keys" in compiled.problems[0].message


def test_a_credential_without_reference_uses_the_secret_that_is_made_for_it() -> None:
    key = ClientKey.model_validate(without(a_client_key("crawler"), "spec.credentials.0.secretRef"))
    compiled = compile_keyrings([key], {("crawler-a", "key"): STRONG}, now=NOW)
    assert _clients(compiled) == ["crawler"]


@pytest.mark.parametrize(("seconds", "expired"), [(-1, True), (0, True), (1, False)])
def test_an_expired_key_is_reported_and_stays_so_that_the_router_can_say_so(seconds: int, expired: bool) -> None:
    end = (NOW + timedelta(seconds=seconds)).isoformat()
    compiled = _compile(_key(**{"credentials.0.notAfter": end}))
    assert _clients(compiled) == ["crawler"]
    assert _reasons(compiled) == ([("crawler", KeyProblemReason.EXPIRED, False)] if expired else [])


def test_two_credentials_of_one_client_share_its_rights() -> None:
    second = {"id": "b", "secretRef": {"name": "crawler-keys", "key": "b"}}
    key = _key(credentials=[a_client_key()["spec"]["credentials"][0], second])
    compiled = compile_keyrings([key], {("crawler-keys", "a"): STRONG, ("crawler-keys", "b"): OTHER}, now=NOW)
    entries = [entry for keyring in compiled.keyrings for entry in keyring.keys]
    assert sorted(entry.credential for entry in entries) == ["a", "b"]


def _texts(count: int) -> list[str]:
    return [f"hls_{digest(str(number))[:43]}" for number in range(count)]


@given(st.randoms(use_true_random=False), st.integers(1, 9))
def test_shards_do_not_depend_on_order(source: random.Random, shards: int) -> None:
    keys = [_key(f"client-{number}") for number in range(12)]
    secrets = {f"client-{number}": text for number, text in enumerate(_texts(12))}
    shuffled = list(keys)
    source.shuffle(shuffled)
    one, two = _compile(*keys, secrets=secrets, shards=shards), _compile(*shuffled, secrets=secrets, shards=shards)
    assert one == two
    assert len(one.keyrings) == shards
    assert sum(len(keyring.keys) for keyring in one.keyrings) == 12
    assert all(
        shard_of(entry.digest, shards) == number for number, ring in enumerate(one.keyrings) for entry in ring.keys
    )


def test_only_the_shard_of_a_changed_key_gets_another_generation() -> None:
    keys = [_key(f"client-{number}") for number in range(12)]
    secrets = {f"client-{number}": text for number, text in enumerate(_texts(12))}
    before = _compile(*keys, secrets=secrets)
    changed_keys = [_key("client-0", suspended=True), *keys[1:]]
    after = _compile(*changed_keys, secrets=secrets)
    moved = [number for number, (old, new) in enumerate(zip(before.shards, after.shards, strict=True)) if old != new]
    assert moved == [shard_of(digest(secrets["client-0"]), 4)]
    assert [shard.name for shard in after.shards] == [f"hlserve-keyring-{number}" for number in range(4)]


@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=64))
def test_entropy_is_bounded_by_length_and_alphabet(text: str) -> None:
    assert 0 <= entropy_bits(text) <= len(text) * 6.6
    assert entropy_bits(text[0] * 40) == 0
