-- The complete schema of a new database. usersctl/store/upgrade.py brings an older database to this state.
-- Times are ISO 8601 text in UTC with milliseconds (2026-11-20T08:22:19.123Z), so that text sorts as time.
-- Booleans are 0 and 1.

CREATE TABLE users (
    id                    INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused
    email                 TEXT NOT NULL UNIQUE,               -- proven, or given by an admin; lower-case, domain in its ASCII form
    name                  TEXT NOT NULL,
    password_hash         TEXT NOT NULL,                      -- bcrypt, or the text of another system until the first login; any other text matches no password
    role                  TEXT NOT NULL DEFAULT 'user' CHECK (role IN ('admin', 'user')),
    active                INTEGER NOT NULL CHECK (active IN (0, 1)),
    awaiting_confirmation INTEGER NOT NULL DEFAULT 0 CHECK (awaiting_confirmation IN (0, 1)),  -- registered; the only inactive state that an email may end
    email_proven_at       TEXT,                               -- when the owner showed that they read this address
    created_at            TEXT NOT NULL,
    updated_at            TEXT NOT NULL,
    last_login_at         TEXT,
    oauth_id              TEXT,                               -- a copy of the subject in identities, for provider oauth
    profile_picture       TEXT,
    claimed_email         TEXT,                               -- the owner's new address, which is not proven yet
    claim_expires_at      TEXT,
    claim_proven_at       TEXT,                               -- the link to the new address was used
    claim_approved_at     TEXT,                               -- and the link to the old address, which an account without a password needs
    devices_since         TEXT,                               -- device cookies made before are void
    factors               INTEGER NOT NULL DEFAULT 0,         -- TOTP secrets and passkeys, counted by the triggers below
    factors_since         TEXT,                               -- when they changed: a device that was remembered before asks again
    delete_at             TEXT,                               -- its owner asked for the deletion, and may undo it until then
    invited_at            TEXT,                               -- an admin invited this address; NULL once its owner accepted
    invitation_expires_at TEXT,
    invited_nameless      INTEGER NOT NULL DEFAULT 0 CHECK (invited_nameless IN (0, 1)),  -- the invitation gave no name
    managed_by            TEXT,                               -- the name of the file of `usersctl apply` that made or adopted it
    -- For search and order: usersctl/folding.py
    name_folded           TEXT NOT NULL DEFAULT '',
    email_folded          TEXT,                               -- NULL: like email
    claimed_folded        TEXT,                               -- NULL: like claimed_email
    login_order           TEXT AS (coalesce(last_login_at, '')),  -- never signed in sorts first
    signed_in             INTEGER AS (last_login_at IS NOT NULL),
    invited               INTEGER AS (invited_at IS NOT NULL),
    search_text           TEXT AS (
        char(10) || name_folded || ' ' || email || coalesce(' ' || email_folded, '') || coalesce(' ' || claimed_email, '')
        || coalesce(' ' || claimed_folded, '')
    )
) STRICT;

