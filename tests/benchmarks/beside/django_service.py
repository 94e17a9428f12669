"""Another account service: Django's own users and sessions over SQLite, on waitress. `django_service.py PORT DATABASE USERS`

Nothing but what a session check needs: no CSRF, no messages, no admin pages, no log; a connection that each thread keeps.
"""

import json
import logging
import sys

import django
import waitress
from django.conf import settings

PORT, DATABASE, USERS = sys.argv[1], sys.argv[2], int(sys.argv[3])

settings.configure(
    SECRET_KEY="only for this measure",
    ALLOWED_HOSTS=["127.0.0.1"],
    ROOT_URLCONF=__name__,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django.contrib.sessions"],
    MIDDLEWARE=[
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": DATABASE,
            "CONN_MAX_AGE": None,
            "OPTIONS": {"init_command": "PRAGMA journal_mode = WAL"},
        }
    },
    SESSION_COOKIE_NAME="auth_token",
    USE_TZ=True,
    LOGGING_CONFIG=None,
)
django.setup()

from datetime import timedelta  # noqa: E402 - Django wants to be configured before anything of it is imported

from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY  # noqa: E402
from django.contrib.auth.models import User  # noqa: E402
from django.contrib.sessions.backends.db import SessionStore  # noqa: E402
from django.contrib.sessions.models import Session  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.http import HttpRequest, HttpResponse  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils import timezone  # noqa: E402


def me(request: HttpRequest) -> HttpResponse:
    user = request.user
    if not user.is_authenticated:
        return HttpResponse(status=401)
    user_object = {
        "id": user.id,
        "email": user.email,
        "name": user.get_full_name(),
        "role": "admin" if user.is_staff else "user",
        "active": user.is_active,
        "created_at": user.date_joined.isoformat(),
        "last_login_at": user.last_login,
    }
    body = json.dumps({"user": user_object})
    return HttpResponse(body, content_type="application/json", headers={"Content-Length": len(body)})


urlpatterns = [path("api/users/me", me)]

call_command("migrate", verbosity=0)
User.objects.bulk_create(
    User(username=f"user{n:08}", email=f"user{n:08}@example.com", first_name="User", last_name=f"Number {n}", password="!")
    for n in range(USERS)
)  # fmt: skip
Session.objects.bulk_create(
    Session(
        session_key=f"benchmark-{n:08}",
        session_data=SessionStore().encode(
            {
                SESSION_KEY: str(user.pk),
                BACKEND_SESSION_KEY: "django.contrib.auth.backends.ModelBackend",
                HASH_SESSION_KEY: user.get_session_auth_hash(),
            }
        ),
        expire_date=timezone.now() + timedelta(days=1),
    )
    for n, user in enumerate(User.objects.order_by("pk"))
)
logging.getLogger("waitress.queue").setLevel(logging.ERROR)  # a line for each request that waits, else
waitress.serve(get_wsgi_application(), listen=f"127.0.0.1:{PORT}", threads=4)
