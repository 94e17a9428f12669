-- The whole database as a new installation gets it. An older one gets here by the steps in usersctl/migrations.py.
-- Times are ISO 8601 in UTC with milliseconds (2026-11-20T08:22:19.123Z), so that text sorts as time. Booleans are 0 and 1.

CREATE TABLE users (
    id                    INTEGER PRIMARY KEY AUTOINCREMENT,  -- never given twice
    email                 TEXT NOT NULL UNIQUE,               -- lower-case, domain in its ASCII form
    name                  TEXT NOT NULL,
    password_hash         TEXT NOT NULL,                      -- bcrypt; anything else matches no password
    role                  TEXT NOT NULL DEFAULT 'user' CHECK (role IN ('admin', 'user')),
    active                INTEGER NOT NULL CHECK (active IN (0, 1)),
    awaiting_confirmation INTEGER NOT NULL DEFAULT 0 CHECK (awaiting_confirmation IN (0, 1)),  -- registered; the only state that a letter may activate
    email_proven_at       TEXT,                               -- when somebody showed that they read this address
    created_at            TEXT NOT NULL,
    updated_at            TEXT NOT NULL,
    last_login_at         TEXT,
    oauth_id              TEXT UNIQUE,
    profile_picture       TEXT
) STRICT;

CREATE INDEX users_by_name ON users (name, id, email);  -- the address, so that a search reads nothing else
CREATE INDEX users_inactive_by_name ON users (name, id) WHERE active = 0;
CREATE INDEX users_admins_by_name ON users (name, id) WHERE role = 'admin';

-- How many accounts there are of each kind, so that no list and no rule has to count a million rows.
CREATE TABLE user_counts (
    role   TEXT NOT NULL,
    active INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (role, active)
) STRICT, WITHOUT ROWID;

INSERT INTO user_counts (role, active, n) VALUES ('admin', 0, 0), ('admin', 1, 0), ('user', 0, 0), ('user', 1, 0);

CREATE TRIGGER users_counted_in AFTER INSERT ON users BEGIN
    UPDATE user_counts SET n = n + 1 WHERE role = new.role AND active = new.active;
END;

CREATE TRIGGER users_counted_out AFTER DELETE ON users BEGIN
    UPDATE user_counts SET n = n - 1 WHERE role = old.role AND active = old.active;
END;

CREATE TRIGGER users_counted_over AFTER UPDATE OF role, active ON users BEGIN
    UPDATE user_counts SET n = n - 1 WHERE role = old.role AND active = old.active;
    UPDATE user_counts SET n = n + 1 WHERE role = new.role AND active = new.active;
END;

-- Sessions and API tokens.
CREATE TABLE auth_tokens (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id      INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    token_hash   BLOB NOT NULL UNIQUE,           -- SHA-256; the token itself is kept nowhere
    kind         TEXT NOT NULL CHECK (kind IN ('session', 'persistent', 'api')),
    name         TEXT NOT NULL,
    created_at   TEXT NOT NULL,
    last_used_at TEXT,
    expires_at   TEXT,                           -- NULL: never
    limit_at     TEXT,                           -- use moves expires_at on, but not past this; NULL: not moved at all
    ip           TEXT,
    user_agent   TEXT
) STRICT;

CREATE INDEX auth_tokens_by_user ON auth_tokens (user_id);
CREATE INDEX auth_tokens_by_expiry ON auth_tokens (expires_at);

-- Secrets that are sent once and used once: letters' links and the link of the first set-up. And what was used of others.
CREATE TABLE one_time_tokens (
    token_hash BLOB PRIMARY KEY,
    purpose    TEXT NOT NULL CHECK (purpose IN ('confirm', 'reset', 'not_me', 'setup', 'oauth_spent')),
    user_id    INTEGER REFERENCES users (id) ON DELETE CASCADE,
    email      TEXT NOT NULL,                    -- the address that it was sent to
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX one_time_tokens_by_user ON one_time_tokens (user_id);
CREATE INDEX one_time_tokens_by_expiry ON one_time_tokens (expires_at);

-- Letters, written in the transaction of what they tell. Secrets are made when a letter is sent, never here.
-- An address without an account gets a row, too, which the worker drops: asking takes the same time for everyone.
CREATE TABLE outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    kind        TEXT NOT NULL,
    user_id     INTEGER REFERENCES users (id) ON DELETE CASCADE,
    email       TEXT NOT NULL,                   -- where it goes
    message_id  TEXT NOT NULL UNIQUE,            -- the same at every attempt
    state       TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'failed', 'dropped')),
    created_at  TEXT NOT NULL,
    due_at      TEXT NOT NULL,                   -- not to be tried, or in the hands of another worker, before this
    attempts    INTEGER NOT NULL DEFAULT 0,
    last_error  TEXT,
    finished_at TEXT
) STRICT;

CREATE INDEX outbox_due ON outbox (due_at) WHERE state = 'waiting';
CREATE INDEX outbox_by_email ON outbox (email, kind, created_at);
CREATE INDEX outbox_by_user ON outbox (user_id);
CREATE INDEX outbox_finished ON outbox (finished_at) WHERE finished_at IS NOT NULL;

-- Failed logins in a row, of accounts and of addresses that have none.
CREATE TABLE login_failures (
    account        TEXT PRIMARY KEY,             -- user:ID, or a digest of an address without an account
    user_id        INTEGER REFERENCES users (id) ON DELETE CASCADE,
    failures       INTEGER NOT NULL,
    last_failed_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX login_failures_by_user ON login_failures (user_id);
CREATE INDEX login_failures_by_age ON login_failures (last_failed_at) WHERE user_id IS NULL;

-- What was done to whom, by whom and from where. Rows outlive the accounts that they tell of, and never hold a secret.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      TEXT NOT NULL,
    actor   TEXT NOT NULL,                       -- cli:NAME, user:ID, system
    origin  TEXT,                                -- a client's address, or the terminal
    action  TEXT NOT NULL,
    user_id INTEGER,
    email   TEXT,
    details TEXT NOT NULL DEFAULT '{}',          -- JSON
    hash    BLOB NOT NULL                        -- of this row and the hash of the row before it: see usersctl/chain.py
) STRICT;

CREATE INDEX audit_by_user ON audit (user_id);
CREATE INDEX audit_by_time ON audit (at);
CREATE INDEX audit_of_cleanups ON audit (id) WHERE action = 'cleanup-tokens';

-- The end of that chain, by which a trail is known that was cut short.
CREATE TABLE audit_head (
    id   INTEGER PRIMARY KEY CHECK (id = 1),
    n    INTEGER NOT NULL,                       -- how many rows there are
    hash BLOB NOT NULL                           -- of the last one
) STRICT;

INSERT INTO audit_head (id, n, hash) VALUES (1, 0, zeroblob(32));

-- While there is a row, nobody is let in but this one admin.
CREATE TABLE lockdown (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    except_id INTEGER REFERENCES users (id) ON DELETE SET NULL,
    since     TEXT NOT NULL,
    actor     TEXT NOT NULL                      -- who said so
) STRICT;
