//! The seeds and keys that a plugin decrypted: each is asked for once. A cluster has one for each key of the plugin and each
//! start of a server; those that nobody used for the longest time go first.

use std::{collections::HashMap, sync::Arc};

use crate::{
    cipher::Cipher,
    kms::envelope::{Source, Wrapped},
};

/// The number of keys that are kept.
const KEPT: usize = 1000;

type Name = (Source, Wrapped);

/// The keys by their encrypted form.
#[derive(Default)]
pub struct KnownKeys {
    keys: HashMap<Name, (Arc<dyn Cipher>, u64)>,
    used: u64,
}

impl KnownKeys {
    pub fn get(&mut self, name: &Name) -> Option<Arc<dyn Cipher>> {
        self.used += 1;
        let (cipher, used) = self.keys.get_mut(name)?;
        *used = self.used;
        Some(cipher.clone())
    }

    pub fn put(&mut self, name: Name, cipher: Arc<dyn Cipher>) {
        self.used += 1;
        self.keys.insert(name, (cipher, self.used));
        if self.keys.len() > KEPT
            && let Some(oldest) = self.keys.iter().min_by_key(|(_, (_, used))| *used).map(|(name, _)| name.clone())
        {
            self.keys.remove(&oldest);
        }
    }

    pub fn len(&self) -> usize {
        self.keys.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kms::seed::Seed;

    #[test]
    fn the_key_that_was_not_used_for_the_longest_time_is_forgotten() {
        let name = |id: usize| (Source::Seed, Wrapped { key_id: id.to_string(), ..Wrapped::default() });
        let mut known = KnownKeys::default();
        for id in 0..KEPT {
            known.put(name(id), Arc::new(Seed::fresh().0));
        }
        assert!(known.get(&name(0)).is_some());
        known.put(name(KEPT), Arc::new(Seed::fresh().0));
        assert_eq!(known.len(), KEPT);
        assert!(known.get(&name(0)).is_some() && known.get(&name(KEPT)).is_some());
        assert!(known.get(&name(1)).is_none());
    }
}
