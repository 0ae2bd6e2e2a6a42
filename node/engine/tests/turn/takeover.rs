//! Takeovers that random scripts reach rarely, one by one.
