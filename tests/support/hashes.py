"""Hashes of one password, by the packages of the systems that store them so, at low costs."""

import base64
import hashlib
import hmac
import warnings
from functools import cache
from typing import Any

import bcrypt

PHRASE = "Kürbis ☃ im Walde"

# Published by others: phpass's of Openwall's and passlib's tests, WordPress's of a public installation of version 6.8,
# Argon2's of its reference implementation, with the passwords that they are of.
PUBLISHED = {
    "$P$9IQRaTwmfeRo7ud9Fh4E2PdI0S3r.L0": "test12345",
    "$H$9aaaaaSXBjgypwqm.JsMssPLiS8YQ00": "test1",
    "$P$912345678LIjjb6PhecupozNBmDndU0": "thisisalongertestPW",
    "$P$984478476IagS59wHZvyQMArzfx58u.": "hashcat",
    "$wp$2y$10$Q1xinFjrZeLWJBvxviIL6u834Fu.evIEFHAUVisQ5O.w9Dm0sMdES": "admin",
    "$argon2i$v=19$m=256,t=2,p=1$c29tZXNhbHQ$iekCn0Y3spW+sCcFanM2xBT63UP2sghkUoHLIUpWRS8": "password",
    "$argon2i$m=256,t=2,p=1$c29tZXNhbHQ$/U3YPXYsSb3q9XxHvc0MLxur+GP960kN9j7emXX8zwY": "password",
    "$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4": "password",
    "$pbkdf2-sha256$6400$.6UI/S.nXIk8jcbdHx3Fhg$98jZicV16ODfEsEZeYPGHU3kbrUrvUEXOPimVSQDD44": "password",
}


@cache
def of_packages() -> dict[str, str]:
    """By the name of the system and its kind."""
    return werkzeug() | passlib() | argon2() | wordpress() | django()


def werkzeug() -> dict[str, str]:
    from werkzeug.security import generate_password_hash

    methods = (
        "pbkdf2:sha256:1000",
        "pbkdf2:sha1:1000",
        "pbkdf2:sha512:1000",
        "scrypt:1024:8:1",
        "scrypt:512:4:3",
    )
    return {f"Werkzeug {method}": generate_password_hash(PHRASE, method) for method in methods}


def passlib_kinds() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it imports `crypt`, which Python 3.13 lacks
        from passlib import hash as kinds
    return kinds


def passlib() -> dict[str, str]:
    kinds = passlib_kinds()
    costs: dict[str, dict[str, Any]] = {
        "pbkdf2_sha1": {"rounds": 100},
        "pbkdf2_sha256": {"rounds": 100},
        "pbkdf2_sha512": {"rounds": 100},
        "scrypt": {"rounds": 6},
        "phpass": {"rounds": 7},
        "ldap_salted_sha1": {},
        "ldap_salted_sha256": {},
        "ldap_salted_sha512": {},
        "django_pbkdf2_sha256": {"rounds": 100},
        "django_pbkdf2_sha1": {"rounds": 100},
    }
    return {
        f"passlib {name}": getattr(kinds, name).using(**cost).hash(PHRASE) for name, cost in costs.items()
    }


def argon2() -> dict[str, str]:
    from argon2.low_level import Type, hash_secret

    made = {}
    for kind in Type:
        for version in (16, 19):
            stored = hash_secret(PHRASE.encode(), b"saltsalt", 1, 64, 2, 16, kind, version).decode()
            made[f"argon2-cffi {kind.name} {version}"] = stored
    return made


def wordpress(password: str = PHRASE) -> dict[str, str]:
    """As the documentation of WordPress 6.8 describes it."""
    digest = base64.b64encode(hmac.digest(b"wp-sha384", password.encode(), hashlib.sha384))
    return {"WordPress": "$wp" + bcrypt.hashpw(digest, bcrypt.gensalt(5)).decode().replace("$2b$", "$2y$")}


def django() -> dict[str, str]:
    """Nothing where it is not installed."""
    try:
        from django.contrib.auth import hashers
    except ImportError:
        return {}
    names = ("PBKDF2", "PBKDF2SHA1", "Argon2", "BCrypt", "BCryptSHA256", "Scrypt")
    made = {}
    for name in names:
        hasher = getattr(hashers, f"{name}PasswordHasher")()
        hasher.iterations, hasher.rounds, hasher.work_factor = 100, 4, 2**6
        hasher.time_cost, hasher.memory_cost, hasher.parallelism = 1, 64, 2
        made[f"Django {name}"] = hasher.encode(PHRASE, hasher.salt())
    return made
