//! The command line. Terminal output lives here and nowhere else.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};

mod check;
mod completions;
mod explain;
mod overrides;
mod ratelimit;
mod schema;
mod serve;
mod service;

/// Rate limits for Envoy and Istio: budgets for tenants, credentials, routes and addresses.
#[derive(Debug, Parser)]
#[command(name = "cota", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer Envoy by the policy files.
    Serve(Box<serve::Serve>),
    /// Serve as the environment variables of envoyproxy/ratelimit say.
    Ratelimit(ratelimit::Ratelimit),
    /// Say everything that is wrong with policy files.
    Check(check::Check),
    /// Say which limits a request meets, and why.
    Explain(explain::Explain),
    /// Print the JSON Schema of policy files, for editors.
    Schema(schema::Schema),
    /// Print what completes this command line in a shell.
    Completions(completions::Completions),
    /// Change a limit for one caller at run time, and see who did.
    Override(overrides::Override),
    /// Make one caller's budgets start afresh, everywhere.
    Reset(overrides::Reset),
}

impl Cli {
    /// Reads the command line. Called as `ratelimit`, as manifests of that service do, it is `cota ratelimit`,
    /// unless what comes next is one of our own words.
    pub fn read(arguments: impl IntoIterator<Item = OsString>) -> Self {
        let mut arguments: Vec<OsString> = arguments.into_iter().collect();
        let called = |name: &OsString| Path::new(name).file_name() == Some("ratelimit".as_ref());
        if arguments.first().is_some_and(called) && !arguments.get(1).is_some_and(is_own) {
            arguments.insert(1, "ratelimit".into());
        }
        Self::parse_from(arguments)
    }

    /// Runs the subcommand: 0 done, 1 it failed or found errors; clap itself ends with 2 on usage.
    ///
    /// # Errors
    /// What the subcommand could not do.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(serve) => serve.run(),
            // Our own variables say what the incumbent's have no words for.
            Command::Ratelimit(arguments) => match Self::parse_from(["cota", "serve"]).command {
                Command::Serve(serve) => ratelimit::run(&arguments, *serve),
                _ => unreachable!("`serve` was asked for"),
            },
            Command::Check(check) => check.run(),
            Command::Explain(explain) => explain.run(),
            Command::Schema(schema) => schema.run(),
            Command::Completions(completions) => Ok(completions.run()),
            Command::Override(overrides) => overrides.run(),
            Command::Reset(reset) => reset.run(),
        }
    }
}

/// A subcommand, or a flag that stands before one.
fn is_own(word: &OsString) -> bool {
    let own = Cli::command();
    let flags = ["-h", "--help", "-V", "--version", "help"];
    word.to_str()
        .is_some_and(|word| own.find_subcommand(word).is_some() || flags.contains(&word))
}
