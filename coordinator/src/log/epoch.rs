//! The number of a session's owner: stored in the session's row and in every event of a turn.

/// Grows by one each time a session is taken or its closing begins. A turn's append names the epoch of its owner and is
/// refused once a newer one stands in the session's row, so an owner that was replaced writes nothing more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, sqlx::Type)]
#[sqlx(transparent)]
pub struct Epoch(i64);

impl Epoch {
    /// Of a session that nobody has taken yet.
    pub const UNOWNED: Self = Self(0);

    /// The epoch of the session once it was taken, or its closing has begun, under this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}
