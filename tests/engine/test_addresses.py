"""What is an address at which a machine is reached, and what only looks like one."""

import pytest

from engine.control.addresses import is_address


@pytest.mark.parametrize(
    "text",
    [
        "10.0.3.7",
        "127.0.0.1",
        "::1",
        "2001:db8::7",
        "fe80::1",
        "::ffff:10.0.0.1",
        "localhost",
        "node-1",
        "node-1.example.org",
        "3com.example",
        "a" * 63,
        "1.2.3.4.example",
    ],
)
def test_ip_addresses_and_host_names_of_rfc_1123_are_addresses(text: str) -> None:
    assert is_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "10.0.0.999",
        "10.0.0",
        "10.0.0.1.1",
        "1",
        "10.0.0.1/24",
        "10.0.0.1:80",
        "2001:db8:::7",
        "fe80::1%eth0",
        "[::1]",
        "node_1",
        "-node",
        "node-",
        "node..org",
        ".org",
        "org.",
        "a" * 64,
        ".".join(["a" * 60] * 5),
        "a b",
        "a\nb",
        "node\n",
        "a\0",
        "grün.example",
        "\ud83d",
        "http://node-1",
    ],
)
def test_what_no_machine_answers_to_is_none(text: str) -> None:
    assert not is_address(text)
