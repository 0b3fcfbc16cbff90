//! Simulated clusters: their stories, and what single promises need. One binary, since each would hold every component again.

mod attachments;
mod circles;
mod devices;
mod rollout;
mod sabotage;
mod selinux;
mod stories;
mod unheard;
