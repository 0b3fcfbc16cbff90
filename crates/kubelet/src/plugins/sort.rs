//! A sort of plugins that register by a socket in the registry's folder: an implementation of [`Sort`], and one line in the
//! list of `sorts.rs`.

use std::path::PathBuf;

use futures::future::BoxFuture;

/// A plugin as it has described itself. Nothing in it is to be believed without a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plugin {
    /// The socket that it registers by: no other plugin has it.
    pub socket: PathBuf,
    pub name: String,
    /// The socket of its service; where it names none, the one that it registers by.
    pub endpoint: PathBuf,
    /// The versions of its sort's protocol that it speaks.
    pub versions: Vec<String>,
}

/// One sort of plugins.
pub trait Sort: Send + Sync {
    /// The plugins' own name for their type.
    fn name(&self) -> &'static str;

    /// Why a plugin cannot be used, which it is told.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    /// Takes a plugin into use. It is told why that failed, and asked again later. Dropping the future gives the plugin up;
    /// [`Sort::deregister`] follows.
    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>>;

    /// The plugin's socket has gone, or another one has come in its place. Called once for each plugin whose
    /// [`Sort::register`] has begun, whatever came of it.
    fn deregister<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, ()>;
}
