-- Ids are the 16 bytes behind the prefix; times are Unix milliseconds of the database's clock; payloads are text exactly as
-- they came. Lists inside a column are JSON text that is only ever read whole.

CREATE TABLE profiles (
    id                  BYTEA PRIMARY KEY,
    name                TEXT NOT NULL,
    primary_provider    TEXT NOT NULL,
    fallback_providers  TEXT NOT NULL,
    mcp_servers         TEXT NOT NULL,
    allowed_tools       TEXT NOT NULL,
    available_sandboxes TEXT NOT NULL,
    created_at          BIGINT NOT NULL,
    updated_at          BIGINT NOT NULL,
    deleted_at          BIGINT
);
-- A deleted profile's name can be used again.
CREATE UNIQUE INDEX profiles_name ON profiles (name) WHERE deleted_at IS NULL;

CREATE TABLE client_keys (
    id           BYTEA PRIMARY KEY,
    name         TEXT NOT NULL,
    prefix       TEXT NOT NULL,
    digest       BYTEA NOT NULL UNIQUE,
    profile      BYTEA NOT NULL REFERENCES profiles (id),
    created_at   BIGINT NOT NULL,
    last_used_at BIGINT,
    revoked_at   BIGINT
);
CREATE INDEX client_keys_profile ON client_keys (profile) WHERE revoked_at IS NULL;

-- At most one row: however many nodes start at once, one admin key is made.
CREATE TABLE admin_key (
    one        BIGINT PRIMARY KEY CHECK (one = 1),
    digest     BYTEA NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE TABLE sessions (
    id             BYTEA PRIMARY KEY,
    profile        BYTEA NOT NULL REFERENCES profiles (id),
    -- 'closing' is shown as 'closed': nothing new starts, what runs is being stopped.
    state          TEXT NOT NULL CHECK (state IN ('open', 'closing', 'closed', 'error')),
    -- Fencing: moves with every new owner and with closing.
    epoch          BIGINT NOT NULL DEFAULT 0,
    -- Number of the newest event.
    head           BIGINT NOT NULL DEFAULT 0,
    -- Changes only in the append that carries the events which say so.
    phase          TEXT NOT NULL DEFAULT 'idle' CHECK (phase IN ('idle', 'running', 'paused')),
    call           BYTEA,
    -- A pause: who may answer, until when.
    owner          BYTEA,
    deadline       BIGINT,
    -- Crash takeovers of the running call since its last append.
    takeovers      BIGINT NOT NULL DEFAULT 0,
    -- The owner gave the running call away on purpose: the next takeover does not count.
    handed_over    BIGINT NOT NULL DEFAULT 0,
    -- Version of the internal forms in this row and its events.
    version        BIGINT NOT NULL DEFAULT 1,
    client_version TEXT,
    compaction     TEXT NOT NULL,
    -- The tools its MCP servers offered when it was created.
    mcp_tools      TEXT NOT NULL,
    closing_by     BYTEA,
    closing_reason TEXT,
    created_at     BIGINT NOT NULL,
    closed_at      BIGINT
-- Every append updates its session's row: room for the new version on the same page spares the indexes.
) WITH (fillfactor = 70);
CREATE INDEX sessions_state ON sessions (state, id);
-- What a node that starts, or sweeps, has to carry on.
CREATE INDEX sessions_unfinished ON sessions (id) WHERE phase = 'running' OR state = 'closing';

CREATE TABLE session_keys (
    digest     BYTEA PRIMARY KEY,
    session    BYTEA NOT NULL REFERENCES sessions (id),
    client_key BYTEA NOT NULL REFERENCES client_keys (id),
    created_at BIGINT NOT NULL
);
CREATE INDEX session_keys_session ON session_keys (session, client_key);
CREATE INDEX session_keys_client_key ON session_keys (client_key, session);

-- What each client key declared in a session, and whether it drives.
CREATE TABLE clients (
    session       BYTEA NOT NULL REFERENCES sessions (id),
    client_key    BYTEA NOT NULL,
    declarations  TEXT NOT NULL,
    driver_since  BIGINT,
    PRIMARY KEY (session, client_key)
);

-- Calls and events name a session that the same statement has just updated: a foreign key would only look it up once more
-- for each row.

-- One sendMessage or compact call that has started.
CREATE TABLE calls (
    id              BYTEA PRIMARY KEY,
    session         BYTEA NOT NULL,
    client_key      BYTEA NOT NULL,
    idempotency_key TEXT,
    -- SHA-256 of the call's params: the same key with other params is refused.
    params_digest   BYTEA,
    traceparent     TEXT,
    first_event     BIGINT NOT NULL,
    last_event      BIGINT,
    outcome         TEXT,
    created_at      BIGINT NOT NULL
);
CREATE UNIQUE INDEX calls_idempotency ON calls (session, client_key, idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE TABLE events (
    id          BYTEA NOT NULL UNIQUE,
    session     BYTEA NOT NULL,
    number      BIGINT NOT NULL,
    -- Null where the event is no part of a turn.
    epoch       BIGINT,
    call        BYTEA,
    client_key  BYTEA NOT NULL,
    kind        TEXT NOT NULL,
    from_client BOOLEAN NOT NULL,
    payload     TEXT NOT NULL,
    created_at  BIGINT NOT NULL,
    UNIQUE (session, number)
);
-- Readers rebuild a request from the ones before it.
CREATE INDEX events_requests ON events (session, number) WHERE kind = 'provider.request';
CREATE INDEX events_compactions ON events (session, number) WHERE kind = 'session.compaction.completed';

-- When a node of this cluster lived last.
CREATE TABLE cluster (
    one     INTEGER PRIMARY KEY CHECK (one = 1),
    beat_at BIGINT NOT NULL
);
