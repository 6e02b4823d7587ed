"""Authentication of alert senders: who is accepted and who is refused."""

from __future__ import annotations

import hashlib
import hmac
import re

import pytest
from multidict import CIMultiDict

from draftd.fallback.alerts.authentication import Authentication
from draftd.fallback.alerts.payload import NotificationRefused
from tests.webhook import SECRET, SIGNATURE, TIMESTAMP, TOKEN, bearer, signed

NOW = 1769860800.0
BODY = b'{"version": "1"}'
TOKENS, SECRETS = [TOKEN.encode(), b"the-next-token-of-the-tests"], [b"the-next-secret-of-the-tests", SECRET.encode()]
EITHER = Authentication(TOKENS, SECRETS, TIMESTAMP, 300.0)
ONLY_TOKEN = Authentication(TOKENS, [], TIMESTAMP, 300.0)
ONLY_SECRET = Authentication([], SECRETS, TIMESTAMP, 300.0)


def outcome(authentication: Authentication, *headers: dict[str, str], body: bytes = BODY, now: float = NOW) -> str:
    """Returns `token` or `signature`, or the counted reason of a refusal."""
    all_headers = CIMultiDict([pair for some in headers for pair in some.items()])
    try:
        claim = authentication.claim(all_headers, now)
        if claim is None:
            return "token"
        authentication.prove(claim, body)
    except NotificationRefused as error:
        refused = error
    else:
        return "signature"
    assert refused.status == 401
    assert TOKEN not in refused.message
    assert SECRET not in refused.message
    return refused.result.value


def test_webhook_hmac_signature_matches_the_one_computed_by_openssl() -> None:
    """printf '1769860800:{"version": "1"}' | openssl dgst -sha256 -hmac a-secret-of-the-tests"""
    signature = "997b6d2d9dc562d400a7cf426e35c59a84f5dd39dc1ad9868ecf38e05292ccb2"
    assert signed(BODY, at=NOW) == {SIGNATURE: signature, TIMESTAMP: "1769860800"}
    assert outcome(ONLY_SECRET, {SIGNATURE: signature, TIMESTAMP: "1769860800"}) == "signature"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (bearer(), "token"),
        ({"authorization": f"bearer {TOKEN}"}, "token"),
        ({"Authorization": f"BEARER   {TOKEN} "}, "token"),
        (bearer("the-next-token-of-the-tests"), "token"),
        (bearer(f"{TOKEN} the-next-token-of-the-tests"), "bad_token"),
        (bearer(TOKEN + "x"), "bad_token"),
        (bearer(TOKEN[:-1]), "bad_token"),
        (bearer(TOKEN.upper()), "bad_token"),
        (bearer(""), "bad_token"),
        ({"Authorization": TOKEN}, "bad_token"),
        ({"Authorization": f"Basic {TOKEN}"}, "bad_token"),
        ({"Authorization": ""}, "bad_token"),
        ({"Authorization": "Bearer schlüssel-\udcff"}, "bad_token"),
        ({}, "no_credentials"),
        ({"X-Other": TOKEN}, "no_credentials"),
    ],
)
def test_webhook_accepts_only_a_configured_bearer_token(headers: dict[str, str], found: str) -> None:
    assert outcome(ONLY_TOKEN, headers) == found
    assert outcome(EITHER, headers) == found


