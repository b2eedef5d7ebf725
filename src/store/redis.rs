//! Budgets in Redis or Valkey, shared by all replicas.

mod key;
mod script;

#[cfg(test)]
mod tests;
