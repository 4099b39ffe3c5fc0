"""ENDPOINT and the ``--tls-…`` options; what an operator gets wrong is a ConfigurationError."""

from pathlib import Path

import pytest
from twisted.internet import reactor as installed
from twisted.internet.endpoints import HostnameEndpoint, UNIXClientEndpoint

from tests.tools.certificates import Authority
from twisted_msgproto.core.errors import ConfigurationError
from twisted_msgproto.net.clients.endpoints import client_endpoint, host_and_port
from twisted_msgproto.net.clients.shapes import ConnectOptions


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("localhost:5044", ("localhost", 5044)),
        ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("::1:5044", ("::1", 5044)),
    ],
)
def test_host_and_port(text: str, pair: tuple[str, int]) -> None:
    assert host_and_port(text) == pair


@pytest.mark.parametrize(
    "text", ["", ":", "host", "host:", ":5044", "host:0", "host:65536", "h:-1"]
)
def test_what_is_no_host_and_port(text: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT expected"):
        host_and_port(text)


def test_plain_tcp() -> None:
    endpoint = client_endpoint(installed, ConnectOptions(endpoint="tcp:example.org:5044"))
    assert isinstance(endpoint, HostnameEndpoint)
    assert "example.org" in repr(endpoint)


def test_unix_and_other_endpoint_strings() -> None:
    for text in ("unix:/tmp/socket", "unix:path=/tmp/socket"):
        endpoint = client_endpoint(installed, ConnectOptions(endpoint=text))
        assert isinstance(endpoint, UNIXClientEndpoint)
    client_endpoint(installed, ConnectOptions(endpoint="tcp:host=h:port=5"))


def test_tls_with_the_systems_authorities() -> None:
    client_endpoint(installed, ConnectOptions(endpoint="tls:localhost:5044"))


@pytest.mark.parametrize("text", ["", "nonsense", "nonsense:1:2", "tcp:h", "tls:h:x"])
def test_what_is_no_endpoint(text: str) -> None:
    with pytest.raises(ConfigurationError):
        client_endpoint(installed, ConnectOptions(endpoint=text))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    options = ConnectOptions(endpoint="tls:localhost:1", tls_ca=tmp_path / "ca.pem")
    with pytest.raises(ConfigurationError, match=r"cannot read .*ca\.pem: No such file"):
        client_endpoint(installed, options)


@pytest.mark.parametrize("option", ["tls_ca", "tls_cert"])
def test_a_file_that_is_no_pem(tmp_path: Path, option: str) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_bytes(b"not a certificate\n-----END CERTIFICATE-----\n")
    options = ConnectOptions(endpoint="tls:localhost:1", **{option: bad})  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no usable certificate"):
        client_endpoint(installed, options)


def test_an_authority_file_without_any_certificate(tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    options = ConnectOptions(endpoint="tls:localhost:1", tls_ca=empty)
    with pytest.raises(ConfigurationError, match="no usable certificate"):
        client_endpoint(installed, options)


def test_each_file_of_tls_is_named_with_what_is_wrong_with_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.client("one"), authority.client("other")
    bad = tmp_path / "bad.pem"
    bad.write_text("nonsense")
    for cert, key, problem in (
        (bad, one.key, f"--tls-cert {bad} holds no usable certificate"),
        (one.cert, bad, f"{bad} holds no usable private key"),
        (one.cert, None, f"{one.cert} holds no usable private key; --tls-key FILE names another"),
        (one.cert, other.key, f"the key in {other.key} is not that of {one.cert}"),
    ):
        options = ConnectOptions(endpoint="tls:localhost:1", tls_cert=cert, tls_key=key)
        with pytest.raises(ConfigurationError) as refused:
            client_endpoint(installed, options)
        assert str(refused.value) == problem
