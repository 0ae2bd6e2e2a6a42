//! Three real nodes on one real Postgres and one real Redis, broken from outside (F and S numbers are those of the
//! project's list of failures).
//!
//! A step of a turn is reached by a peer that stalls, never by a delay, and is proved by the log's last event in the
//! database. After each test the checker reads the whole record.

mod anywhere;
mod clocks;
mod crashes;
mod drain;
mod history;
mod interleavings;
mod limits;
mod namespaces;
mod order;
mod outage;
mod resend;
mod sockets;
mod streams;
mod subscribers;
mod upgrade;