-- With the addresses, so that a search reads the index alone.
CREATE INDEX users_by_name ON users (name_folded, name, id, email, email_folded, claimed_email, claimed_folded);
CREATE INDEX users_by_creation ON users (created_at);
CREATE INDEX users_by_last_login ON users (login_order);
CREATE INDEX users_by_activity_and_name ON users (active, name_folded, name, id);
CREATE INDEX users_by_activity_and_email ON users (active, email);
CREATE INDEX users_by_activity_and_creation ON users (active, created_at);
CREATE INDEX users_by_activity_and_last_login ON users (active, login_order);
-- They registered and have not confirmed, or were deactivated: awaiting_confirmation tells.
CREATE INDEX users_shut_by_name ON users (awaiting_confirmation, name_folded, name, id) WHERE active = 0 AND invited = 0;
CREATE INDEX users_shut_by_email ON users (awaiting_confirmation, email) WHERE active = 0 AND invited = 0;
CREATE INDEX users_shut_by_creation ON users (awaiting_confirmation, created_at) WHERE active = 0 AND invited = 0;
CREATE INDEX users_shut_by_last_login ON users (awaiting_confirmation, login_order) WHERE active = 0 AND invited = 0;
CREATE INDEX users_invited_by_name ON users (name_folded, name, id) WHERE invited = 1;
CREATE INDEX users_invited_by_email ON users (email) WHERE invited = 1;
CREATE INDEX users_invited_by_creation ON users (created_at) WHERE invited = 1;
CREATE INDEX users_invited_by_last_login ON users (login_order) WHERE invited = 1;
CREATE INDEX users_new_by_name ON users (name_folded, name, id) WHERE signed_in = 0;
CREATE INDEX users_new_by_email ON users (email) WHERE signed_in = 0;
CREATE INDEX users_new_by_creation ON users (created_at) WHERE signed_in = 0;
CREATE INDEX users_admins_by_name ON users (name_folded, name, id) WHERE role = 'admin';
CREATE INDEX users_admins_by_email ON users (email) WHERE role = 'admin';
CREATE INDEX users_admins_by_creation ON users (created_at) WHERE role = 'admin';
CREATE INDEX users_admins_by_last_login ON users (login_order) WHERE role = 'admin';
CREATE UNIQUE INDEX users_by_claim ON users (claimed_email) WHERE claimed_email IS NOT NULL;
CREATE INDEX users_by_end_of_claim ON users (claim_expires_at) WHERE claim_expires_at IS NOT NULL;
CREATE INDEX users_by_deletion ON users (delete_at) WHERE delete_at IS NOT NULL;
CREATE INDEX users_invited_by_expiry ON users (invitation_expires_at) WHERE invited_at IS NOT NULL;
CREATE INDEX users_by_file ON users (managed_by, email) WHERE managed_by IS NOT NULL;
CREATE INDEX users_awaiting_by_age ON users (created_at) WHERE awaiting_confirmation = 1;
-- Neither bcrypt nor unusable: see usersctl/foreign_hashes.py
CREATE INDEX users_by_foreign_hash ON users (password_hash)
    WHERE substr(password_hash, 1, 2) <> '$2' AND substr(password_hash, 1, 1) <> '!';

-- Which users have which three characters in a row in their search_text.
CREATE VIRTUAL TABLE user_search USING fts5 (
    search_text,
    content = 'users', content_rowid = 'id', tokenize = 'trigram case_sensitive 1', detail = none, columnsize = 0
);

CREATE TRIGGER users_searched_in AFTER INSERT ON users BEGIN
    INSERT INTO user_search (rowid, search_text) VALUES (new.id, new.search_text);
END;

CREATE TRIGGER users_searched_out AFTER DELETE ON users BEGIN
    INSERT INTO user_search (user_search, rowid, search_text) VALUES ('delete', old.id, old.search_text);
END;

CREATE TRIGGER users_searched_over
AFTER UPDATE OF name_folded, email, email_folded, claimed_email, claimed_folded ON users BEGIN
    INSERT INTO user_search (user_search, rowid, search_text) VALUES ('delete', old.id, old.search_text);
    INSERT INTO user_search (rowid, search_text) VALUES (new.id, new.search_text);
END;

CREATE TABLE groups (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    name       TEXT NOT NULL UNIQUE,
    created_at TEXT NOT NULL,
    members    INTEGER NOT NULL DEFAULT 0,        -- counted by the triggers below
    managed_by TEXT                               -- as in users
) STRICT;

CREATE TABLE group_members (
    group_id INTEGER NOT NULL,                    -- perhaps deleted: the cleanup then removes its rows, in small transactions
    user_id  INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    PRIMARY KEY (group_id, user_id)
) STRICT, WITHOUT ROWID;

CREATE INDEX group_members_by_user ON group_members (user_id);

CREATE TRIGGER group_members_counted_in AFTER INSERT ON group_members BEGIN
    UPDATE groups SET members = members + 1 WHERE id = new.group_id;
END;