def test_webhook_refuses_a_request_with_two_authorization_headers() -> None:
    assert outcome(ONLY_TOKEN, bearer(), bearer()) == "bad_token"
    assert outcome(ONLY_TOKEN, bearer("guess"), bearer()) == "bad_token"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        (signed(BODY, at=NOW), "signature"),
        (signed(BODY, at=NOW - 300), "signature"),
        (signed(BODY, at=NOW + 300), "signature"),
        (signed(BODY, at=NOW - 301), "stale"),
        (signed(BODY, at=NOW + 301), "stale"),
        (signed(BODY, at=0), "stale"),
        (signed(BODY, "another-secret", at=NOW), "bad_signature"),
        (signed(BODY + b" ", at=NOW), "bad_signature"),
        (signed(b"", at=NOW), "bad_signature"),
        ({SIGNATURE: signed(BODY, at=NOW)[SIGNATURE]}, "no_timestamp"),
        (signed(BODY, at=NOW) | {TIMESTAMP: str(int(NOW) + 1)}, "bad_signature"),
        (signed(BODY, at=NOW) | {SIGNATURE: signed(BODY, at=NOW)[SIGNATURE].upper()}, "bad_signature"),
        (signed(BODY, at=NOW) | {SIGNATURE: "sha256=" + signed(BODY, at=NOW)[SIGNATURE]}, "bad_signature"),
        (signed(BODY, at=NOW) | {SIGNATURE: ""}, "bad_signature"),
        (signed(BODY, at=NOW) | {SIGNATURE: "é\udcff"}, "bad_signature"),
        (signed(BODY, at=NOW) | {TIMESTAMP: ""}, "bad_timestamp"),
        (signed(BODY, at=NOW) | {TIMESTAMP: "-1"}, "bad_timestamp"),
        (signed(BODY, at=NOW) | {TIMESTAMP: "1e9"}, "bad_timestamp"),
        (signed(BODY, at=NOW) | {TIMESTAMP: "٣٣٣"}, "bad_timestamp"),
        (signed(BODY, at=NOW) | {TIMESTAMP: "1769860800\n"}, "bad_timestamp"),
        (signed(BODY, at=NOW) | {TIMESTAMP: "9" * 5000}, "bad_timestamp"),
        ({TIMESTAMP: str(int(NOW))}, "no_credentials"),
        ({}, "no_credentials"),
    ],
)
def test_webhook_accepts_only_a_valid_recent_signature_of_the_body(headers: dict[str, str], found: str) -> None:
    assert outcome(ONLY_SECRET, headers) == found
    assert outcome(EITHER, headers) == found


def test_webhook_refuses_a_signature_that_does_not_cover_a_timestamp() -> None:
    """Grafana signs only the body where no timestamp header is configured."""
    alone = hmac.new(SECRET.encode(), BODY, hashlib.sha256).hexdigest()
    assert outcome(ONLY_SECRET, {SIGNATURE: alone}) == "no_timestamp"
    assert outcome(ONLY_SECRET, {SIGNATURE: alone, TIMESTAMP: str(int(NOW))}) == "bad_signature"


def test_webhook_refuses_repeated_signature_or_timestamp_headers() -> None:
    headers = signed(BODY, at=NOW)
    assert outcome(ONLY_SECRET, headers, {SIGNATURE: headers[SIGNATURE]}) == "bad_signature"
    assert outcome(ONLY_SECRET, headers, {TIMESTAMP: headers[TIMESTAMP]}) == "bad_timestamp"


def test_webhook_refuses_credentials_of_a_kind_not_configured() -> None:
    assert outcome(ONLY_TOKEN, signed(BODY, at=NOW)) == "no_credentials"
    assert outcome(ONLY_SECRET, bearer()) == "no_credentials"
    assert outcome(ONLY_SECRET, bearer(SECRET)) == "no_credentials"


def test_webhook_timestamp_header_name_is_configurable() -> None:
    other = Authentication([], SECRETS, "X-Time", 300.0)
    headers = signed(BODY, at=NOW)
    assert outcome(other, headers) == "no_timestamp"
    assert outcome(other, {SIGNATURE: headers[SIGNATURE], "x-time": headers[TIMESTAMP]}) == "signature"


def test_webhook_refusal_names_the_accepted_credentials() -> None:
    with pytest.raises(
        NotificationRefused, match=re.escape(f"bearer token in Authorization, or a signature in {SIGNATURE}")
    ):
        EITHER.claim(CIMultiDict(), NOW)
    with pytest.raises(NotificationRefused, match=r"allowed: a bearer token in Authorization$"):
        ONLY_TOKEN.claim(CIMultiDict(), NOW)
    with pytest.raises(NotificationRefused, match="301 s ago"):
        ONLY_SECRET.claim(CIMultiDict(signed(BODY, at=NOW - 301)), NOW)
