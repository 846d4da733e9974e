"""`--engine POOL=URL`."""

import pytest

from hlserve_local.engine_option import EngineOptionError, check_engine_pools, parse_engine_options


def test_good_values() -> None:
    assert parse_engine_options(["chat=http://127.0.0.1:9001", "agents=https://a.example/base/,http://b:1"]) == {
        "chat": ("http://127.0.0.1:9001",),
        "agents": ("https://a.example/base", "http://b:1"),
    }


BAD = {
    "no pool": (["http://127.0.0.1:9001"], "write POOL=URL"),
    "an empty pool": (["=http://127.0.0.1:9001"], "write POOL=URL"),
    "no URL": (["chat="], "write POOL=URL"),
    "no scheme": (["chat=127.0.0.1:9001"], "is no URL of a server; write http://HOST:PORT"),
    "another scheme": (["chat=ftp://127.0.0.1"], "is no URL of a server"),
    "a port that is none": (["chat=http://127.0.0.1:port"], "is no URL"),
    "a trailing comma": (["chat=http://127.0.0.1:1,"], "an empty text is no URL"),
    "a password": (["chat=http://u:p@127.0.0.1:1"], "without password or query"),
    "a query": (["chat=http://127.0.0.1:1?a=b"], "without password or query"),
    "the API's path": (["chat=http://127.0.0.1:1/v1/"], "leave out /v1"),
    "one pool twice": (["chat=http://a:1", "chat=http://b:1"], "give all its URLs at once"),
}


@pytest.mark.parametrize(("values", "words"), BAD.values(), ids=BAD)
def test_bad_value_says_what_to_write(values: list[str], words: str) -> None:
    with pytest.raises(EngineOptionError) as caught:
        parse_engine_options(values)
    assert words in str(caught.value)


def test_unknown_pool_gets_the_nearest_name() -> None:
    with pytest.raises(EngineOptionError, match=r"names the pool chta, which no manifest has; did you mean chat\?"):
        check_engine_pools({"chta": ()}, ["chat", "agents"])
