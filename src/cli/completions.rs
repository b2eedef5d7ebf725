//! `cota completions`.

use std::io;
use std::process::ExitCode;

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;

#[derive(Debug, Args)]
pub(super) struct Completions {
    /// For which shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> ExitCode {
        clap_complete::generate(self.shell, &mut Cli::command(), "cota", &mut io::stdout());
        ExitCode::SUCCESS
    }
}
