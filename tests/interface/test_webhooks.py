"""A daemon that tells receivers: they verify with the library of Standard Webhooks, also as the manual shows it."""

import time
from collections.abc import Callable

import pytest
from support.commands import PASSWORD, Command
from support.daemons import serving, wait_for
from support.receivers import SECRET, Listening, listening, table
from support.recipes import recipe
from support.web import Site

from usersctl.config.webhooks import Webhook
from usersctl.service import Service

ADA = {"email": "ada@example.com", "password": PASSWORD}
