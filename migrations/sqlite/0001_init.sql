-- Ids are the 16 bytes behind the prefix; times are Unix milliseconds of the database's clock; payloads are text exactly as
-- they came. Lists inside a column are JSON text that is only ever read whole.

CREATE TABLE profiles (
    id                  BLOB PRIMARY KEY,
    name                TEXT NOT NULL,
    primary_provider    TEXT NOT NULL,
    fallback_providers  TEXT NOT NULL,
    mcp_servers         TEXT NOT NULL,
    allowed_tools       TEXT NOT NULL,
    available_sandboxes TEXT NOT NULL,
    created_at          INTEGER NOT NULL,
    updated_at          INTEGER NOT NULL,
    deleted_at          INTEGER
) WITHOUT ROWID;
-- A deleted profile's name can be used again.
CREATE UNIQUE INDEX profiles_name ON profiles (name) WHERE deleted_at IS NULL;

CREATE TABLE client_keys (
    id           BLOB PRIMARY KEY,
    name         TEXT NOT NULL,
    prefix       TEXT NOT NULL,
    digest       BLOB NOT NULL UNIQUE,
    profile      BLOB NOT NULL REFERENCES profiles (id),
    created_at   INTEGER NOT NULL,
    last_used_at INTEGER,
    revoked_at   INTEGER
) WITHOUT ROWID;
CREATE INDEX client_keys_profile ON client_keys (profile) WHERE revoked_at IS NULL;

-- At most one row: however many nodes start at once, one admin key is made.
CREATE TABLE admin_key (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    digest     BLOB NOT NULL,
    created_at INTEGER NOT NULL
);

CREATE TABLE sessions (
    id             BLOB PRIMARY KEY,
    profile        BLOB NOT NULL REFERENCES profiles (id),
    -- 'closing' is shown as 'closed': nothing new starts, what runs is being stopped.
    state          TEXT NOT NULL CHECK (state IN ('open', 'closing', 'closed', 'error')),
    -- Fencing: moves with every new owner and with closing.
    epoch          INTEGER NOT NULL DEFAULT 0,
    -- Number of the newest event.
    head           INTEGER NOT NULL DEFAULT 0,
    -- Changes only in the append that carries the events which say so.
    phase          TEXT NOT NULL DEFAULT 'idle' CHECK (phase IN ('idle', 'running', 'paused')),
    call           BLOB,
    -- A pause: who may answer, until when.
    owner          BLOB,
    deadline       INTEGER,
    -- Crash takeovers of the running call since its last append.
    takeovers      INTEGER NOT NULL DEFAULT 0,
    -- The owner gave the running call away on purpose: the next takeover does not count.
    handed_over    INTEGER NOT NULL DEFAULT 0,
    -- Version of the internal forms in this row and its events.
    version        INTEGER NOT NULL DEFAULT 1,
    client_version TEXT,
    compaction     TEXT NOT NULL,
    -- The tools its MCP servers offered when it was created.
    mcp_tools      TEXT NOT NULL,
    closing_by     BLOB,
    closing_reason TEXT,
    created_at     INTEGER NOT NULL,
    closed_at      INTEGER
) WITHOUT ROWID;
CREATE INDEX sessions_state ON sessions (state, id);
-- What a node that starts, or sweeps, has to carry on.
CREATE INDEX sessions_unfinished ON sessions (id) WHERE phase = 'running' OR state = 'closing';

CREATE TABLE session_keys (
    digest     BLOB PRIMARY KEY,
    session    BLOB NOT NULL REFERENCES sessions (id),
    client_key BLOB NOT NULL REFERENCES client_keys (id),
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX session_keys_session ON session_keys (session, client_key);
CREATE INDEX session_keys_client_key ON session_keys (client_key, session);

-- What each client key declared in a session, and whether it drives.
CREATE TABLE clients (
    session       BLOB NOT NULL REFERENCES sessions (id),
    client_key    BLOB NOT NULL,
    declarations  TEXT NOT NULL,
    driver_since  INTEGER,
    PRIMARY KEY (session, client_key)
) WITHOUT ROWID;

-- One sendMessage or compact call that has started.
CREATE TABLE calls (
    id              BLOB PRIMARY KEY,
    session         BLOB NOT NULL REFERENCES sessions (id),
    client_key      BLOB NOT NULL,
    idempotency_key TEXT,
    -- SHA-256 of the call's params: the same key with other params is refused.
    params_digest   BLOB,
    traceparent     TEXT,
    first_event     INTEGER NOT NULL,
    last_event      INTEGER,
    outcome         TEXT,
    created_at      INTEGER NOT NULL
) WITHOUT ROWID;
CREATE UNIQUE INDEX calls_idempotency ON calls (session, client_key, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE events (
    id          BLOB NOT NULL UNIQUE,
    session     BLOB NOT NULL REFERENCES sessions (id),
    number      INTEGER NOT NULL,
    -- Null where the event is no part of a turn.
    epoch       INTEGER,
    call        BLOB,
    client_key  BLOB NOT NULL,
    kind        TEXT NOT NULL,
    from_client INTEGER NOT NULL,
    payload     TEXT NOT NULL,
    created_at  INTEGER NOT NULL,
    UNIQUE (session, number)
);
-- Readers rebuild a request from the ones before it.
CREATE INDEX events_requests ON events (session, number) WHERE kind = 'provider.request';
CREATE INDEX events_compactions ON events (session, number) WHERE kind = 'session.compaction.completed';

-- When a node of this cluster lived last.
CREATE TABLE cluster (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    beat_at INTEGER NOT NULL
);