CREATE TRIGGER group_members_counted_out AFTER DELETE ON group_members BEGIN
    UPDATE groups SET members = members - 1 WHERE id = old.group_id;
END;

-- Addresses that `usersctl apply` has invited: none of them twice, whatever became of its account.
CREATE TABLE applied_invitations (
    email      TEXT PRIMARY KEY,
    invited_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Accounts of identity providers that sign a user in. Only usersctl/store/identities.py writes it, and users.oauth_id.
CREATE TABLE identities (
    id        INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id   INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    provider  TEXT NOT NULL,                     -- its name in the configuration
    issuer    TEXT NOT NULL,                     -- '' until a daemon with this provider binds it
    subject   TEXT NOT NULL,                     -- the id of the account there, unique at its issuer
    email     TEXT,                              -- as the provider said when the account was linked; NULL: unknown
    linked_at TEXT,                              -- NULL: unknown, from before version 4 or from an import
    UNIQUE (provider, issuer, subject),
    UNIQUE (user_id, provider)
) STRICT;

-- Addresses that an account has given up: reserved for it while a "this wasn't me" link can put them back.
CREATE TABLE reserved_emails (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- in the order in which the account gave them up
    email      TEXT NOT NULL UNIQUE,
    user_id    INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX reserved_emails_by_user ON reserved_emails (user_id);
CREATE INDEX reserved_emails_by_expiry ON reserved_emails (expires_at);

-- The number of accounts of each kind, so that lists and the rule of the last admin never count a million rows.
CREATE TABLE user_counts (
    role                  TEXT NOT NULL,
    active                INTEGER NOT NULL,
    awaiting_confirmation INTEGER NOT NULL,
    invited               INTEGER NOT NULL,
    signed_in             INTEGER NOT NULL,
    n                     INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (role, active, awaiting_confirmation, invited, signed_in)
) STRICT, WITHOUT ROWID;

WITH bits (bit) AS (VALUES (0), (1))
INSERT INTO user_counts (role, active, awaiting_confirmation, invited, signed_in)
SELECT role, active.bit, awaiting.bit, invited.bit, signed_in.bit
FROM (SELECT 'admin' AS role UNION ALL SELECT 'user') AS roles, bits AS active, bits AS awaiting, bits AS invited, bits AS signed_in;

CREATE TRIGGER users_counted_in AFTER INSERT ON users BEGIN
    UPDATE user_counts SET n = n + 1
    WHERE role = new.role AND active = new.active AND awaiting_confirmation = new.awaiting_confirmation
        AND invited = new.invited AND signed_in = new.signed_in;
END;

CREATE TRIGGER users_counted_out AFTER DELETE ON users BEGIN
    UPDATE user_counts SET n = n - 1
    WHERE role = old.role AND active = old.active AND awaiting_confirmation = old.awaiting_confirmation
        AND invited = old.invited AND signed_in = old.signed_in;
END;

CREATE TRIGGER users_counted_over
AFTER UPDATE OF role, active, awaiting_confirmation, invited_at, last_login_at ON users
WHEN (old.role, old.active, old.awaiting_confirmation, old.invited, old.signed_in)
    IS NOT (new.role, new.active, new.awaiting_confirmation, new.invited, new.signed_in)
BEGIN
    UPDATE user_counts SET n = n - 1
    WHERE role = old.role AND active = old.active AND awaiting_confirmation = old.awaiting_confirmation
        AND invited = old.invited AND signed_in = old.signed_in;
    UPDATE user_counts SET n = n + 1
    WHERE role = new.role AND active = new.active AND awaiting_confirmation = new.awaiting_confirmation
        AND invited = new.invited AND signed_in = new.signed_in;
END;

-- Sessions and API tokens.
CREATE TABLE auth_tokens (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id      INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    token_hash   BLOB NOT NULL UNIQUE,           -- SHA-256; the token itself is never stored
    kind         TEXT NOT NULL CHECK (kind IN ('session', 'persistent', 'api')),
    name         TEXT NOT NULL,
    created_at   TEXT NOT NULL,
    last_used_at TEXT,
    expires_at   TEXT,                           -- NULL: never
    limit_at     TEXT,                           -- activity moves expires_at, but never past this; NULL: never moves it
    ip           TEXT,                           -- of the sign-in; of an API token: of its last use
    user_agent   TEXT,
    auth_time    TEXT,                           -- when and how the provider signed the user in,
    amr          TEXT,                           -- as its ID token says: methods separated by blanks
    confirmed_at TEXT,                           -- the last proof of identity since the sign-in: see usersctl/freshness.py
    factor_at    TEXT,                           -- the last proof by a second factor or a passkey, at the sign-in or since
    opened_with  TEXT,                           -- what the user proved: pwd otp recovery passkey device provider:NAME
    scopes       TEXT,                           -- of an API token, separated by blanks; NULL: all that its user may do
    ranges       TEXT                            -- client addresses that may use it, separated by blanks; NULL: all
) STRICT;

CREATE INDEX auth_tokens_by_user ON auth_tokens (user_id);
-- By the day alone: a cleanup deletes the tokens of many days in the order of their rows, and so changes few of its pages.
CREATE INDEX auth_tokens_by_expiry ON auth_tokens (substr(expires_at, 1, 10));

-- Second factors. users.factors counts the rows of the first two tables.
CREATE TABLE totp_secrets (
    user_id    INTEGER PRIMARY KEY REFERENCES users (id) ON DELETE CASCADE,
    secret     BLOB NOT NULL,                    -- sealed: see usersctl/factors/sealing.py
    created_at TEXT NOT NULL,
    last_step  INTEGER NOT NULL,                 -- of the last code that was used: this one and those before do not count
    failures   INTEGER NOT NULL DEFAULT 0        -- codes that were tried since a second factor was right
) STRICT;

CREATE TABLE passkeys (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    user_id       INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    credential_id BLOB NOT NULL UNIQUE,
    rp_id         TEXT NOT NULL,                 -- the host name of baseUrl when it was made: it works nowhere else
    public_key    BLOB NOT NULL,
    algorithm     INTEGER NOT NULL,              -- its number in COSE
    sign_count    INTEGER NOT NULL,              -- 0 for ever on most synced passkeys
    name          TEXT NOT NULL,
    synced        INTEGER NOT NULL CHECK (synced IN (0, 1)),
    created_at    TEXT NOT NULL,
    last_used_at  TEXT
) STRICT;

CREATE INDEX passkeys_by_user ON passkeys (user_id);

CREATE TRIGGER totp_secrets_counted_in AFTER INSERT ON totp_secrets BEGIN
    UPDATE users SET factors = factors + 1 WHERE id = new.user_id;
END;

CREATE TRIGGER totp_secrets_counted_out AFTER DELETE ON totp_secrets BEGIN
    UPDATE users SET factors = factors - 1 WHERE id = old.user_id;
END;

CREATE TRIGGER passkeys_counted_in AFTER INSERT ON passkeys BEGIN
    UPDATE users SET factors = factors + 1 WHERE id = new.user_id;
END;

CREATE TRIGGER passkeys_counted_out AFTER DELETE ON passkeys BEGIN
    UPDATE users SET factors = factors - 1 WHERE id = old.user_id;
END;

-- They come with the first factor and end with the last. Each works once.
CREATE TABLE recovery_codes (
    user_id    INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    code_hash  BLOB NOT NULL,                    -- SHA-256 of 120 random bits
    created_at TEXT NOT NULL,
    PRIMARY KEY (user_id, code_hash)
) STRICT, WITHOUT ROWID;

-- Sign-ins that wait for their second factor.
CREATE TABLE pending_sign_ins (
    token_hash  BLOB PRIMARY KEY,                -- SHA-256 of the cookie
    user_id     INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    opened_with TEXT NOT NULL,                   -- what the user proved so far
    persistent  INTEGER NOT NULL CHECK (persistent IN (0, 1)),
    auth_time   TEXT,                            -- as in auth_tokens
    amr         TEXT,
    failures    INTEGER NOT NULL DEFAULT 0,      -- wrong codes
    expires_at  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX pending_sign_ins_by_user ON pending_sign_ins (user_id);
CREATE INDEX pending_sign_ins_by_expiry ON pending_sign_ins (expires_at);

-- New secrets of authenticator apps that wait for their first code.
CREATE TABLE totp_enrolments (
    session_id INTEGER PRIMARY KEY,              -- the session that began, and alone can finish
    user_id    INTEGER NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    secret     BLOB NOT NULL,                    -- sealed
    expires_at TEXT NOT NULL
) STRICT;

CREATE INDEX totp_enrolments_by_user ON totp_enrolments (user_id);
CREATE INDEX totp_enrolments_by_expiry ON totp_enrolments (expires_at);

-- Secrets that work once: the links in emails and the link to create the first admin. And the OAuth states and
-- the challenges of passkeys that were used. And the secrets of remembered devices, which work until they expire.
CREATE TABLE one_time_tokens (
    token_hash BLOB PRIMARY KEY,
    purpose    TEXT NOT NULL,                    -- one of models.Purpose; one purpose never serves another
    user_id    INTEGER REFERENCES users (id) ON DELETE CASCADE,
    email      TEXT NOT NULL,                    -- the address that the link was sent to
    created_at TEXT NOT NULL,
    expires_at TEXT NOT NULL,
    about      TEXT                              -- like outbox.about; of a remembered device: when its factor was proved
) STRICT, WITHOUT ROWID;

CREATE INDEX one_time_tokens_by_user ON one_time_tokens (user_id);
CREATE INDEX one_time_tokens_by_expiry ON one_time_tokens (expires_at);

-- Emails to send, and events to tell webhooks, inserted in the transaction of the change that they report. The secrets of
-- emails are made when they are sent.
-- An address without an account gets a row, too, which the worker drops, so that timing never shows if it has one.
CREATE TABLE outbox (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    kind        TEXT NOT NULL,                   -- of the email, or the name of the event
    user_id     INTEGER REFERENCES users (id) ON DELETE CASCADE,
    email       TEXT NOT NULL,                   -- the recipient
    message_id  TEXT NOT NULL UNIQUE,            -- the same in every attempt
    state       TEXT NOT NULL DEFAULT 'waiting' CHECK (state IN ('waiting', 'sent', 'failed', 'dropped')),
    created_at  TEXT NOT NULL,
    due_at      TEXT NOT NULL,                   -- before this, no worker takes it: it is postponed, or being sent
    attempts    INTEGER NOT NULL DEFAULT 0,
    last_error  TEXT,
    finished_at TEXT,
    about       TEXT,                            -- the enrolment that its "this wasn't me" link takes back: see models.Enrolment
    -- Of an event. It has no user_id, because it outlives its user.
    webhook     TEXT NOT NULL DEFAULT '',        -- its name in the configuration; '': an email
    subject     INTEGER NOT NULL DEFAULT 0,      -- the id of the user, whose events are told in their order; 0: none
    payload     TEXT                             -- the body of the request
) STRICT;

CREATE INDEX outbox_due ON outbox (webhook, due_at) WHERE state = 'waiting';
CREATE INDEX outbox_failed ON outbox (id) WHERE state = 'failed';
CREATE INDEX outbox_in_order ON outbox (webhook, subject, state, id) WHERE webhook <> '';
CREATE INDEX outbox_by_email ON outbox (email, kind, created_at);
CREATE INDEX outbox_by_user ON outbox (user_id);
CREATE INDEX outbox_finished ON outbox (finished_at) WHERE finished_at IS NOT NULL;

-- Webhooks whose receiver failed. One that works has no row.
CREATE TABLE webhooks (
    name         TEXT PRIMARY KEY,               -- in the configuration
    failures     INTEGER NOT NULL DEFAULT 0,     -- in a row
    paused_until TEXT,
    ended_at     TEXT                            -- when the receiver answered 410
) STRICT, WITHOUT ROWID;

-- Failed logins in a row, of accounts and of addresses without an account.
CREATE TABLE login_failures (
    account        TEXT PRIMARY KEY,             -- whose count: see usersctl/throttle.py
    user_id        INTEGER REFERENCES users (id) ON DELETE CASCADE,
    failures       INTEGER NOT NULL,
    last_failed_at TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX login_failures_by_user ON login_failures (user_id);
-- For the list of locked accounts: those of strangers, which lock at a number, and those of known devices and sessions.
CREATE INDEX login_failures_of_strangers ON login_failures (failures) WHERE account = 'user:' || CAST(user_id AS TEXT);
CREATE INDEX login_failures_of_known ON login_failures (user_id, failures) WHERE account <> 'user:' || CAST(user_id AS TEXT);
CREATE INDEX login_failures_by_age ON login_failures (last_failed_at) WHERE user_id IS NULL;

-- Every change: which, to which account, by which actor and from where. Rows outlive their accounts and hold no secrets.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      TEXT NOT NULL,
    actor   TEXT NOT NULL,                       -- cli:NAME, user:ID or system
    origin  TEXT,                                -- the client's address, or the terminal
    action  TEXT NOT NULL,
    user_id INTEGER,
    email   TEXT,
    details TEXT NOT NULL DEFAULT '{}',          -- JSON
    hash    BLOB NOT NULL                        -- of this row and of the hash before it: see usersctl/store/chain.py
) STRICT;

-- No index by time: ids rise with it, so that a time is looked up by halves.
CREATE INDEX audit_by_user ON audit (user_id);
CREATE INDEX audit_by_actor ON audit (actor);
CREATE INDEX audit_by_action ON audit (action);
CREATE INDEX audit_of_removals ON audit (email)
WHERE action IN ('delete', 'registration-expired', 'withdraw-invitation');

-- The end of that chain, so that a trail whose last rows were removed is noticed.
CREATE TABLE audit_head (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    n        INTEGER NOT NULL,                   -- the number of rows
    hash     BLOB NOT NULL,                      -- of the last row
    latest   TEXT NOT NULL DEFAULT '',           -- the latest time of all rows
    set_back INTEGER NOT NULL DEFAULT 0          -- milliseconds: the most by which a row is earlier than one before it
) STRICT;

INSERT INTO audit_head (id, n, hash) VALUES (1, 0, zeroblob(32));

-- What the audit trail does not count: one row for each day in UTC on which there was something to count, and on a server
-- several, with a number behind the day, so that sign-ins do not wait for each other.
CREATE TABLE daily_counts (
    day           TEXT PRIMARY KEY,              -- 2026-11-20
    sign_ins      INTEGER NOT NULL DEFAULT 0,
    failed        INTEGER NOT NULL DEFAULT 0,    -- sign-ins with a wrong password, also to unknown addresses
    registrations INTEGER NOT NULL DEFAULT 0     -- accounts that their owners made
) STRICT, WITHOUT ROWID;

-- While this table has a row, only this admin can sign in; without one, no user can.
CREATE TABLE lockdown (
    id        INTEGER PRIMARY KEY CHECK (id = 1),
    except_id INTEGER REFERENCES users (id) ON DELETE SET NULL,
    since     TEXT NOT NULL,
    actor     TEXT NOT NULL                      -- who started it
) STRICT;

-- Requests of client addresses that are limited, where several processes count them: see usersctl/throttle.py
CREATE TABLE client_counts (
    client     TEXT PRIMARY KEY,                 -- what is counted, and the network of the address
    started_at TEXT NOT NULL,                    -- of the window of time
    n          INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- The last slot of each scheduled task that was run: by one of all daemons, and once.
CREATE TABLE slots (
    task TEXT PRIMARY KEY,
    last TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Keys that sign cookies of this service, made at first use.
CREATE TABLE signing_keys (
    name TEXT PRIMARY KEY,
    key  BLOB NOT NULL
) STRICT, WITHOUT ROWID;
