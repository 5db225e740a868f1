//! lockcore's backend on Redis.
