-- The sandboxes and subagents that the server runs. The database says which exist and whom they belong to; the containers and
-- pods are found by their ids. What no row names is removed by the reconciler.

-- A sandbox, from the decision to start it until it is gone.
CREATE TABLE sandboxes (
    id         BLOB PRIMARY KEY,
    session    BLOB NOT NULL REFERENCES sessions (id),
    -- Who started it: the events that the server adds by itself are attributed to this key.
    client_key BLOB NOT NULL,
    image      TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('starting', 'running', 'stopping')),
    -- Why it is being stopped.
    reason     TEXT,
    -- The node that works on it says until when it has to be left alone; after that another node carries on.
    busy_until INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
-- One per session, whichever nodes try at the same moment. One that is being stopped does not count any more.
CREATE UNIQUE INDEX sandboxes_live ON sandboxes (session) WHERE state <> 'stopping';
CREATE INDEX sandboxes_session ON sandboxes (session);

-- A subagent, from its launch until its end was reported to the model.
CREATE TABLE subagents (
    id         BLOB PRIMARY KEY,
    session    BLOB NOT NULL REFERENCES sessions (id),
    client_key BLOB NOT NULL,
    harness    TEXT NOT NULL,
    model      TEXT NOT NULL,
    -- 'starting' until the log says that it runs.
    state      TEXT NOT NULL CHECK (state IN ('starting', 'running', 'completed', 'failed', 'timed_out', 'cancelled')),
    exit_code  INTEGER,
    stdout     TEXT NOT NULL DEFAULT '',
    stderr     TEXT NOT NULL DEFAULT '',
    truncated  INTEGER NOT NULL DEFAULT 0,
    reason     TEXT,
    detail     TEXT,
    busy_until INTEGER NOT NULL,
    created_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX subagents_session ON subagents (session);
CREATE INDEX subagents_live ON subagents (id) WHERE state IN ('starting', 'running');

-- Whether the images that profiles name can be started.
CREATE TABLE images (
    name       TEXT PRIMARY KEY,
    status     TEXT NOT NULL CHECK (status IN ('pending', 'available', 'error')),
    detail     TEXT,
    busy_until INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX images_pending ON images (busy_until) WHERE status = 'pending';

-- Work that one node of the cluster does at a time.
CREATE TABLE duties (
    name       TEXT PRIMARY KEY,
    node       TEXT NOT NULL,
    until      INTEGER NOT NULL
) WITHOUT ROWID;

-- Names those who share this database, so that nodes find their own containers and pods and touch no others.
CREATE TABLE deployment (
    one        INTEGER PRIMARY KEY CHECK (one = 1),
    id         BLOB NOT NULL
);
