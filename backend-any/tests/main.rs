//! The backend chosen by configuration, as a user meets it.

mod config;
mod hostile;
mod options;
mod readme;
