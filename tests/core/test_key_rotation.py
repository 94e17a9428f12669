"""All secrets are sealed anew while others are written and used; whatever kills it, each secret opens."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import OPERATOR
from support.factors import SEED, add_authenticator_apps, opened_secrets

from usersctl.factors.rotation import SOME, KeyRotation, Rotated
from usersctl.factors.sealing import KeyFile, Sealer, key_name_of, totp_context
from usersctl.models import AuditFilter, User
from usersctl.service import Service

OLD, NEW = "old " * 8, "new " * 8


def test_a_new_key_of_the_file_seals_all_secrets(service: Service, add: Callable[..., User]) -> None:
    add_authenticator_apps(service, 3)
    before = service.sealer.names()
    assert service.key_rotation.run(by=OPERATOR) == Rotated(sealed=3, unreadable=0)
    assert service.sealer.names()[1:] == before
    with service.store.read() as tx:
        secrets = tx.totp_secrets(0, 10)
        (row,) = tx.audit_page(AuditFilter(action="rotate-key"), 10).rows
    assert {key_name_of(totp.secret) for totp in secrets} == {service.sealer.names()[0]}
    assert opened_secrets(service) == [SEED] * 3
    assert row.details == {"secrets": 3}
